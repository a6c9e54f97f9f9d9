"""Audio: log-mel features of waveforms, and the way back. `waveforms.py` says what a waveform is."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.runtime.machine import library

RATE = 16_000
"""Samples a second."""
WINDOW, HOP = 400, 160
"""Samples of a window (25 ms), and from one to the next (10 ms)."""
BANDS = 80
FLOOR = 1e-10
"""The least power whose logarithm is taken."""
PIECE = 300 * RATE // HOP
"""Frames that are computed at once."""
PHASE_ROUNDS, MOMENTUM = 60, 0.99
"""Turns of `griffin_lim`, and how much of the last change each adds again."""
_HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)


def resampled(wave: Float[np.ndarray, " samples"], rate: float, new_rate: float) -> Float[np.ndarray, " _"]:
    """The waveform at another number of samples a second."""
    samples: np.ndarray = library("soxr").resample(wave, rate, new_rate)
    return samples.astype(np.float32)


def faster(wave: Float[np.ndarray, " samples"], factor: float) -> Float[np.ndarray, " _"]:
    """The waveform played faster by a factor, pitch included (speed perturbation, Ko et al. 2015)."""
    return wave if factor == 1 else resampled(wave, factor, 1.0)


def stretched(features: Float[np.ndarray, "t bands"], factor: float) -> Float[np.ndarray, "_ bands"]:
    """Features that take longer by a factor, by interpolation: the pitch stays (tempo perturbation, Ko et al.
    2015)."""
    frames = np.arange(len(features))
    positions = (np.arange(max(1, round(len(features) * factor))) + 0.5) / factor - 0.5
    interpolated: np.ndarray = np.stack([np.interp(positions, frames, band) for band in features.T], axis=1)
    return interpolated.astype(np.float32)


# Features


@functools.cache
def mel_filters(bands: int = BANDS) -> Float[np.ndarray, "bands f"]:
    """Triangles that are equally wide on Slaney's mel scale, linear up to 1,000 Hz and logarithmic above,
    each of area 1 over frequency (Slaney 1998)."""
    linear, octave = 200 / 3, math.log(6.4) / 27  # Hz of a mel below 1,000 Hz; logarithm of its factor above

    def hertz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, mel * linear, 1000 * np.exp((mel - 15) * octave))

    edges = hertz(np.linspace(0, 15 + math.log(RATE / 2 / 1000) / octave, bands + 2))
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * 2 / (edges[2:] - edges[:-2])[:, None]).astype(np.float32)


def _samples(frames: int) -> Int[np.ndarray, "t w"]:
    return HOP * np.arange(frames)[:, None] + np.arange(WINDOW)


def stft(wave: Float[Array, " samples"]) -> Array:
    """The spectrum `[frames, WINDOW // 2 + 1]` of windows (Hann) around every hop, complex. The wave is
    mirrored at its ends, so there are samples // HOP + 1 frames."""
    return _windowed(jnp.pad(wave, WINDOW // 2, mode="reflect"))


def _windowed(mirrored: Float[Array, " samples"]) -> Array:
    samples = _samples(1 + (len(mirrored) - WINDOW) // HOP)
    return jnp.fft.rfft(mirrored[samples] * _HANN, axis=-1)


def features_of(wave: Float[np.ndarray, " samples"], bands: int = BANDS) -> Float[np.ndarray, "t bands"]:
    """The natural logarithm of the power in each mel band, a frame every 10 ms, some minutes at once. One
    program computes all lengths within the same second."""
    mirrored, frames = np.pad(wave, WINDOW // 2, mode="reflect"), 1 + len(wave) // HOP
    pieces = []
    for start in range(0, frames, PIECE):
        piece = mirrored[start * HOP :][: (PIECE - 1) * HOP + WINDOW]
        logarithms = _logarithms(np.pad(piece, (0, -len(piece) % RATE)), bands)
        pieces.append(np.asarray(logarithms)[: min(PIECE, frames - start)])
    return np.concatenate(pieces)


@functools.partial(jax.jit, static_argnums=1)
def _logarithms(mirrored: Float[Array, " samples"], bands: int) -> Float[Array, "t bands"]:
    power = jnp.abs(_windowed(mirrored)) ** 2 @ jnp.asarray(mel_filters(bands)).T
    return jnp.log(jnp.maximum(power, FLOOR))


class Statistics(NamedTuple):
    """Number, mean and standard deviation of a recording's frames."""

    frames: int
    mean: Float[np.ndarray, " bands"]
    deviation: Float[np.ndarray, " bands"]

    @classmethod
    def of(cls, features: Float[np.ndarray, "t bands"]) -> "Statistics":
        """The statistics of a recording with these features."""
        return cls(len(features), features.mean(axis=0), features.std(axis=0))


def normalised(
    features: Float[np.ndarray, "t bands"], whole: Statistics | None = None
) -> Float[np.ndarray, "t bands"]:
    """With mean 0 and deviation 1 of each band over the frames, or over the whole recording that they are
    from."""
    _, mean, deviation = whole or Statistics.of(features)
    scaled: np.ndarray = (features - mean) / np.maximum(deviation, 1e-3)
    return scaled


def masked(
    features: Float[Array, "t bands"],
    length: Int[Array, ""] | int,
    key: Array,
    *,
    bands: int = 27,
    frames: int = 100,
    times: int = 2,
    most: float = 0.2,
) -> Float[Array, "t bands"]:
    """SpecAugment's masks (Park et al. 2019, section 2): bands and frames that are zero.

    Args:
      features: normalised, so that zero is the mean.
      length: the number of frames; those after them are padding.
      key: a random key.
      bands: most bands of a mask (F).
      frames: most frames of a mask (T).
      times: masks of each kind.
      most: largest part of the frames in a mask (p).
    """
    size, is_shown = features.shape, jnp.ones_like(features, bool)
    longest = jnp.minimum(frames, most * length)
    for number in range(times):
        for axis, whole, longest_of in ((1, size[1], bands), (0, length, longest)):
            long, offset = jax.random.uniform(jax.random.fold_in(key, 2 * number + axis), (2,))
            extent = jnp.floor(long * (jnp.floor(longest_of) + 1))
            start = jnp.floor(offset * (whole - extent + 1))
            index = jnp.arange(size[axis])
            hidden = (index >= start) & (index < start + extent)
            is_shown &= ~(hidden[None, :] if axis else hidden[:, None])
    return jnp.where(is_shown, features, 0)


# And back


def inverse_stft(spectrum: Array, samples: int) -> Float[Array, " samples"]:
    """The wave whose windows have a spectrum `[t, f]`, or come nearest to it (Griffin and Lim 1984, Eq.
    6)."""
    half, frames = WINDOW // 2, spectrum.shape[0]
    pieces = jnp.fft.irfft(spectrum, WINDOW, axis=-1) * _HANN
    indices = _samples(frames)
    length = max(samples + WINDOW, HOP * (frames - 1) + WINDOW)
    total = jnp.zeros(length).at[indices].add(pieces)
    weight = jnp.zeros(length).at[indices].add(jnp.broadcast_to(_HANN**2, pieces.shape))
    return (total / jnp.maximum(weight, 1e-8))[half : half + samples]


def griffin_lim(magnitude: Float[Array, "t f"], samples: int) -> Array:
    """A wave whose windows have these magnitudes: phases are estimated in turns (Griffin and Lim 1984, Eq.
    7), with the momentum of Perraudin et al. 2013."""
    key = jax.random.key(0)
    angle = jnp.exp(2j * jnp.pi * jax.random.uniform(key, magnitude.shape))

    def turn(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        angle, before = state
        rebuilt = stft(inverse_stft(magnitude * angle, samples))
        ahead = rebuilt + MOMENTUM * (rebuilt - before)
        return ahead / jnp.maximum(jnp.abs(ahead), 1e-16), rebuilt

    angle, _ = jax.lax.fori_loop(0, PHASE_ROUNDS, turn, (angle, jnp.zeros_like(angle)))
    return inverse_stft(magnitude * angle, samples)


def magnitudes(power: Float[Array, "t bands"]) -> Float[Array, "t f"]:
    """Magnitudes of frequencies that have this power in the mel bands: non-negative least squares, by
    multiplicative steps (Lee and Seung 2001)."""
    filters = jnp.asarray(mel_filters(power.shape[1]))
    target = power @ filters

    def update(_: int, estimate: Array) -> Array:
        return estimate * target / jnp.maximum(estimate @ filters.T @ filters, 1e-20)

    start = power @ (filters / jnp.maximum((filters**2).sum(axis=1, keepdims=True), 1e-20))
    return jnp.sqrt(jax.lax.fori_loop(0, 100, update, start + 1e-12))


@jax.jit
def waveform(features: Float[Array, "t bands"]) -> Float[Array, " samples"]:
    """The wave of log-mel features, by `griffin_lim`."""
    samples = HOP * (features.shape[0] - 1)
    return griffin_lim(magnitudes(jnp.exp(features)), samples)


def sound_of(features: Float[np.ndarray, "t bands"]) -> Float[np.ndarray, " samples"]:
    """`waveform` from -1 to 1; no samples if there are no frames. One program computes all lengths within the
    same second."""
    if not len(features):
        return np.zeros(0, np.float32)
    silence = np.full((-len(features) % (RATE // HOP), features.shape[1]), math.log(FLOOR), np.float32)
    wave = np.asarray(waveform(jnp.asarray(np.concatenate([features, silence]))))
    wave = wave[: HOP * (len(features) - 1)]
    return wave / max(1.0, float(np.abs(wave).max(initial=0)))


# The features of Whisper (Radford et al. 2022, section 2.2): a recording, then silence to a fixed length.


SILENT = math.log(FLOOR)
"""The features of silence."""
DYNAMICS = 8.0
"""How far bands may be below the loudest one, in powers of 10."""


def features_before_silence(
    wave: Float[np.ndarray, " samples"], bands: int, frames: int
) -> Float[np.ndarray, "t bands"]:
    """The frames of a wave that silence follows up to a number of frames, without those that are `SILENT`.
    The last frame, which is centred at the end of the silence, is left out."""
    silence = min(WINDOW, max(0, frames * HOP - len(wave)))
    return features_of(np.pad(wave, (0, silence)), bands)[:-1]


def scaled_to_peak(features: Float[np.ndarray, "t bands"]) -> Float[np.ndarray, "t bands"]:
    """Logarithms to base 10, at least those of the loudest band less `DYNAMICS`, plus 4, over 4."""
    logarithms = features / math.log(10)
    scaled: np.ndarray = (np.maximum(logarithms, logarithms.max(initial=SILENT) - DYNAMICS) + 4) / 4
    return scaled
