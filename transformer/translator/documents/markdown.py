"""Reads Markdown: the parser says where text is, and all else of the file stays as it is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformer.translator.documents.inline import markdown_parser, marked_lines, to_markdown
from transformer.translator.documents.passages import Document, Mark, MarkedText, Passage
from transformer.translator.documents.plain_text import with_addresses

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)


def read_markdown(text: str) -> Document:
    """The passages of a Markdown document: paragraphs, headings, items of lists and cells of tables. Code,
    HTML between paragraphs, definitions of links and front matter stay as they are.

    Raises:
      UserError: the library is missing.
    """
    front = _FRONT_MATTER.match(text)
    begin = front.end() if front else 0
    body = text[begin:].replace("\r\n", "\n").replace("\r", "\n")
    lines = body.splitlines(keepends=True) if "\f" not in body else re.findall(r"[^\n]*\n|[^\n]+", body)
    first_line = text[:begin].count("\n") + 1
    parser, environment = markdown_parser(), dict[str, Any]()
    tokens = parser.parse(body, environment)
    reader = _Reader(lines, parser, environment, first_line)
    parts: list[str | Passage] = [text[:begin]]
    at = 0
    for index, token in enumerate(tokens):
        if token.type == "inline" and token.children:
            in_table = tokens[index - 1].type in ("th_open", "td_open")
            for start, end, content in reader.passages(token, in_table):
                parts += [body[at:start], *content]
                at = end
    return Document([*parts, body[at:]], tuple(reader.unread))


@dataclass
class _Reader:
    lines: Sequence[str]
    parser: Any
    environment: Mapping[str, Any]
    first_line: int

    def __post_init__(self) -> None:
        self.offsets = [0]
        for line in self.lines:
            self.offsets.append(self.offsets[-1] + len(line))
        self.read_up_to = 0
        self.unread = list[tuple[int, str]]()

    def passages(self, token: Any, in_table: bool) -> Iterator[tuple[int, int, list[str | Passage]]]:
        """Where the text of a block begins and ends, and what it has: passages, and what is between them."""
        spans = self._spans(token, in_table)
        if spans is None:
            self.unread.append((token.map[0] + self.first_line, token.content))
            return
        contents = list(marked_lines(token.children))
        kinds = [child.type for child in token.children]
        breaks = [kind == "hardbreak" for kind in kinds if kind in ("softbreak", "hardbreak")]
        firsts = [0, *(index for index, is_hard in enumerate(breaks, 1) if is_hard)]
        if len(spans) != len(breaks) + 1 or len(firsts) != len(contents):
            firsts, contents = [0], [_joined(contents)]
        parts = list[str | Passage]()
        for which, (first, content) in enumerate(zip(firsts, contents, strict=True)):
            if which:
                parts.append(self._between(spans[first - 1], spans[first]))
            number = self._line_of(spans[first][0])
            content = with_addresses(content)

            def write(translation: MarkedText) -> str:
                return to_markdown(translation, self.parser, self.environment, in_table)

            parts.append(Passage(number + self.first_line, content, write))
        yield spans[0][0], spans[-1][1], parts

    def _between(self, before: tuple[int, int], after: tuple[int, int]) -> str:
        """The end of a line with a hard break, and what the next one begins with."""
        text = "".join(self.lines[self._line_of(before[0]) : self._line_of(after[0]) + 1])
        begin = self.offsets[self._line_of(before[0])]
        return text[before[1] - begin : after[0] - begin]

    def _line_of(self, offset: int) -> int:
        low, high = 0, len(self.offsets) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.offsets[middle] <= offset else (low, middle)
        return low

    def _spans(self, token: Any, in_table: bool) -> list[tuple[int, int]] | None:
        """Where the lines of a block's text stand in the body. None: they are not found."""
        spans = list[tuple[int, int]]()
        line = token.map[0]
        for content in token.content.split("\n"):
            words = content.strip()
            if line >= len(self.lines):
                return None
            begin = max(self.read_up_to - self.offsets[line], 0)
            at = self.lines[line].find(words, begin)
            if at < 0 and in_table:
                words = words.replace("|", "\\|")
                at = self.lines[line].find(words, begin)
            if at < 0:
                return None
            hard = int(words.endswith("\\") and not words.endswith("\\\\"))
            start = self.offsets[line] + at
            spans.append((start, start + len(words) - hard))
            self.read_up_to = start + len(words)
            line += 1
        return spans


def _joined(contents: Sequence[MarkedText]) -> MarkedText:
    """Several lines as one."""
    text, marks = "", list[Mark]()
    for content in contents:
        text += " " * bool(text)
        marks += content.shifted(len(text))
        text += content.text
    return MarkedText(text, tuple(marks))
