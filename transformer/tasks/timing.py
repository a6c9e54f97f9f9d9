"""When each word was said, by the source positions of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from transformer.data.features.tokenizer import Tokenizer
from transformer.runtime.files import Json
from transformer.tasks.plain import Plain


@dataclass(frozen=True, eq=False)
class Word(Plain):
    """A word of an output, and when it was said."""

    text: str
    start: float
    """In seconds."""
    end: float

    def to_json(self, key: str = "word") -> Json:
        """As decode.py and transformer align write it: its text has this key."""
        return {key: self.text, "start": self.start, "end": self.end}


@dataclass(frozen=True, eq=False)
class Segment(Plain):
    """A part of an output, and when it was said."""

    text: str
    start: float
    """In seconds."""
    end: float


def segments(
    ids: Sequence[int], first_time: int, tokenizer: Tokenizer, seconds: float, end: float
) -> tuple[Segment, ...]:
    """The segments of an output with times among its tokens.

    Args:
      ids: the tokens.
      first_time: the id of time 0; all ids from it are times.
      tokenizer: of the output.
      seconds: from one time to the next.
      end: the length of the recording in seconds, for a last segment without an end.
    """
    parts: list[Segment] = []
    start = 0.0
    text: list[int] = []
    for index in (*ids, None):
        if index is not None and index < first_time:
            text.append(index)
            continue
        time = max(start, end) if index is None else round((index - first_time) * seconds, 3)
        if spelled := tokenizer.decode(text).strip(" "):
            parts.append(Segment(spelled, start, time))
        start, text = time, []
    return tuple(parts)


def spans(attention: Float[np.ndarray, "t s"]) -> list[tuple[int, int]]:
    """The first source position of each target token, and the one after its last: each position belongs to
    one token, tokens are in order, and the sum of the attention of tokens to their positions is as large as
    it can be (dynamic time warping, as in Whisper, Radford et al. 2022).

    Args:
      attention: of each target token, with at most as many rows as columns.
    """
    rows, columns = attention.shape
    best = np.full((rows, columns), -np.inf)
    best[0] = np.cumsum(attention[0])
    came = np.zeros((rows, columns), bool)  # whether the token before had the position before
    for row in range(1, rows):
        for column in range(row, columns):
            stayed, moved = best[row, column - 1], best[row - 1, column - 1]
            came[row, column] = moved > stayed
            best[row, column] = attention[row, column] + max(stayed, moved)
    reversed_spans = list[tuple[int, int]]()
    row = rows - 1
    end = columns
    for column in range(columns - 1, -1, -1):
        if column == 0 or came[row, column]:
            reversed_spans.append((column, end))
            row, end = row - 1, column
    return reversed_spans[::-1]


def timed(
    ids: tuple[int, ...], attention: Float[np.ndarray, "t s"], tokenizer: Tokenizer, seconds: float
) -> tuple[Word, ...]:
    """The words of an output, with the times of their tokens by attention; none if it has more tokens than
    positions.

    Args:
      ids: the tokens, then <eos>.
      attention: a row for each of them.
      tokenizer: of the output.
      seconds: from one source position to the next.
    """
    if len(ids) > attention.shape[1]:
        return ()
    times = [(start * seconds, end * seconds) for start, end in spans(attention)[:-1]]
    return words_in(ids[:-1], times, tokenizer)


def words_in(
    ids: Sequence[int], times: Sequence[tuple[float, float]], tokenizer: Tokenizer
) -> tuple[Word, ...]:
    """The words of a text, each from the beginning of its first token to the end of its last.

    Args:
      ids: the tokens.
      times: when each begins and ends, in seconds.
      tokenizer: of the text.
    """
    timed_words: list[Word] = []
    for index, (start, end) in enumerate(times):
        words = tokenizer.decode(list(ids[: index + 1])).split()
        began = len(words) > len(timed_words)
        if words:
            first = start if began else timed_words[-1].start
            timed_words[len(words) - 1 :] = [Word(words[-1], round(first, 3), round(end, 3))]
    return tuple(timed_words)
