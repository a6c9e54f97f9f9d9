"""Reads Markdown: the parser says where text is, and all else of the file stays as it is."""

import bisect
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformer.translator.documents.inline import FRAMES, marked_text, to_markdown
from transformer.translator.documents.passages import Document, MarkedText, Passage
from transformer.translator.documents.syntax import UNREAD, Environment, markdown_parser

_FRONT_MATTER = re.compile(
    r"\A\ufeff?(?:---[ \t]*\n.*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\n.*?\n\+\+\+)[ \t]*(?:\n|\Z)", re.DOTALL
)
_PREFIXES = {
    "list_item": re.compile(r"\[[ xX]\][ \t]+"),  # a task
    "blockquote": re.compile(r"\[![\w-]+\][^\n]*(?:\n|\Z)"),  # an alert
}
_HASHES = re.compile(r"#{1,6}[ \t]*")
_PIPE = re.compile(r"(?<!\\)\|")


def read_markdown(text: str) -> Document:
    """The passages of a Markdown document: paragraphs, headings, items of lists, cells of tables, terms and
    footnotes. Code, HTML between paragraphs, definitions of links, formulas, templates and front matter stay
    as they are.

    Raises:
      UserError: a library is missing.
    """
    source = _Source(text)
    front = _FRONT_MATTER.match(source.normal)
    begin = front.end() if front else 0
    parser, environment = markdown_parser(), Environment()
    tokens = parser.parse(source.normal[begin:], environment)
    reader = _Reader(source, begin, parser, environment)
    parts, at = list[str | Passage](), 0
    for start, end, passage in reader.passages(tokens):
        parts += [text[at:start], passage]
        at = end
    return Document([*parts, text[at:]], tuple(reader.unread))


class _Source:
    """A document with any ends of lines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.normal = re.sub(r"\r\n?", "\n", text).replace("\0", "\ufffd")
        """The same as the parser has it."""
        pairs = (match.start() for match in re.finditer("\r\n", text))
        self._pairs = [start - index for index, start in enumerate(pairs)]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Where characters of the parser's text stand in the document."""
        first, last = (offset + bisect.bisect_left(self._pairs, offset) for offset in (start, end))
        return first, last


@dataclass
class _Reader:
    source: _Source
    begin: int
    """Where the parser's text begins in that of the source."""
    parser: Any
    environment: Environment

    def __post_init__(self) -> None:
        self.unread = list[tuple[int, str]]()
        self.first_line = self.source.normal.count("\n", 0, self.begin) + 1

    def passages(self, tokens: Sequence[Any]) -> Iterator[tuple[int, int, Passage]]:
        """Where the text of each block begins and ends, and its passage."""
        before, column = ["", ""], 0
        for token in tokens:
            if token.type == UNREAD:
                self._not_read(token)
            elif token.type == "inline":
                column += 1
                yield from self._passage(token, before, column - 1)
            if token.type == "tr_open":
                column = 0
            is_underlined = token.type == "heading_open" and token.markup in ("=", "-")
            before = [before[1], "underlined" if is_underlined else token.type.removesuffix("_open")]

    def _not_read(self, token: Any) -> None:
        if any(map(str.isalpha, token.content)):
            self.unread.append((token.map[0] + self.first_line, token.content))

    def _passage(self, token: Any, before: Sequence[str], column: int) -> Iterator[tuple[int, int, Passage]]:
        block = before[1]
        starts = [start + self.begin for start in token.meta["starts"]]
        line = token.map[0] + self.first_line
        prefix = _PREFIXES[before[0]].match(token.content) if before[0] in _PREFIXES else None
        if prefix and block == "paragraph":
            num_lines = prefix[0].count("\n")
            starts = starts[num_lines:] or starts[-1:]
            starts[0] += 0 if num_lines else prefix.end()
            line += num_lines
            (token,) = self.parser.parseInline(token.content[prefix.end() :], self.environment)
        content = marked_text(token)
        if not content.text and not content.marks:
            return
        spans = self._spans(token.content, starts, block, column)
        if spans is None:
            self._not_read(token)
            return
        start, end = self.source.original(spans[0][0], spans[-1][1])
        gaps = [
            self.source.text[slice(*self.source.original(last, first))]
            for (_, last), (first, _) in itertools.pairwise(spans)
        ]
        text = self.source.text[start:end]
        breaks = [
            _break(token.content, child.meta["span"][0], gaps)
            for child in token.children
            if child.type == "hardbreak"
        ]
        line_end = gaps[0].lstrip(" \\") if gaps else "\n"

        def write(translation: MarkedText) -> str | None:
            if translation == content:
                return text
            return to_markdown(translation, self.parser, self.environment, block, breaks, line_end)

        yield start, end, Passage(line, content, write, text)

    def _spans(
        self, content: str, starts: Sequence[int], block: str, column: int
    ) -> list[tuple[int, int]] | None:
        """Where the lines of a block's text stand in the parser's text. None: they are not found."""
        if block not in FRAMES:
            return None
        ends = (self.source.normal.find("\n", start) for start in starts)
        rows = [
            self.source.normal[start : len(self.source.normal) if end < 0 else end]
            for start, end in zip(starts, ends, strict=True)
        ]
        first = rows[0]
        match block:
            case "heading":
                offset = _end(_HASHES, first)
            case "th" | "td":
                begins = _cells(first)
                offset = begins[column] if column < len(begins) else len(first)
                content = content.replace("|", "\\|")
            case "admonition_title":
                offset = first.rfind(f'"{content}"') + 1
            case _:
                offset = 0
        rows[0] = first[offset:]
        spans = list[tuple[int, int]]()
        for row, start, text in zip(
            rows, (starts[0] + offset, *starts[1:]), content.split("\n"), strict=True
        ):
            words = text.strip()
            at = len(row) - len(row.lstrip())
            is_whole = block in ("paragraph", "underlined", "dt")
            if not row.startswith(words, at) or (is_whole and row.strip() != words):
                return None
            spans.append((start + at, start + at + len(words)))
        return spans


def _break(content: str, start: int, gaps: Sequence[str]) -> str:
    """How a line break is written: a sign, or white space, and what is between the two lines."""
    gap = gaps[content.count("\n", 0, start)]
    space = " " * content[:start].endswith((" ", "\n"))
    return f"{space}\\{gap}" if content[start] == "\\" else gap


def _end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else 0


@functools.lru_cache(maxsize=1)  # all cells of a row come one after the other
def _cells(row: str) -> list[int]:
    """Where the cells of a table begin in their row."""
    pipes = [match.end() for match in _PIPE.finditer(row)]
    return pipes if row.startswith("|") else [0, *pipes]
