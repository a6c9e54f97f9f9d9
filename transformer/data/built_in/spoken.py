"""Spoken numbers without recordings: a small formant synthesiser, in which every speaker, tempo and noise is
drawn from a seed; and two corpora of numbers in digits: how they are pronounced, and spelled.

A voice is the sum of the harmonics of its pitch, each as loud as the resonances of a vocal tract make it
(Klatt 1980); fricatives and bursts are noise around a frequency. It is no natural speech, but it has what
recognition has to cope with: other pitches, tracts and tempi, sounds that run into each other, and noise.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from transformer.data.built_in.generated import SENTENCES, SHARES, pairs_of, split_of
from transformer.data.built_in.inflection import number
from transformer.runtime.errors import UserError

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
RATE = 16_000
FRAME = 80  # samples between the points at which sounds are described (5 ms)
HIGHEST = 7_600.0  # Hz; harmonics above it are left out


@dataclass(frozen=True)
class Sound:
    """What a phoneme sounds like."""

    seconds: float
    formants: tuple[float, float, float]
    """Resonances in Hz, of an average adult."""
    voice: float = 1.0
    noise: float = 0.0
    centre: float = 4_000.0
    """Centre frequency of the noise, in Hz."""
    width: float = 1_000.0


SOUNDS = {
    # vowels: formants as in Peterson and Barney 1952
    "i": Sound(0.14, (270, 2290, 3010)),
    "I": Sound(0.09, (390, 1990, 2550)),
    "E": Sound(0.11, (530, 1840, 2480)),
    "e": Sound(0.10, (460, 2050, 2600)),
    "a": Sound(0.11, (730, 1090, 2440)),
    "A": Sound(0.09, (640, 1190, 2390)),
    "O": Sound(0.13, (570, 840, 2410)),
    "o": Sound(0.09, (490, 910, 2350)),
    "u": Sound(0.15, (300, 870, 2240)),
    "U": Sound(0.07, (440, 1020, 2240)),
    "@": Sound(0.06, (500, 1500, 2500), voice=0.8),
    # consonants
    "w": Sound(0.07, (300, 650, 2200), voice=0.6),
    "r": Sound(0.07, (350, 1180, 1600), voice=0.7),
    "n": Sound(0.09, (280, 1700, 2600), voice=0.45),
    "v": Sound(0.06, (280, 1100, 2300), voice=0.4, noise=0.08, centre=5000, width=2500),
    "z": Sound(0.08, (280, 1700, 2600), voice=0.3, noise=0.3, centre=5500, width=900),
    "s": Sound(0.12, (280, 1700, 2600), voice=0.0, noise=0.55, centre=5800, width=900),
    "f": Sound(0.10, (280, 1100, 2300), voice=0.0, noise=0.15, centre=4500, width=2800),
    "T": Sound(0.09, (280, 1400, 2500), voice=0.0, noise=0.12, centre=5200, width=2200),
    "-": Sound(0.05, (400, 1600, 2500), voice=0.0),  # the closure before a burst
    "t": Sound(0.03, (400, 1800, 2600), voice=0.0, noise=0.6, centre=4200, width=1500),
    "k": Sound(0.04, (400, 1800, 2400), voice=0.0, noise=0.5, centre=2200, width=700),
    "d": Sound(0.05, (300, 1700, 2600), voice=0.3, noise=0.3, centre=3500, width=1500),
    "h": Sound(0.06, (500, 1400, 2500), voice=0.0, noise=0.1, centre=1800, width=1500),
    "l": Sound(0.07, (360, 1300, 2700), voice=0.6),
    " ": Sound(0.08, (500, 1500, 2500), voice=0.0),
}
"""Phonemes by the signs of `WORDS`."""
WORDS = dict(pairs_of(SENTENCES["phonemes"]))
"""The phonemes of each word of a number."""
DIGITS = dict(itertools.islice(WORDS.items(), 10))


@dataclass(frozen=True)
class Speaker:
    """A voice, and how it speaks."""

    pitch: float
    """Mean pitch, in Hz."""
    tract: float
    """Factor on all formants: the shorter the vocal tract, the higher."""
    tempo: float
    """Factor on the speed."""
    melody: float
    """How much the pitch falls during an utterance, as a part of it."""
    breath: float
    """Loudness of noise in the voice."""
    distance: float
    """Level of background noise below the speech, in dB."""

    @classmethod
    def drawn(cls, random: np.random.Generator) -> "Speaker":
        """Samples a speaker."""
        high = random.random() < 0.5
        return cls(
            pitch=random.uniform(165, 255) if high else random.uniform(85, 155),
            tract=random.uniform(1.05, 1.22) if high else random.uniform(0.88, 1.04),
            tempo=random.uniform(0.8, 1.3),
            melody=random.uniform(0.0, 0.35),
            breath=random.uniform(0.0, 0.05),
            distance=random.uniform(15, 45),
        )


ONE = Speaker(pitch=120, tract=1.0, tempo=1.0, melody=0.2, breath=0.01, distance=45)
"""The speaker of a corpus of one."""


def phonemes(words: Sequence[str]) -> str:
    """The phonemes of words, with short pauses."""
    return " ".join(WORDS[word] for word in words)


def durations(signs: str, speaker: Speaker, random: np.random.Generator) -> list[int]:
    """The length of each phoneme in frames of 5 ms, with the silence before and after all of them."""
    seconds = [SOUNDS[sign].seconds / speaker.tempo * random.uniform(0.8, 1.25) for sign in f" {signs} "]
    return [max(2, round(RATE * length / FRAME)) for length in seconds]


def word_times(signs: str, counts: Sequence[int]) -> list[tuple[float, float]]:
    """When each word begins and ends, in seconds; words have spaces between them."""
    ends = np.cumsum(counts) * FRAME / RATE
    pauses = [index for index, sign in enumerate(f" {signs} ") if sign == " "]
    return [(float(ends[a]), float(ends[b - 1])) for a, b in itertools.pairwise(pauses)]


def spoken(
    signs: str, speaker: Speaker, random: np.random.Generator, counts: Sequence[int] | None = None
) -> Float[np.ndarray, " samples"]:
    """Phonemes, spoken at 16,000 samples a second.

    Args:
      signs: of `SOUNDS`.
      speaker: who speaks.
      random: for durations, phases and noise.
      counts: the `durations`. None: drawn.
    """
    counts = durations(signs, speaker, random) if counts is None else counts
    sounds = [SOUNDS[sign] for sign in f" {signs} "]
    tract = [(*sound.formants, sound.voice, sound.noise, sound.centre, sound.width) for sound in sounds]
    described = _smooth(np.repeat(np.array(tract, np.float64), counts, axis=0))
    formants, (voice, noise, centre, width) = described[:, :3] * speaker.tract, described[:, 3:].T
    wave = _voiced(formants, voice, speaker, random)
    wave += 0.3 * _noisy(noise + speaker.breath * voice, centre, width, random)
    wave *= random.uniform(0.3, 0.9) / max(float(np.abs(wave).max()), 1e-6)
    level = float(np.sqrt((wave**2).mean())) * 10 ** (-speaker.distance / 20)
    return np.clip(wave + level * random.standard_normal(len(wave)), -1, 1).astype(np.float32)


def _smooth(described: np.ndarray) -> np.ndarray:
    """Sounds that run into each other within 40 ms."""
    window = np.hanning(10)[1:-1]
    padded = np.pad(described, ((4, 3), (0, 0)), mode="edge")
    return np.stack([np.convolve(x, window / window.sum(), "valid") for x in padded.T], axis=1)


def _voiced(
    formants: Float[np.ndarray, "frames 3"], voice: np.ndarray, speaker: Speaker, random: np.random.Generator
) -> np.ndarray:
    """The harmonics of the pitch, through the resonances."""
    frames = len(voice)
    samples = frames * FRAME
    course = 1 - speaker.melody * np.linspace(-0.5, 0.5, frames)
    wobble = 1 + 0.02 * np.sin(2 * np.pi * (random.random() + np.arange(frames) * FRAME / RATE * 4))
    pitch = speaker.pitch * course * wobble
    times, centres = np.arange(samples), (np.arange(frames) + 0.5) * FRAME
    phase = 2 * np.pi * np.cumsum(np.interp(times, centres, pitch)) / RATE
    wave = np.zeros(samples)
    widths = np.array([70.0, 110.0, 160.0])
    turn, turned = np.exp(1j * phase), np.ones(samples, complex)
    for harmonic in range(1, int(HIGHEST / pitch.min()) + 1):
        frequency = harmonic * pitch[:, None]
        ratio = frequency / formants
        resonance = 1 / np.sqrt((1 - ratio**2) ** 2 + (ratio * widths / formants) ** 2)
        loud = voice * resonance.prod(axis=1) / harmonic * (frequency[:, 0] < HIGHEST)
        turned *= turn  # exp(i * harmonic * phase): a product is faster than a sine
        shift = np.exp(1j * random.uniform(0, 2 * np.pi))
        wave += np.interp(times, centres, loud) * (turned.imag * shift.real + turned.real * shift.imag)
    return wave / max(float(np.abs(wave).max()), 1e-6)


def _noisy(
    loud: np.ndarray, centre: np.ndarray, width: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Noise around a frequency, in overlapping frames."""
    size = 2 * FRAME
    bins = np.fft.rfftfreq(size, 1 / RATE)
    shape = loud[:, None] * np.exp(-(((bins - centre[:, None]) / width[:, None]) ** 2) / 2)
    drawn = random.standard_normal((2, *shape.shape))
    pieces = np.fft.irfft(shape * (drawn[0] + 1j * drawn[1]), size) * np.hanning(size)
    wave = np.zeros((len(loud) + 1) * FRAME)
    for half in (0, 1):  # the two halves of each frame fall on two hops
        part = pieces[:, half * FRAME : (half + 1) * FRAME].reshape(-1)
        wave[half * FRAME : half * FRAME + len(part)] += part
    return 8 * wave[: len(loud) * FRAME]


