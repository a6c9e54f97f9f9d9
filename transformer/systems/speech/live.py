"""Recognition of sound while it arrives, by local agreement (Liu et al. 2020, section 3.1).

Every few moments the sound since the last pause is transcribed anew. A word is final when two transcripts in
a row agree on it and on all words before it, and it has ended; or when a pause ends the part. What follows is
tentative.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.data.features.audio import RATE
from transformer.data.features.pauses import GAP, Part, parts_of
from transformer.tasks.metrics.segmentation import is_unspaced

SHORTEST_STEP = 0.1
"""Seconds between two transcripts."""
BEFORE = 10.0
"""Seconds of sound before the last pause that tell how loud silence is."""


class LiveText(NamedTuple):
    """What was heard until now."""

    final: str
    """What is new of the text that does not change any more: append it."""
    tentative: str
    """What seems to follow."""
    seconds: float
    """How much sound has arrived."""


def live_texts(
    transcribe: Callable[[Float[np.ndarray, " samples"]], str],
    sound: Iterable[Float[np.ndarray, " _"]],
    longest: float,
    step: float = 1.0,
    pause: float = 0.5,
) -> Iterator[LiveText]:
    """Yields what was heard, after each step and at the end. Words are compared; in a language without spaces
    between them, which the first text with letters tells, characters.

    Args:
      transcribe: the text of a waveform of at most `longest` seconds.
      sound: samples as they arrive, 16,000 a second.
      longest: seconds that are transcribed at once; speech without a pause is cut.
      step: seconds of sound between two transcripts.
      pause: seconds of silence that end a part.
    """
    has_spaces: bool | None = None

    def words_of(part: Part) -> list[str]:
        nonlocal has_spaces
        text = transcribe(part.wave)
        if has_spaces is None and any(map(str.isalpha, text)):
            has_spaces = not is_unspaced([text])
        return list(text) if has_spaces is False else [f" {word}" for word in text.split()]

    heard, begin = np.zeros(0, np.float32), 0.0  # samples, and when the first of them came
    done, before, num_final, has_text = 0.0, list[str](), 0, False
    for block in _steps(sound, round(step * RATE)):
        heard = heard if block is None else np.concatenate([heard, block])
        length = len(heard) / RATE
        new, tentative = list[str](), list[str]()
        parts = list(parts_of([heard], longest, pause))
        for part in (part for part in parts if begin + part.spoken[1] > done):
            words = words_of(part)
            if block is None or part is not parts[-1] or part.spoken[1] + pause <= length:
                new += words[num_final:]
                done, before, num_final = (
                    begin + part.end,
                    before[len(words) :],
                    max(0, num_final - len(words)),
                )
            else:
                has_ended = part.spoken[1] + GAP <= length
                both = zip(before, words if has_ended else words[:-1], strict=False)
                same = itertools.takewhile(lambda pair: pair[0] == pair[1], both)
                agreed = max(num_final, len(list(same)))
                new += words[num_final:agreed]
                before, num_final, tentative = words, agreed, words[agreed:]
        text = "".join(new)
        final = text if has_text else text.removeprefix(" ")
        yield LiveText(final, "".join(tentative).removeprefix(" "), begin + length)
        has_text = has_text or bool(text)
        dropped = max(0, round((max(done, begin + length - longest) - BEFORE - begin) * RATE))
        begin, heard = begin + dropped / RATE, heard[dropped:]


def speed_of(sound: float, took: float) -> str:
    """How fast sound was heard, in words.

    Args:
      sound: its seconds.
      took: the seconds of hearing it, from the first block on.
    """
    factor = took / max(sound, 1e-9)
    return f"{sound:,.1f} s of sound in {took:.1f} s (real-time factor {factor:.3f}, compilation included)"


def _steps(
    sound: Iterable[Float[np.ndarray, " _"]], size: int
) -> Iterator[Float[np.ndarray, " samples"] | None]:
    """Samples in blocks of this size, the last of which is shorter, then None."""
    rest = np.zeros(0, np.float32)
    for some in sound:
        rest = np.concatenate([rest, some])
        while len(rest) >= size:
            yield rest[:size]
            rest = rest[size:]
    if len(rest):
        yield rest
    yield None
