"""What stands inside a paragraph of Markdown: its text and marks, and Markdown of these again."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from string import punctuation
from typing import Any

from transformer.translator.documents.passages import Mark, MarkedText
from transformer.translator.documents.plain_text import with_addresses
from transformer.translator.documents.syntax import Environment, copied

_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)[^>]*?(/?)>", re.DOTALL)
_SPECIAL = re.compile(r"[\\`*\[\]<~&$]|(?<!\w)_|_(?!\w)")
_PUNCTUATION = re.compile(f"[{re.escape(punctuation)}]")
_STARS = {"_": "*", "__": "**"}
_TAGS = {"**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "s"}
"""Of HTML, which mean the same as the signs, and may stand between any two letters."""
_BREAK = "\\\n"


@dataclass(frozen=True)
class Frame:
    """What stands around the text of a block where the parser reads it alone."""

    before: str = ""
    after: str = ""

    def read(self, markdown: str, parser: Any, environment: Environment) -> MarkedText | None:
        """The text of a block. None: the parser takes it for another one."""
        tokens = self.parsed(markdown, parser, environment)
        if tuple(token.type for token in tokens) != _types(self, parser):
            return None
        return marked_text(next(token for token in tokens if token.type == "inline"))

    def parsed(self, markdown: str, parser: Any, environment: Environment) -> Any:
        """The tokens of a document that has the block alone."""
        return parser.parse(self.before + markdown + self.after, copied(environment))


@functools.cache
def _types(frame: Frame, parser: Any) -> tuple[str, ...]:
    return tuple(token.type for token in frame.parsed("x", parser, {}))


FRAMES = {
    "paragraph": Frame(),
    "heading": Frame("# "),
    "underlined": Frame("", "\n==="),
    "th": Frame("| ", " |\n|---|"),
    "td": Frame("| ", " |\n|---|"),
    "dt": Frame("", "\n: x"),
    "admonition_title": Frame('!!! x "', '"'),
}
"""By the type of the block."""


def marked_text(token: Any) -> MarkedText:
    """The text of an inline token with its marks. Line breaks are "\\n"; other ends of lines are spaces."""
    return with_addresses(_Reading(token).content)


class _Reading:
    """Reads the children of an inline token."""

    def __init__(self, token: Any) -> None:
        self.source = token.content
        self.text = ""
        self.marks = list[Mark | None]()  # None: one that is still open
        self.opened = list[tuple[int, str, str, int]]()  # index, opening, closing, where it begins
        children = token.children or []
        closed = _closed_tags(children)
        for index, child in enumerate(children):
            self._read(child, closed.get(index, ""))
        self._end_line()
        self.content = MarkedText(self.text, tuple(filter(None, self.marks)))

    def _read(self, token: Any, tag: str) -> None:
        verbatim = self.source[slice(*token.meta.get("span", (0, 0)))]
        match token.type:
            case "text" | "text_special":
                self._add(token.content.replace("\n", " "))
            case "softbreak":
                self._add(" ")
            case "hardbreak":
                self._end_line()
                self.text += "\n"
            case "code_inline":
                self._copied(token.content.strip(), verbatim.replace("\n", " "))
            case "html_inline" if tag == "opens":
                self._open(token.content, "")
            case "html_inline" if tag == "closes":
                self._close(token.content, token.content)
            case "link_open" if token.markup == "autolink":
                self._open("<", "<")
            case "link_close" if token.markup == "autolink":
                index, _, _, begin = self.opened.pop()
                self.marks[index] = Mark(begin, len(self.text), literal=verbatim, depth=len(self.opened))
            case "link_open":
                start, end = token.meta["span"]
                self._open("[", _address(self.source, start, end, token.meta["label_end"]))
            case "link_close":
                self._close("", verbatim)
            case _ if token.type.endswith("_open"):
                self._open(token.markup, token.markup)
            case _ if token.type.endswith("_close"):
                self._close(token.markup, "")
            case _:  # an image, a tag without an end, a formula, a reference to a footnote, a template
                self._copied("", verbatim)

    def _add(self, text: str) -> None:
        """Adds text. White space after something that is written between two characters belongs to it, if
        other white space is before it."""
        last = self.marks[-1] if self.marks else None
        if last and last.literal is not None and last.start == last.end == len(self.text):
            is_spaced = not self.text or self.text[-1].isspace()
            rest = text.lstrip(" ")
            if is_spaced and last.depth == len(self.opened) and len(rest) < len(text):
                self.marks[-1] = replace(last, literal=last.literal + text[: len(text) - len(rest)])
                text = rest
        self.text += text

    def _end_line(self) -> None:
        """Removes white space at the end. What is written after it has it."""
        text = self.text
        end = at = max([len(text.rstrip(" ")), *(begin for *_, begin in self.opened)])
        self.text = text[:end]
        for index, mark in enumerate(self.marks):
            if mark is not None and mark.end > end:
                literal = mark.literal
                if literal is not None and mark.start == mark.end:
                    literal, at = text[at : mark.start] + literal, mark.start
                start = min(mark.start, end)
                self.marks[index] = replace(mark, start=start, end=end, literal=literal)

    def _copied(self, text: str, literal: str) -> None:
        begin = len(self.text)
        self.text += text
        self.marks.append(Mark(begin, len(self.text), literal=literal, depth=len(self.opened)))

    def _open(self, opening: str, closing: str) -> None:
        self.opened.append((len(self.marks), opening, closing, len(self.text)))
        self.marks.append(None)

    def _close(self, closing: str, verbatim: str) -> None:
        index, opening, ending, begin = self.opened.pop()
        depth = len(self.opened)
        if self.text[begin:].strip():
            self.marks[index] = Mark(begin, len(self.text), opening, ending or closing, depth=depth)
            return
        # without words: it is copied
        inner = (mark for mark in self.marks[index + 1 :] if mark)
        shifted = (replace(mark, start=mark.start - begin, end=mark.end - begin) for mark in inner)
        marked = MarkedText(self.text[begin:], tuple(shifted))
        content = marked.written(lambda text: text.replace("\n", _BREAK))
        self.text = self.text[:begin]
        literal = opening + content + (ending or closing)
        self.marks[index:] = [Mark(begin, begin, literal=literal, depth=depth)]


def _closed_tags(tokens: Sequence[Any]) -> dict[int, str]:
    """Which tags of HTML open and close something, at one depth."""
    pairs = dict[int, str]()
    levels: list[list[tuple[str, int]]] = [[]]
    for index, token in enumerate(tokens):
        if token.type.endswith("_open"):
            levels.append([])
        elif token.type.endswith("_close") and len(levels) > 1:
            levels.pop()
        elif token.type == "html_inline" and (tag := _TAG.fullmatch(token.content)):
            opened, name = levels[-1], tag[2].lower()
            if not tag[1] and not tag[3]:
                opened.append((name, index))
            elif tag[1] and name in (known for known, _ in itertools.islice(reversed(opened), MOST_OPEN)):
                while opened[-1][0] != name:
                    opened.pop()
                pairs |= {opened.pop()[1]: "opens", index: "closes"}
    return pairs


MOST_OPEN = 50
"""Tags of HTML that may be open at once; of others the last ones are paired."""


def _address(source: str, start: int, end: int, label_end: int) -> str:
    """What closes a link. Its text may change, so the label of its address is written, if that was its
    text."""
    after = source[label_end + 1 : end]
    return f"][{source[start + 1 : label_end]}]".replace("\n", " ") if after in ("", "[]") else f"]{after}"


def to_markdown(
    content: MarkedText,
    parser: Any,
    environment: Environment,
    block: str = "paragraph",
    breaks: Sequence[str] = (),
    line_end: str = "\n",
) -> str | None:
    """Markdown of a marked text, which the parser reads as this text again: the first of several ways to
    write it. Text is escaped, and tags stand for signs, only if it would be read otherwise. None:
    there is no such way.

    Args:
      content: the text.
      parser: reads it.
      environment: what it knows of addresses and footnotes.
      block: its type, of `FRAMES`.
      breaks: how the document writes each line break.
      line_end: how it writes the end of another line.
    """
    expected = _essence(content)
    is_cell = block in ("th", "td")
    for marked, escape in _ways(content):
        candidate = _written(marked, escape, itertools.repeat(_BREAK), "\n", is_cell)
        passage = FRAMES[block].read(candidate, parser, environment)
        if passage is not None and _essence(passage) == expected:
            endings = itertools.chain(breaks, itertools.repeat(_BREAK))
            return _written(marked, escape, endings, line_end, is_cell)
    return None


def _ways(content: MarkedText) -> Iterator[tuple[MarkedText, Any]]:
    yield content, str
    escapes = [lambda text: _SPECIAL.sub(r"\\\g<0>", text), lambda text: _PUNCTUATION.sub(r"\\\g<0>", text)]
    stars = _with_signs(content, {sign: (star, star) for sign, star in _STARS.items()})
    tags = _with_signs(content, {sign: (f"<{tag}>", f"</{tag}>") for sign, tag in _TAGS.items()})
    spaced = MarkedText(tags.text, tuple(_apart(tags.marks)))
    for escape in escapes:
        for way in (content, stars, tags, spaced):
            yield way, escape


def _with_signs(content: MarkedText, signs: dict[str, tuple[str, str]]) -> MarkedText:
    marks = (
        replace(mark, opening=signs[mark.opening][0], closing=signs[mark.opening][1])
        if mark.opening in signs
        else mark
        for mark in content.marks
    )
    return MarkedText(content.text, tuple(marks))


def _apart(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Marks with white space around what is copied."""
    for mark in marks:
        yield mark if mark.literal is None else replace(mark, literal=f" {mark.literal.strip()} ")


