"""Where the marks of a sentence belong in its translation, by the attention of the model to its words.

A word of the translation belongs to the source word to which it attends most. What is marked in the
translation is the interval of words with the most that belong to marked words, less those in it that do not.
"""

import bisect
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from transformer.documents.passages import Mark, MarkedText
from transformer.documents.sentences import Span
from transformer.runtime.words import UNIT, begins_with_word, within_words, words

GLUE = "▁"
PUNCTUATION = 0.3
"""What punctuation counts, where a word counts 1."""


def token_spans(tokens: Sequence[str], text: str) -> list[Span]:
    """Where tokens stand in a text, which their tokenizer may have normalised. One that is not found has no
    characters."""
    spans = list[Span]()
    position = 0
    for token in tokens:
        surface = token.replace(GLUE, " ").removesuffix("@@").strip()
        start = text.find(surface, position, position + len(surface) + 16) if surface else -1
        if start < 0:
            spans.append((position, position))
        else:
            position = start + len(surface)
            spans.append((start, position))
    return spans


@dataclass(frozen=True)
class Aligned:
    """A sentence and its translation, and how much each unit of the second attends to those of the first."""

    source: str
    target: str
    source_units: tuple[Span, ...]
    target_units: tuple[Span, ...]
    weights: np.ndarray
    """[target units, source units]: attention."""

    @functools.cached_property
    def owners(self) -> np.ndarray:
        """[target units]: the source unit to which each attends most; -1: it attends to none."""
        if not self.weights.size:
            return np.zeros(0, int)
        return np.where(self.weights.any(axis=1), self.weights.argmax(axis=1), -1)

    @functools.cached_property
    def by_owner(self) -> list[tuple[int, Span]]:
        """The target units in the order of their owners."""
        return sorted(zip(self.owners.tolist(), self.target_units, strict=False))

    @functools.cached_property
    def inside_words(self) -> tuple[set[int], set[int]]:
        """As of `within_words`, of source and target."""
        return within_words(self.source), within_words(self.target)

    @functools.cached_property
    def are_words(self) -> list[bool]:
        """Whether each target unit is a word."""
        return [begins_with_word(self.target[start:end]) for start, end in self.target_units]


def aligned_words(
    source: str,
    target: str,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    attention: np.ndarray,
) -> Aligned:
    """The units of two texts, and how much each of the second attends to each of the first.

    Args:
      source: the sentence.
      target: its translation.
      source_tokens: subwords of the sentence.
      target_tokens: subwords of the translation.
      attention: [target tokens and <eos>, source tokens and <eos>].
    """
    weights = attention[: len(target_tokens), : len(source_tokens)]
    rows, row_units = _membership(target_tokens[: len(weights)], target)
    columns, column_units = _membership(source_tokens[: weights.shape[1]], source)
    return Aligned(source, target, column_units, row_units, rows @ weights @ columns.T)