# A built-in corpus in which spelling and sound differ: numbers in digits, and how they are pronounced.


PRONUNCIATION_VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
Pair = tuple[str, str]


def words_of(value: int) -> list[str]:
    """The English words of a number from 0 to 9,999."""
    return number(value)[0].replace("-", " ").split()


def drawn_number(split: str, chance: random.Random, digits: int = 4) -> int:
    """A number of a split, of 1 to `digits` digits. A hash of its digits decides in which split it is."""
    while True:
        value = chance.randrange(10 ** chance.randint(1, digits))
        if value < 10 or split_of(str(value)) == split:  # the digits are in all splits
            return value


def pronounced_pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields numbers and their phonemes endlessly, the same for the same arguments.

    Args:
      split: "train", "validation" or "test".
      seed: of the random numbers.

    Raises:
      UserError: there is no such split.
    """
    if split not in SHARES:
        raise UserError(f"no {split} split of the corpus pronunciation: there are {', '.join(SHARES)}")
    chance = random.Random(f"pronunciation {split} {seed}")
    while True:
        value = drawn_number(split, chance)
        yield str(value), phonemes(words_of(value))


# A built-in corpus in which source and target advance together: digits, read one by one and spelled letter
# by letter.
#
#     4 0 7        f o u r z e r o s e v e n
#
# Every digit is some letters, and nothing else in the output says which digit they belong to. So a model has
# to know where it is in the source, above all if a digit is repeated: 5 5 5 is f i v e f i v e f i v e.


SPELLING_VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
LENGTHS = range(1, 9)  # digits of a line
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def spelled(digits: Sequence[int]) -> Pair:
    """A line of digits, and the letters of their names."""
    return " ".join(map(str, digits)), " ".join("".join(NAMES[digit] for digit in digits))


def spelled_pairs(split: str, seed: int = 0, lengths: Sequence[int] = LENGTHS) -> Iterator[Pair]:
    """Yields digits and letters endlessly, the same for the same arguments. Lines are repeated, since there
    are few short ones.

    Args:
      split: "train", "validation" or "test". A hash of the digits decides in which split a line is.
      seed: of the random numbers.
      lengths: the numbers of digits to choose from.

    Raises:
      UserError: there is no such split.
    """
    if split not in SHARES:
        raise UserError(f"no {split} split of the corpus spelling: there are {', '.join(SHARES)}")
    chance = random.Random(f"spelling {split} {seed}")
    while True:
        digits = [chance.randint(0, 9) for _ in range(chance.choice(lengths))]
        source, target = spelled(digits)
        if split_of(source) == split:
            yield source, target
