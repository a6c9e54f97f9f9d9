"""Where tokens begin and end in a recording. CTC has each at one or two positions somewhere in its sound, so
the rest is found by the pauses beside them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from transformer.data.features.audio import HOP, RATE
from transformer.data.features.pauses import LOUD, QUIET, SHARE

PAUSE, LONG_PAUSE = 0.03, 0.1
"""Seconds of silence, at least, that are a pause between two tokens; and before the first or after the last
one, where a shorter silence may be within a word."""
FAR = 0.5
"""Seconds from a token, at most, in which its beginning or its end is looked for."""
REACH, EDGE = 0.2, 0.12
"""Without a pause: seconds of the blanks between two tokens that belong to one of them, at most; and of those
before the first token and after the last."""

Span = tuple[float, float]
"""Seconds of a beginning and an end."""


def is_quiet(features: Float[np.ndarray, "t bands"]) -> Bool[np.ndarray, " t"]:
    """Which frames of a recording are silence: those whose bands are weaker, in the mean of their logarithms,
    than a share of the way from quiet frames to loud ones."""
    loudness = np.asarray(features).mean(axis=1)
    if not len(loudness):
        return np.zeros(0, bool)
    quiet, loud = np.percentile(loudness, (QUIET, LOUD))
    is_silent: np.ndarray = loudness < quiet + SHARE * (loud - quiet)
    return is_silent


def with_edges(spans: Sequence[Span], quiet: Bool[np.ndarray, " t"]) -> list[Span]:
    """When tokens begin and end: at the longest pause between two of them, or in the middle if there is none.

    Args:
      spans: of the positions at which CTC has them, in order.
      quiet: which frames of the recording, of 10 ms, are silence.
    """
    if not spans:
        return []
    length = len(quiet) * HOP / RATE
    starts, ends = (list(times) for times in zip(*spans, strict=True))
    for index, (end, start) in enumerate(zip(ends, starts[1:], strict=False)):
        reach = min((start - end) / 2, REACH)
        pauses = silences(quiet, end, start, PAUSE)
        longest = max(pauses, key=lambda pause: pause[1] - pause[0], default=(end + reach, start - reach))
        ends[index], starts[index + 1] = min(longest[0], end + FAR), max(longest[1], start - FAR)
    before = silences(quiet, starts[0] - FAR, starts[0], LONG_PAUSE)
    after = silences(quiet, ends[-1], ends[-1] + FAR, LONG_PAUSE)
    starts[0] = before[-1][1] if before else max(starts[0] - EDGE, 0.0)
    ends[-1] = after[0][0] if after else min(ends[-1] + EDGE, length)
    return list(zip(starts, ends, strict=True))


def silences(quiet: Bool[np.ndarray, " t"], start: float, end: float, shortest: float) -> list[Span]:
    """The silences between two moments, as far as they are between them, that have so many seconds or reach
    an end of the recording."""
    first, last = max(round(start * RATE / HOP), 0), min(round(end * RATE / HOP), len(quiet))
    changes = np.diff(np.concatenate([[False], quiet[first:last], [False]]).astype(np.int8))
    edges = first + np.flatnonzero(changes).reshape(-1, 2)
    return [
        (begins * HOP / RATE, ends * HOP / RATE)
        for begins, ends in edges.tolist()
        if (ends - begins) * HOP >= shortest * RATE or begins == 0 or ends == len(quiet)
    ]