def aligned_by_position(source: str, target: str) -> Aligned:
    """The units of two texts, as if each attended to the one at its place, where no attention is known."""
    source_units, target_units = (
        tuple(match.span() for match in UNIT.finditer(text)) for text in (source, target)
    )
    weights = np.zeros((len(target_units), len(source_units)))
    if source_units:
        rows = np.arange(len(target_units))
        weights[rows, rows * len(source_units) // max(len(target_units), 1)] = 1
    return Aligned(source, target, source_units, target_units, weights)


def last_columns(attention: np.ndarray, count: int) -> np.ndarray:
    """The attention to the last source tokens, as if nothing came before them: each row keeps its sum."""
    if attention.shape[1] <= count:
        return attention
    last = attention[:, -count:]
    sums = last.sum(axis=1, keepdims=True)
    return last * attention.sum(axis=1, keepdims=True) / np.maximum(sums, np.finfo(np.float32).tiny)


def _membership(tokens: Sequence[str], text: str) -> tuple[np.ndarray, tuple[Span, ...]]:
    """[units, tokens]: the share of each token that lies in each unit."""
    units = tuple(match.span() for match in UNIT.finditer(text))
    (first, last), (start, end) = (
        np.array(spans, int).reshape(-1, 2).T for spans in (units, token_spans(tokens, text))
    )
    common = np.minimum(end, last[:, None]) - np.maximum(start, first[:, None])
    return np.maximum(common, 0) / np.maximum(end - start, 1), units


def project(content: MarkedText, pair: Aligned) -> tuple[MarkedText, list[Mark]]:
    """The translation with the marks of the source, and those marks that found no words in it: they are
    written with the words of the source."""
    marks = content.marks
    parents = _parents(marks)
    placed = dict[int, Mark]()
    rooms = {-1: _Room(0, len(pair.target))}
    homeless = list[Mark]()
    outer_first = sorted(range(len(marks)), key=lambda index: marks[index].start - marks[index].end)
    for index in outer_first:
        mark, parent = marks[index], parents[index]
        if parent >= 0 and (parent not in placed or placed[parent].literal is not None):
            continue  # it is written there
        room = rooms[parent]
        span = _words_of(mark, pair, room) if mark.start < mark.end else None
        literal = mark.literal
        if span is None:
            position = _insertion(mark.start, pair, room)
            span = position, position
            if mark.start < mark.end:
                homeless.append(mark)
                literal = content.inside(index).written(str) if literal is None else literal
            before = " " if mark.start < mark.end else content.text[max(mark.start - 1, 0) : mark.start]
            literal = _apart(literal or "", before, pair.target, position)
        else:
            bisect.insort(room.taken, span)
        placed[index] = replace(mark, start=span[0], end=span[1], literal=literal)
        rooms[index] = _Room(*span)
    return MarkedText(pair.target, tuple(placed[index] for index in sorted(placed))), homeless


def _apart(literal: str, before: str, target: str, position: int) -> str:
    """What is written between two characters of a translation, with white space around it if its source has
    some."""
    core = literal.strip()
    if not core or literal.endswith("\n") or (core == literal and not before[-1:].isspace()):
        return literal
    is_led = position > 0 and not target[position - 1].isspace()
    is_followed = begins_with_word(target[position:])
    return " " * is_led + core + " " * is_followed


@dataclass(frozen=True)
class _Room:
    """Where a mark may be: in the mark around it, beside its siblings."""

    start: int
    end: int
    taken: list[Span] = field(default_factory=list)
    """What siblings have, in order."""

    def has(self, span: Span) -> bool:
        start, end = span
        index = bisect.bisect_left(self.taken, (start, start))
        beside = self.taken[max(index - 1, 0) : index + 1]
        is_free = not any(first < end and start < last for first, last in beside)
        return self.start <= start and end <= self.end and is_free


def _parents(marks: Sequence[Mark]) -> list[int]:
    """The index of the mark around each one; -1: none."""
    parents, around = list[int](), list[int]()
    for index, mark in enumerate(marks):
        while around and marks[around[-1]].depth >= mark.depth:
            around.pop()
        parents.append(around[-1] if around else -1)
        around.append(index)
    return parents


def _words_of(mark: Mark, pair: Aligned, room: _Room) -> Span | None:
    """Characters of the translation that belong to a mark. None: there are none that are free."""
    units = pair.target_units
    columns = _overlapping(pair.source_units, (mark.start, mark.end))
    weights = pair.weights[:, columns.start : columns.stop].sum(axis=1)
    if len(columns) == len(pair.source_units):
        is_owned = np.ones(len(units), bool)
    else:
        is_owned = (columns.start <= pair.owners) & (pair.owners < columns.stop)
    is_allowed = np.ones(len(units), bool)
    if mark.literal is not None:
        owned = [units[row] for row in np.flatnonzero(is_owned)]
        spans = _copies(mark, pair, room) or [
            span for span in _copies(mark, pair, room, re.IGNORECASE) if _overlapping(owned, span)
        ]
        if spans:
            return max(spans, key=lambda span: weights[list(_overlapping(units, span))].sum())
        if any(position in pair.inside_words[0] for position in (mark.start, mark.end)):
            return None  # which would take the place of a whole word
        is_allowed = is_owned | ~np.array(pair.are_words, bool)  # it takes the place of no other word
    is_free = [allowed and room.has(unit) for allowed, unit in zip(is_allowed.tolist(), units, strict=True)]
    if not any(is_free) or not columns:
        return None
    values = (np.where(is_owned, 1, -1) * np.where(pair.are_words, 1, PUNCTUATION)).tolist()
    best = _heaviest(values, is_free)
    if best is None and mark.literal is not None:
        return None
    if best is None:
        heaviest = int(np.where(is_free, weights, -1.0).argmax())
        best = heaviest, heaviest
    first, last = best
    # at its ends it has no more punctuation than in the source
    in_source = [begins_with_word(pair.source[slice(*pair.source_units[column])]) for column in columns]
    in_target = pair.are_words[first : last + 1]
    first += max(0, _punctuation_before(in_target) - _punctuation_before(in_source))
    last -= max(0, _punctuation_before(in_target[::-1]) - _punctuation_before(in_source[::-1]))
    if mark.literal is not None and _joins_words(mark, pair, columns, range(first, last + 1)):
        return None
    return units[first][0], units[last][1]


def _copies(mark: Mark, pair: Aligned, room: _Room, flags: int = 0) -> list[Span]:
    """Where the translation has what a mark copies, and could have it as the mark."""
    copied = re.escape(pair.source[mark.start : mark.end].strip())
    before, after = pair.inside_words
    inside = [mark.start in before, mark.end in before]
    return [
        match.span()
        for match in re.finditer(copied, pair.target, flags)
        if copied and room.has(match.span()) and [position in after for position in match.span()] == inside
    ]


def _joins_words(mark: Mark, pair: Aligned, columns: range, rows: range) -> bool:
    """Whether a hyphen or an apostrophe joins what a mark copies with another word, or words of its
    translation."""
    source, target = (
        [len(words(text[slice(*units[index])])) for index in indices]
        for text, units, indices in (
            (pair.source, pair.source_units, columns),
            (pair.target, pair.target_units, rows),
        )
    )
    start, end = pair.source_units[columns[0]][0], pair.source_units[columns[-1]][1]
    return start < mark.start or end > mark.end or max(target) > max(1, *source)


def _punctuation_before(is_word: Sequence[bool]) -> int:
    """Units of punctuation before the first word. 0: there is no word."""
    return is_word.index(True) if True in is_word else 0


def _overlapping(units: Sequence[Span], span: Span) -> range:
    """The indices of the units that share a character with a span."""
    first = bisect.bisect_right(units, span[0], key=lambda unit: unit[1])
    return range(first, max(first, bisect.bisect_left(units, span[1], key=lambda unit: unit[0])))


def _heaviest(values: Sequence[float], is_free: Sequence[bool]) -> Span | None:
    """The first and the last index of the free interval with the largest sum, if that is positive (Kadane's
    algorithm)."""
    best, best_sum = None, 0.0
    start, total = 0, 0.0
    for index, (value, free) in enumerate(zip(values, is_free, strict=True)):
        if total <= 0 or not free:
            start, total = index + (not free), 0.0
        if free:
            total += value
            if total > best_sum:
                best, best_sum = (start, index), total
    return best


def _insertion(position: int, pair: Aligned, room: _Room) -> int:
    """Where something belongs that stands before a character of the source: before the first unit of the
    translation that belongs to the word after it, also where a mark begins. It stays beside the word before
    it, as a reference to a footnote."""
    first = bisect.bisect_left(pair.source_units, position, key=lambda unit: unit[0])
    starts = (start for owner, (start, _) in pair.by_owner if owner >= first)
    start = next((start for start in starts if room.has((start, start))), room.end)
    beside = len(pair.target[:start].rstrip())
    before, after = pair.source[:position][-1:], pair.source[position : position + 1]
    is_beside = before and not before.isspace() and after.isspace() and room.has((beside, beside))
    return beside if is_beside else start
