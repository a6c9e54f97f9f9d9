"""A document as its readers give it, what stays as it is, and the passages that are translated; and the
reader of plain text."""

import functools
import itertools
import re
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import regex


@dataclass(frozen=True)
class Mark:
    """Characters of a text that are marked, such as a link, or that are copied, such as code."""

    start: int
    end: int
    """Characters from `start` up to `end`. The same: what is written between two characters."""
    opening: str = ""
    closing: str = ""
    """What is written before and after them."""
    literal: str | None = None
    """What is written in their place."""
    depth: int = 0
    """How many marks are around it."""
    continues: bool = False
    """Whether it is the rest of a mark that begins in the part of the text before."""


@dataclass(frozen=True)
class MarkedText:
    """A text with its marks, each before those in it. A line ends where the document has a line break."""

    text: str
    marks: tuple[Mark, ...] = ()

    def part(self, start: int, end: int, begin: int, is_last: bool) -> "MarkedText":
        """The characters from `start` up to `end`, with what is marked of them.

        Args:
          start: the first character.
          end: the one after the last.
          begin: where the part before it ended. What is written between two characters belongs to this part
            from there on.
          is_last: whether so does what is written after the last character.
        """

        def is_spaced(index: int) -> bool:
            return self.text[index : index + 1].isspace()

        first = begin + bool(begin and is_spaced(begin))
        beyond = end + is_spaced(end)

        def belongs(mark: Mark) -> bool:
            if mark.start < mark.end:
                return mark.start < end and mark.end > start
            return first <= mark.start < beyond or (is_last and mark.start >= beyond)

        def within(position: int) -> int:
            return min(max(position, start), end) - start

        marks, around = list[Mark](), list[bool]()
        for mark in self.marks:
            del around[mark.depth :]
            around.append(belongs(mark))
            if around[-1]:
                moved = replace(mark, start=within(mark.start), end=within(mark.end), depth=sum(around) - 1)
                marks.append(replace(moved, continues=mark.start < begin))
        return MarkedText(self.text[start:end], tuple(marks))

    def inside(self, index: int) -> "MarkedText":
        """The characters of a mark, with the marks in it."""
        outer = self.marks[index]
        _, inner = next(siblings(self.marks[index:]))
        marks = (replace(mark, start=mark.start - outer.start, end=mark.end - outer.start) for mark in inner)
        return MarkedText(self.text[outer.start : outer.end], tuple(marks))

    @property
    def unmarked(self) -> str:
        """What is not literal."""
        pieces, position = list[str](), 0
        for mark in sorted(self.marks, key=lambda mark: mark.start):
            if mark.literal is not None:
                pieces.append(self.text[position : mark.start])
                position = max(position, mark.end)
        return " ".join([*pieces, self.text[position:]])

    @property
    def blanked(self) -> str:
        """The text with spaces in place of what is literal."""
        pieces, position = list[str](), 0
        for mark in sorted(self.marks, key=lambda mark: mark.start):
            if mark.literal is not None:
                start = max(mark.start, position)
                pieces += self.text[position:start], " " * (mark.end - start)
                position = max(position, mark.end)
        return "".join([*pieces, self.text[position:]])

    def written(self, escape: Callable[[str], str]) -> str:
        """The text with its marks, where `escape` is applied to what is not literal."""

        def between(start: int, end: int, marks: Sequence[Mark]) -> str:
            pieces, position = list[str](), start
            for mark, inner in sorted(siblings(marks), key=lambda pair: pair[0].start):
                pieces.append(escape(self.text[position : mark.start]))
                content = mark.literal
                if content is None:
                    content = between(mark.start, mark.end, inner)
                pieces.append(mark.opening + content + mark.closing)
                position = max(position, mark.end)
            return "".join([*pieces, escape(self.text[position:end])])

        return between(0, len(self.text), self.marks)


def joined(parts: Iterable[tuple[MarkedText, str]]) -> MarkedText:
    """Parts of a text, each with what is between it and the next one, as one text. Marks that `part` has cut
    are whole again, if both pieces still meet."""
    text, before = "", ""
    marks, ending = list[Mark](), list[int]()
    for content, gap in parts:
        begin = len(text) + len(before)
        indices = list[int]()
        for mark in content.marks:
            shifted = replace(mark, start=mark.start + begin, end=mark.end + begin, continues=False)
            cut = (index for index in ending if mark.start == 0 and _is_same(marks[index], mark))
            index = next(cut, len(marks)) if mark.continues else len(marks)
            if index == len(marks):
                marks.append(shifted)
            else:
                marks[index] = replace(marks[index], end=shifted.end)
            indices.append(index)
        text += before + content.text
        before = gap
        ending = [index for index in indices if marks[index].end == len(text)]
    return MarkedText(text, tuple(marks))


def _is_same(mark: Mark, other: Mark) -> bool:
    """Whether two marks may be pieces of one."""
    signs = (mark.opening, mark.closing, mark.depth) == (other.opening, other.closing, other.depth)
    return signs and mark.literal is None and other.literal is None


