"""A document as its readers give it: what stays as it is, and the passages that are translated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


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


@dataclass(frozen=True)
class MarkedText:
    """A text on one line. Of two marks one contains the other, or they share no character."""

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

        def belongs(mark: Mark) -> bool:
            if mark.start < mark.end:
                return mark.start < end and mark.end > start
            return begin <= mark.start < end or (is_last and mark.start >= end)

        def within(position: int) -> int:
            return min(max(position, start), end) - start

        marks = (
            replace(mark, start=within(mark.start), end=within(mark.end))
            for mark in self.marks
            if belongs(mark)
        )
        return MarkedText(self.text[start:end], tuple(marks))

    def shifted(self, by: int) -> tuple[Mark, ...]:
        """Its marks, where so many characters come before its text."""
        return tuple(replace(mark, start=mark.start + by, end=mark.end + by) for mark in self.marks)

    @property
    def unmarked(self) -> str:
        """What is not literal."""
        pieces, position = list[str](), 0
        for mark in sorted(self.marks, key=lambda mark: mark.start):
            if mark.literal is not None:
                pieces.append(self.text[position : mark.start])
                position = max(position, mark.end)
        return " ".join([*pieces, self.text[position:]])

    def written(self, escape: Callable[[str], str]) -> str:
        """The text with its marks, where `escape` is applied to what is not literal."""

        def between(start: int, end: int, marks: Sequence[Mark]) -> str:
            pieces, position = list[str](), start
            while marks:
                mark, *rest = marks
                inner = [other for other in rest if other.start < mark.end and other.end <= mark.end]
                marks = rest[len(inner) :]
                pieces.append(escape(self.text[position : mark.start]))
                content = mark.literal
                if content is None:
                    content = between(mark.start, mark.end, inner)
                pieces.append(mark.opening + content + mark.closing)
                position = mark.end
            return "".join([*pieces, escape(self.text[position:end])])

        return between(0, len(self.text), sorted(self.marks, key=lambda mark: (mark.start, -mark.end)))


@dataclass(frozen=True)
class Passage:
    """A text of a document that is translated for itself: a paragraph, a heading, a cell of a table."""

    line: int
    """Where it begins in the document, counted from 1."""
    content: MarkedText
    write: Callable[[MarkedText], str]
    """What the document has in its place, given its translation."""


@dataclass(frozen=True)
class Document:
    """What a reader makes of a text."""

    parts: Sequence[str | Passage]
    """Strings stay as they are."""
    unread: tuple[tuple[int, str], ...] = ()
    """Line and text of what the reader could not divide: it stays as it is."""

    @property
    def passages(self) -> list[Passage]:
        """What is translated, in order."""
        return [part for part in self.parts if isinstance(part, Passage)]

    def written(self, translations: Sequence[MarkedText]) -> str:
        """The document with a translation of each passage."""
        remaining = iter(translations)
        return "".join(part if isinstance(part, str) else part.write(next(remaining)) for part in self.parts)
