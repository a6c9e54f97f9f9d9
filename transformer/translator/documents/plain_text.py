"""Reads plain text: paragraphs, and items of lists."""

import itertools
import re
import textwrap
from collections import deque
from collections.abc import Iterator

import regex

from transformer.translator.documents.passages import Document, Mark, MarkedText, Passage

ADDRESS = regex.compile(r"https?://[^\s<>\"]*[^\s<>\".,;:!?)\]']|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+")
"""Addresses of pages and of people, which are copied. Those of people begin where their signs begin, so a
long run of them is read once."""
_ITEM = re.compile(r"\s*(?:[-*+•–]|\(?\d+[.)]|\(?[a-z]\))\s+")
_INDENT = re.compile(r"\s*")


def read_plain_text(text: str) -> Document:
    """The passages of a plain text. A paragraph ends before an empty line, before an item of a list and where
    the indentation changes; its lines are one text, which is wrapped as wide as they were."""
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
    following = " " * (_indent(others[0]) if others else len(opening))
    content = with_addresses(MarkedText(" ".join(line.strip() for line in lines)))
    source = "".join(lines).removesuffix(ending)

    def write(translation: MarkedText) -> str:
        if translation == content:
            return source
        text = translation.written(str)
        if not others:
            return text
        return textwrap.fill(
            text,
            width,
            initial_indent=opening,
            subsequent_indent=following,
            break_long_words=False,
            break_on_hyphens=False,
        ).removeprefix(opening)

    yield opening
    yield Passage(number, content, write, source)
    yield ending