def siblings(marks: Sequence[Mark]) -> Iterator[tuple[Mark, Sequence[Mark]]]:
    """The outer ones of some marks, each with those in it."""
    index = 0
    while index < len(marks):
        last = index + 1
        while last < len(marks) and marks[last].depth > marks[index].depth:
            last += 1
        yield marks[index], marks[index + 1 : last]
        index = last


@dataclass(frozen=True)
class Passage:
    """A text of a document that is translated for itself: a paragraph, a heading, a cell of a table."""

    line: int
    """Where it begins in the document, counted from 1."""
    content: MarkedText
    write: Callable[[MarkedText], str | None]
    """What the document has in its place, given its translation. None: that cannot be written there."""
    source: str = ""
    """What the document has there."""


@dataclass(frozen=True)
class Document:
    """What a reader makes of a text."""

    parts: Sequence[str | Passage]
    """Strings stay as they are."""
    unread: tuple[tuple[int, str], ...] = ()
    """Line and text of what the reader could not divide: it stays as it is."""

    @functools.cached_property
    def passages(self) -> list[Passage]:
        """What is translated, in order."""
        return [part for part in self.parts if isinstance(part, Passage)]

    def written(self, translations: Sequence[str]) -> str:
        """The document with what is written for each passage."""
        remaining = iter(translations)
        return "".join(part if isinstance(part, str) else next(remaining) for part in self.parts)


# Reads plain text: paragraphs, and items of lists.


ADDRESS = regex.compile(r"https?://[^\s<>\"]*[^\s<>\".,;:!?)\]']|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+")
"""Addresses of pages and of people, which are copied. Those of people begin where their signs begin, so a
long run of them is read once."""
_ITEM = re.compile(r"\s*(?:[-*+•–]|\(?\d+[.)]|\(?[a-z]\))\s+")
_INDENT = re.compile(r"\s*")


def read_plain_text(text: str) -> Document:
    """The passages of a plain text. A paragraph ends before an empty line, before an item of a list, where
    the indentation changes, and at a sign that ends a page or a paragraph, such as a form feed; its lines are
    one text, which is wrapped as wide as they were."""
    parts = list[str | Passage]()
    paragraph = list[tuple[int, str]]()

    def close() -> None:
        if paragraph:
            parts.extend(_paragraph(*paragraph[0], [line for _, line in paragraph[1:]]))
            paragraph.clear()

    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.strip():
            close()
            parts.append(line)
            continue
        if _ITEM.match(line) or (paragraph and _indent(line) != _hanging(paragraph)):
            close()
        paragraph.append((number, line))
        if not line.endswith(("\n", "\r")):
            close()
    close()
    return Document(parts)


def with_addresses(content: MarkedText) -> MarkedText:
    """The same text, whose addresses are copied, unless a part of one is marked."""
    marks, around = list[Mark](), list[Mark]()
    following = deque(content.marks)
    for match in ADDRESS.finditer(content.text):
        start, end = match.span()
        while following and (
            following[0].start < start
            or (following[0].start == start and following[0].end not in range(start + 1, end))
        ):
            mark = following.popleft()
            marks.append(mark)
            while around and around[-1].depth >= mark.depth:
                around.pop()
            around.append(mark)
        while around and around[-1].end <= start:
            around.pop()
        is_within = all(mark.end >= end and mark.literal is None for mark in around[-1:])
        if is_within and not (following and following[0].start < end):
            marks.append(Mark(start, end, literal=match[0], depth=around[-1].depth + 1 if around else 0))
    return MarkedText(content.text, (*marks, *following))


def _indent(line: str) -> int:
    match = _INDENT.match(line)
    assert match
    return match.end()


def _hanging(paragraph: list[tuple[int, str]]) -> int:
    """Where the next line of a paragraph begins: where the second did, else as the text of the first."""
    first = paragraph[min(1, len(paragraph) - 1)][1]
    item = _ITEM.match(first)
    return item.end() if item else _indent(first)


def _paragraph(number: int, first: str, others: list[str]) -> Iterator[str | Passage]:
    match = _ITEM.match(first) or _INDENT.match(first)
    assert match
    opening = match[0]
    lines = [first[match.end() :], *others]
    last = lines[-1]
    ending = last[len(last.rstrip()) :]
    width = max(map(len, itertools.chain([first.rstrip()], (line.rstrip() for line in others))))
    following = others[0][: _indent(others[0])] if others else ""
    line_end = first[len(first.rstrip("\r\n")) :]
    content = with_addresses(MarkedText(" ".join(line.strip() for line in lines)))
    source = "".join(lines).removesuffix(ending)

    def write(translation: MarkedText) -> str:
        if translation == content:
            return source
        text = translation.written(str)
        if not others:
            return text
        wrapped = textwrap.wrap(
            text,
            width,
            initial_indent=opening,
            subsequent_indent=following,
            expand_tabs=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return line_end.join(wrapped).removeprefix(opening)

    yield opening
    yield Passage(number, content, write, source)
    yield ending