def _essence(content: MarkedText) -> str:
    """What two marked texts share if they are read alike."""

    def plain(mark: Mark) -> Mark:
        if mark.literal is not None:
            is_text = mark.literal == content.text[mark.start : mark.end]
            return mark if is_text else replace(mark, literal=f"\1{mark.literal}\1")
        tag = _TAGS.get(mark.opening) or mark.opening.strip("<>")
        closing = mark.closing if mark.opening == "[" else tag
        return replace(mark, opening=f"\2{tag}\3", closing=f"\2/{closing}\3")

    marked = MarkedText(content.text, tuple(map(plain, content.marks)))
    return "".join(marked.written(lambda text: text.replace("\n", "\4")).split())


def _written(content: MarkedText, escape: Any, breaks: Iterator[str], line_end: str, is_cell: bool) -> str:
    def lines(text: str) -> str:
        first, *others = text.split("\n")
        return escape(first) + "".join(next(breaks) + escape(other) for other in others)

    marks = (
        replace(
            mark,
            closing=mark.closing.replace("\n", line_end),
            literal=mark.literal and mark.literal.replace("\n", line_end),
        )
        for mark in content.marks
    )
    text = MarkedText(content.text, tuple(marks)).written(lines)
    return text.replace("|", "\\|") if is_cell else text
