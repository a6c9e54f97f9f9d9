"""Divides a text into sentences, and overlong ones at clauses; and puts translations together again."""

import bisect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import regex

from transformer.runtime.machine import library
from transformer.runtime.words import ends_unspaced
from transformer.tasks.text import Hypothesis, chained

Span = tuple[int, int]
"""First character, and the one after the last."""
_CLAUSE = re.compile(r"[;:.!?,)]\s++|[。；：，、！？]\s*+|(?<!\s)\s++(?:[–—-]\s++|(?=\())")
"""The end of a clause. White space is read once: from its beginning, and whole."""
_SPACE = re.compile(r"\s+")
_MARK_INSIDE = regex.compile(r"[^\p{L}\p{M}\p{N}\s,'’-]\s*\S")
"""A mark that may end a sentence, and something after it."""
_MARKS = regex.compile(r"(?![,;:/*&@#%\\])[\p{Po}\p{Pi}\p{Pf}\p{Ps}\p{Pe}`]")
MOST_MARKS = 64
"""In a window, which the library reads at once and alone: its time grows as the quotation marks and brackets
times the characters, and in Danish it needs a third of a millisecond at each mark."""


def sentences(text: str, language: str) -> Iterator[Span]:
    """The sentences of a text, without the white space around them.

    Args:
      text: any text.
      language: its code, such as "en". An unknown one has the rules of English.

    Raises:
      UserError: the library is missing, and there may be several sentences.
    """
    end = 0
    several = _MARK_INSIDE.search(text.strip()) is not None
    for sentence in _segments(text, language or "en") if several else [text]:
        start, end = end, end + len(sentence)
        if words := sentence.strip():
            first = start + sentence.index(words)
            yield first, first + len(words)


def _segments(text: str, language: str) -> Iterator[str]:
    """The sentences of a text, with their white space. A window begins where a sentence does, and what its
    second half has is read again with what follows: quotations that are not longer are not divided. None is
    left before a quarter of its marks, so that no mark is read more than four times."""
    segment = library("sentencex").segment
    start, unfinished = 0, ""
    marks = [mark.end() for mark in _MARKS.finditer(text)]
    while start < len(text):
        first = bisect.bisect(marks, start) - 1
        at = (first + MOST_MARKS // part for part in (4, 2, 1))
        quarter, half, stop = (marks[index] if index < len(marks) else len(text) for index in at)
        segments = list(segment(language, text[start:stop]))
        ends = list(itertools.accumulate(map(len, segments), initial=start))
        count = len(segments)
        if stop < len(text):
            candidates = bisect.bisect(ends, half) - 1, count - 1
            count = next((count for count in candidates if ends[count] >= quarter), 0)
        if not count:  # no sentence ends in the window, but perhaps one of a few words
            unfinished += text[start:stop]
            start = stop
            continue
        yield unfinished + segments[0]
        yield from segments[1:count]
        start, unfinished = ends[count], ""
    if unfinished:
        yield unfinished


def clauses(text: str, size: Callable[[str], int], longest: int) -> Iterator[Span]:
    """A sentence in parts that a model can read: divided at the end of a clause, else at white space, where
    it is nearest to the middle; so are the parts. One without either is not divided.

    Args:
      text: the sentence.
      size: tokens of a text.
      longest: tokens of a part.
    """
    yield from _split_at_clauses(text, 0, len(text), size, longest)


def _split_at_clauses(
    text: str, start: int, end: int, size: Callable[[str], int], longest: int
) -> Iterator[Span]:
    """Halves a span at the clause or space nearest its middle until each part fits."""
    if size(text[start:end]) <= longest:
        yield start, end
        return
    middle = (start + end) / 2
    for pattern, margin in (_CLAUSE, (end - start) / 5), (_SPACE, 0):
        breaks = [match.end() for match in pattern.finditer(text, start, end)]
        inside = [boundary for boundary in breaks if start + margin < boundary < end - margin]
        if inside:
            boundary = min(inside, key=lambda boundary: abs(boundary - middle))
            left = start + len(text[start:boundary].rstrip())
            yield from _split_at_clauses(text, start, left, size, longest)
            yield from _split_at_clauses(text, boundary, end, size, longest)
            return
    yield start, end


# Texts of several sentences and lines: what is translated of them, and how a translation is put together.


@dataclass(frozen=True)
class DividedText:
    """A text as sentences, and what is between them."""

    sentences: tuple[str, ...]
    """The sentences, without the white space around them."""
    gaps: tuple[str, ...]
    """What is before the first sentence, between two, and after the last. Empty between two: their
    translations are joined as their script asks for it."""
    read: tuple[bool, ...]
    """Whether each sentence is translated: one without a letter is copied."""

    @property
    def is_sentence(self) -> bool:
        """Whether it is nothing but one sentence, or has none, as white space."""
        return not self.sentences or (len(self.sentences) == 1 and not any(self.gaps))


def joined(text: DividedText, outputs: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """The translations of a text, given those of its sentences: the n-th best has the n-th best of each
    sentence. Scores and log-probabilities add up. In tokens, ids, their scores and alignments each sentence
    ends with its <eos>; an alignment has a block for each.

    Args:
      text: as it was divided.
      outputs: of each sentence, best first.
    """
    count = max(map(len, outputs))
    padded = [[*some, *[some[-1]] * (count - len(some))] for some in outputs]
    return [_joined(text, parts) for parts in zip(*padded, strict=True)]


def _joined(text: DividedText, parts: Sequence[Hypothesis]) -> Hypothesis:
    written, starts = text.gaps[0], list[int]()
    sentences = zip(text.sentences, text.read, parts, text.gaps[1:], strict=True)
    for index, (sentence, is_read, part, gap) in enumerate(sentences, 1):
        starts.append(len(written))
        translation = part.text if is_read else sentence
        has_space = gap or index == len(parts) or ends_unspaced(translation)
        written += translation + (gap if has_space else " ")
    return chained(written, starts, parts)
