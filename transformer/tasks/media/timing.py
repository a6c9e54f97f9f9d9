"""When each word was said, by the source positions of its tokens, and where a text may be divided in time and
over lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import regex
from jaxtyping import Float

from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.runtime.files import Json
from transformer.tasks.outputs import Plain

# Where a text may be divided in time and over lines: at spaces, and between the characters of scripts that
# write none between words.


_CHARACTER = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"
"""A character of a script that writes no spaces between words."""
_WIDE = r"[\u3000-\u303f\uff00-\uff60\uffe0-\uffee--[\p{L}\p{N}]]"
"""Punctuation as wide as such a character."""
_BEFORE = r"[\p{Ps}\p{Pi}\u0e40-\u0e44\u0ec0-\u0ec4]"
"""What is not divided from the character after it: opening brackets and quotation marks, some vowels of Thai
and Lao."""
_AFTER = (
    r"[\p{P}\p{M}\u0e30-\u0e33\u0e45\u0e46\u0eb0-\u0eb3\u0ec6"  # vowels of Thai and Lao
    r"ーゝゞヽヾ々ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶ｡｣､･ｧ-ｯｰﾞﾟ～%％°℃￠--[\p{Ps}\p{Pi}]]"
)
"""What is not divided from the character before it, as no line begins with it (JIS X 4051): punctuation,
marks, small letters of Japanese."""
_FEW = "{0,8}+"  # opening brackets in a row: any number would be looked through from each of them
_UNIT = regex.compile(
    rf"{_BEFORE}{_FEW}(?!{_AFTER}){_CHARACTER}{_AFTER}*"
    rf"|(?:(?={_WIDE}){_BEFORE}){_FEW}(?:(?!{_BEFORE}{_FEW}{_CHARACTER}|{_WIDE})\S)+(?:(?={_WIDE}){_AFTER})*"
    rf"|\S{_AFTER}*",
    regex.V1,
)
_JOINED = regex.compile(rf"{_CHARACTER}|{_WIDE}", regex.V1)


def units(text: str) -> list[str]:
    """The words of a text as spaces divide it; where a script writes none between words, its characters, each
    with the punctuation beside it."""
    words = text.split()
    return [unit for word in words for unit in _UNIT.findall(word)] if _JOINED.search(text) else words


def has_space(before: str, after: str, is_written: bool | None = None) -> bool:
    """Whether a space stands between two units that follow each other in a line: none between two characters
    of scripts without spaces, or their punctuation.

    Args:
      before: the first unit.
      after: the second one.
      is_written: whether the text has one. None: that is not known, and none stands beside such a character.
    """
    count = sum(_JOINED.match(side) is not None for side in (before[-1:], after[:1]))
    return not count if is_written is None else is_written and count < 2


Span = tuple[float, float]
"""Seconds of a beginning and an end."""
LEAST = 0.002
"""Seconds that a span has, so that its ends differ also in milliseconds."""
SHORTEST, SHORT = 0.1, 0.5
"""Seconds of a span inside a recording with which it keeps its times, and that it takes otherwise at most."""
TAIL = 64
"""Tokens that are spelled again for each token after them."""


@dataclass(frozen=True, eq=False)
class Word(Plain):
    """A word of an output, and when it was said."""

    text: str
    start: float
    """When the word begins, in seconds."""
    end: float

    def to_json(self, key: str = "word") -> Json:
        """The word as decode.py and transformer align write it: its text has this key."""
        return {key: self.text, "start": self.start, "end": self.end}


@dataclass(frozen=True, eq=False)
class Segment(Plain):
    """A part of an output, and when it was said."""

    text: str
    start: float
    """When the segment begins, in seconds."""
    end: float


Timed = TypeVar("Timed", Word, Segment)


def in_order(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    """Spans of what is said one after the other, in milliseconds: each ends after it begins, the next one
    begins then or later, and all are in a recording. What is outside it is cut off (models hear words in the
    silence that recordings are padded with). Where less than a tenth of a second would be left, a span takes
    as much time as it had from those beside it, half a second at most, if there is so much.

    Args:
      spans: in the order in which they are said.
      start: of the recording, or of the part in which they are said, in seconds.
      end: of the same.
    """
    first, last = math.ceil(round(1000 * start, 6)) / 1000, math.floor(round(1000 * end, 6)) / 1000
    room = last - first - LEAST * len(spans)
    if room < 0:  # for so many milliseconds
        width = (end - start) / len(spans)
        return [(start + index * width, start + (index + 1) * width) for index in range(len(spans))]
    inside = [min(stop, last) - max(begin, first) for begin, stop in spans]
    needed = [
        min(size if size >= SHORTEST else stop - begin, SHORT)
        for size, (begin, stop) in zip(inside, spans, strict=True)
    ]
    wishes = [max(size - LEAST, 0.0) for size in needed]
    share = min(room / max(sum(wishes), LEAST), 1.0)
    lengths = [LEAST + share * wish for wish in wishes]
    from_end = list[Span]()
    for (begin, stop), length in zip(reversed(spans), reversed(lengths), strict=True):
        stop = min(stop, last)
        from_end.append((min(begin, stop - length), stop))
        last -= length
    placed = list[Span]()
    for (begin, stop), length in zip(reversed(from_end), lengths, strict=True):
        begin = max(begin, first)
        first = max(stop, begin + length)
        placed.append((round(begin, 3), round(first, 3)))
    return placed


def moved(items: Sequence[Timed], offset: float, start: float, end: float) -> tuple[Timed, ...]:
    """Words or segments some seconds later, as `in_order` has them."""
    placed = in_order([(item.start + offset, item.end + offset) for item in items], start, end)
    return tuple(
        replace(item, start=begin, end=stop) for item, (begin, stop) in zip(items, placed, strict=True)
    )


def segments(
    ids: Sequence[int], first_time: int, tokenizer: Tokenizer, seconds: float, end: float
) -> tuple[Segment, ...]:
    """The segments of an output with times among its tokens, as `in_order` has them.

    Args:
      ids: the tokens.
      first_time: the id of time 0; all ids from it are times.
      tokenizer: of the output.
      seconds: from one time to the next.
      end: the length of the recording in seconds, for a last segment without an end.
    """
    spoken: list[Segment] = []
    start = 0.0
    text: list[int] = []
    for index in (*ids, None):
        if index is not None and index < first_time:
            text.append(index)
            continue
        time = max(start + SHORT, end) if index is None else (index - first_time) * seconds
        if spelled := tokenizer.decode(text).strip(" "):
            spoken.append(Segment(spelled, start, time))
        start, text = time, []
    return moved(spoken, 0.0, 0.0, end)


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
    ids: tuple[int, ...],
    attention: Float[np.ndarray, "t s"],
    tokenizer: Tokenizer,
    seconds: float,
    end: float = math.inf,
    first_time: int | None = None,
) -> tuple[Word, ...]:
    """The words of an output, with the times of their tokens by attention.

    Args:
      ids: the tokens, then <eos>.
      attention: a row for each of them.
      tokenizer: of the output.
      seconds: from one source position to the next.
      end: the length of the recording in seconds; positions after it are padding.
      first_time: the id of time 0, if there are times among the tokens; all ids from it are times.
    """
    end = min(end, attention.shape[1] * seconds)
    heard = attention[:, : max(math.ceil(end / seconds), 1)]
    finer = -(-len(ids) // heard.shape[1])  # at least a position for each token
    width = seconds / finer
    times = [(first * width, last * width) for first, last in spans(np.repeat(heard, finer, axis=1))]
    words = list[Word]()
    start = 0
    for index, token in enumerate(ids):
        if index == len(ids) - 1 or (first_time is not None and token >= first_time):
            words += words_in(ids[start:index], times[start:index], tokenizer)
            start = index + 1
    return moved(words, 0.0, 0.0, end)


def words_in(ids: Sequence[int], times: Sequence[Span], tokenizer: Tokenizer) -> tuple[Word, ...]:
    """The words of a text (`units`), each from the beginning of its first token to the end of its last. Words
    that one token begins share its time.

    Args:
      ids: the tokens.
      times: when each begins and ends, in seconds.
      tokenizer: of the text.
    """
    whole = units(tokenizer.decode(list(ids)))
    for tail in (TAIL, len(ids)):  # the second is exact where the spelling of a token depends on all before
        words = _words_in(ids, times, tokenizer, tail)
        if [word.text for word in words] == whole:
            break
    return words


def _words_in(ids: Sequence[int], times: Sequence[Span], tokenizer: Tokenizer, tail: int) -> tuple[Word, ...]:
    """As `words_in`, if the spelling of a token depends on those of the word before it, and of about so many
    tokens before that."""
    words, ended = list[Word](), list[Word]()
    first = 0  # of the tokens of `words`
    for index, (start, end) in enumerate(times):
        texts = units(tokenizer.decode(list(ids[first : index + 1])))
        if index - first >= tail and texts:
            alone = units(tokenizer.decode([ids[index]]))
            if alone and texts == [*(word.text for word in words), *alone]:
                ended, words, texts, first = ended + words, [], alone, index
        new = len(texts) - len(words)
        width = (end - start) / max(new, 1)
        if new <= 0 and texts:  # the last word grows
            words = [*words[: len(texts) - 1], replace(words[len(texts) - 1], end=end)]
        words += [Word("", start + number * width, start + (number + 1) * width) for number in range(new)]
        words = [replace(word, text=text) for word, text in zip(words, texts, strict=True)]
    return (*ended, *words)
