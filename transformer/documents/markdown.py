"""Reads Markdown: the parser says where text is, what stands inside a paragraph becomes text and marks, and
all else of the file stays as it is."""

import bisect
import functools
import html
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from string import punctuation
from typing import Any

from transformer.documents.passages import Document, Mark, MarkedText, Passage, with_addresses
from transformer.documents.syntax import LEVELS, UNREAD, Environment, copied, markdown_parser

# What stands inside a paragraph of Markdown: its text and marks, and Markdown of these again.


_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*+)[^>]*?(/?)>", re.DOTALL)
_SPECIAL = re.compile(r"[\\`*\[\]<~&$]|(?<!\w)_|_(?!\w)")
_PUNCTUATION = re.compile(f"[{re.escape(punctuation)}]")
_STARS = {"_": "*", "__": "**"}
_TAGS = {"**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "s"}
"""HTML elements that mean the same as the signs, and may stand between any two letters."""
_BREAK, _BREAK_TAG = "\\\n", "<br />"
_ITEM = re.compile(r"\n *(?:[-+*]|\d{1,9}[.)])(?:\s|\Z)")
"""What begins a list after a block that ends there, and may stand inside a paragraph."""
_LINE_END = re.compile(r"[\r\n].*", re.DOTALL)
_BREAK_TAGS = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TEXTS = {"text", "text_special", "code_inline"}
_AT_EDGE = "break at an edge"
"""The type of a line break before the first or after the last text of a paragraph."""


@dataclass(frozen=True)
class Frame:
    """What stands around the text of a block where the parser reads it alone."""

    before: str = ""
    after: str = ""
    index: int = 0
    """Of the block among those with text."""

    def read(self, markdown: str, parser: Any, environment: Environment) -> MarkedText | None:
        """The text of a block. None: the parser takes it for another one."""
        tokens = self.parsed(markdown, parser, environment)
        if tuple(token.type for token in tokens) != _types(self, parser):
            return None
        return marked_text([token for token in tokens if token.type == "inline"][self.index])

    def parsed(self, markdown: str, parser: Any, environment: Environment) -> Any:
        """The tokens of a document that has the block alone."""
        return parser.parse(self.before + markdown + self.after, copied(environment))


@functools.lru_cache(maxsize=64)
def _types(frame: Frame, parser: Any) -> tuple[str, ...]:
    return tuple(token.type for token in frame.parsed("x", parser, {}))


ROW = "row"
"""The first cell of a row without a sign before it, which could begin another block."""
FRAMES = {
    "paragraph": Frame(),
    "heading": Frame("# "),
    "underlined": Frame("", "\n---"),
    "th": Frame("| ", " |\n|---|"),
    "td": Frame("| ", " |\n|---|"),
    ROW: Frame("| x |\n|---|\n", " | x", 1),
    "dt": Frame("", "\n: x"),
    "admonition_title": Frame('!!! x "', '"'),
}
"""What stands around a block of each type."""


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
        texts = [i for i, child in enumerate(children) if child.type in _TEXTS and child.content.strip()]
        first, last = (texts[0], texts[-1]) if texts else (0, 0)
        for index, child in enumerate(children):
            is_tag = child.type == "html_inline" and _BREAK_TAGS.fullmatch(child.content)
            if is_tag and first < index < last:
                is_alone = children[index - 1].nesting > 0 and children[index + 1].nesting < 0
                child.type = child.type if is_alone else "hardbreak"
            elif child.type == "hardbreak" and not first < index < last:
                child.type = _AT_EDGE
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
            case _ if token.type == _AT_EDGE:
                self._copied("", _BREAK)
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
        end = position = max([len(text.rstrip(" ")), *(begin for *_, begin in self.opened)])
        self.text = text[:end]
        first = len(self.marks)
        while first and not self._is_before(self.marks[first - 1], end):
            first -= 1
        for index, mark in enumerate(self.marks[first:], first):
            if mark is not None and mark.end > end:
                literal = mark.literal
                if literal is not None and mark.start == mark.end:
                    literal, position = text[position : mark.start] + literal, mark.start
                start = min(mark.start, end)
                self.marks[index] = replace(mark, start=start, end=end, literal=literal)

    def _is_before(self, mark: Mark | None, end: int) -> bool:
        """Whether a mark, and so all before it, ends before a character."""
        return mark is not None and mark.depth <= len(self.opened) and mark.end <= end

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
        content = marked.written(_blank)
        self.text = self.text[:begin]
        literal = opening + content + (ending or closing)
        self.marks[index:] = [Mark(begin, begin, literal=literal, depth=depth)]


def _blank(text: str) -> str:
    """Markdown of white space: signs of emphasis do not stand beside what is more than spaces."""
    written = {" ": " ", "\n": f"{_BREAK_TAG} "}
    return "".join(written.get(sign, f"&#{ord(sign)};") for sign in text)


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
    edges: tuple[str, str] = ("", ""),
    following: str = "",
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
      edges: what it has directly before and after the text in the block, which is blank.
      following: the lines after a paragraph, if they could make a table of it.
    """
    expected = _essence(content)
    frame = replace(FRAMES[block], after=following) if following else FRAMES[block]
    before, after = edges
    is_cell = block in ("th", "td", ROW)
    in_doubt = itertools.repeat(_BREAK if block in ("paragraph", "underlined") else _BREAK_TAG)
    if not all(map(str.strip, content.text.split("\n"))):  # white space alone would end the paragraph
        breaks = [sign if re.match(r" *[\\<]", sign) else f"\\{sign.lstrip(' ')}" for sign in breaks]
    read_breaks = list(map(_as_read, breaks))
    copies_item = any(_ITEM.search(mark.literal or mark.closing) for mark in content.marks)
    for marked, escape in _ways(content):
        candidate = _written(marked, escape, itertools.chain(read_breaks, in_doubt), "\n", is_cell)
        if not copies_item and _ITEM.search(candidate):
            continue
        passage = frame.read(before + candidate + after, parser, environment)
        if passage is not None and _essence(passage) == expected:
            return _written(marked, escape, itertools.chain(breaks, in_doubt), line_end, is_cell)
    return None


def _ways(content: MarkedText) -> Iterator[tuple[MarkedText, Any]]:
    yield content, str
    escapes = [lambda text: _SPECIAL.sub(r"\\\g<0>", text), lambda text: _PUNCTUATION.sub(r"\\\g<0>", text)]
    stars = _with_signs(content, {sign: (star, star) for sign, star in _STARS.items()})
    tags = _with_signs(content, {sign: (f"<{tag}>", f"</{tag}>") for sign, tag in _TAGS.items()})
    spaced = MarkedText(tags.text, tuple(_apart(tags.marks)))
    as_text = (mark for mark in tags.marks if mark.literal != content.text[mark.start : mark.end])
    unaddressed = MarkedText(tags.text, tuple(as_text))  # an address may end with signs
    for escape in escapes:
        for way in (content, stars, tags, spaced, unaddressed):
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
        if mark.literal == _BREAK:
            return replace(mark, literal="\4")
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
    text = MarkedText(content.text, tuple(marks)).written(lines).strip(" ")
    return text.replace("|", "\\|") if is_cell else text


_FRONT_MATTER = re.compile(
    r"\A\ufeff?(?:---[ \t]*\n.*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\n.*?\n\+\+\+)[ \t]*(?:\n|\Z)", re.DOTALL
)
_PREFIXES = {
    "list_item": re.compile(r"\[[ xX]\][ \t]+"),  # a task
    "blockquote": re.compile(r"\[![\w-]+\][+-]?(?:[ \t]*(?:\n|\Z)|[ \t]+)"),  # an alert
}
_HASHES = re.compile(r"#{1,6}[ \t]*")
_PIPE = re.compile(r"(?<!\\)\|")
_ROW_END = re.compile(r"[ \t]*(?:\n|\Z)")
_DELIMITERS = re.compile(r"[ \t]*\n[ \t>]*+([-:|][-:| \t]*+)\n[ \t>]*+([-:|][-:| \t]*+)(?:\n|\Z)")
"""The end of a paragraph before a table whose first row looks like the signs after one."""


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
    parts, position = list[str | Passage](), 0
    for start, end, passage in reader.passages(tokens):
        parts += [text[position:start], passage]
        position = end
    return Document([*parts, text[position:]], tuple(reader.unread))


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
            if before[0] == "blockquote" and not num_lines:
                _keep_first_line(token)
        content = marked_text(token)
        if not content.text and not content.marks:
            return
        before, after = _blank_edges(token.content)
        if content.text.strip():
            first = len(content.text) - len(content.text.lstrip(_WHITE)) if before else 0
            last = len(content.text.rstrip(_WHITE)) if after else len(content.text)
            content = content.part(first, last, 0, True)
        spans = self._spans(token.content, starts, block, column)
        if block == "admonition_title" and '"' not in self.source.normal[starts[0] :].partition("\n")[0]:
            return  # the parser's own title, which is not in the document
        if spans is None or any(mark.depth > LEVELS for mark in content.marks):
            self._not_read(token)
            return
        start, end = self.source.original(spans[0][0], spans[-1][1])
        gaps = [
            self.source.text[slice(*self.source.original(last, first))]
            for (_, last), (first, _) in itertools.pairwise(spans)
        ]
        text = self.source.text[start:end]
        breaks = [
            _break(token.content, child.meta["span"], gaps)
            for child in token.children
            if child.type == "hardbreak"
        ]
        line_end = gaps[0].lstrip(" \\") if gaps else "\n"
        is_cell = block in ("th", "td")
        is_first = is_cell and column == 0 and spans[0][0] == starts[0]
        is_edge = is_first or (is_cell and _ROW_END.match(self.source.normal, spans[-1][1]))
        is_tight = is_cell and self.source.normal.startswith("|", spans[-1][1])
        following = self._following(token.content, spans[-1][1]) if block == "paragraph" else ""
        frame = block
        if is_first and FRAMES[ROW].read(token.content.replace("|", "\\|"), self.parser, self.environment):
            frame = ROW

        def write(translation: MarkedText) -> str | None:
            if translation == content:
                return text
            written = to_markdown(
                translation,
                self.parser,
                self.environment,
                frame,
                breaks,
                line_end,
                (before, after),
                following,
            )
            if written is None or (is_edge and not written):  # the row would have a cell less
                return None
            space = " " * (is_tight and written.endswith("\\"))  # it would make the end of the cell a sign
            return before + written + after + space

        yield start, end, Passage(line, content, write, text)

    def _following(self, content: str, end: int) -> str:
        """The lines after a paragraph that ends here, if they could make a table of it."""
        match = _DELIMITERS.match(self.source.normal, end)
        lines = f"\n{match[1]}\n{match[2]}" if match else ""
        frame = Frame(after=lines)
        is_before_table = lines and "table_open" in _types(frame, self.parser)
        return lines if is_before_table and frame.read(content, self.parser, self.environment) else ""

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
            indent = len(row) - len(row.lstrip())
            is_whole = block in ("paragraph", "underlined", "dt")
            if not row.startswith(words, indent) or (is_whole and row.strip() != words):
                return None
            spans.append((start + indent, start + indent + len(words)))
        return spans


def _keep_first_line(token: Any) -> None:
    """The text after the sign of an alert, on its line, is a title for some readers: it is not joined with
    the next line."""
    for index, child in enumerate(token.children):
        if child.type == "softbreak" and "\n" not in token.content[: child.meta["span"][0]]:
            before, after = token.children[:index], token.children[index + 1 :]
            if _has_text(reversed(before)) and _has_text(after):
                child.type = "hardbreak"


def _has_text(tokens: Iterable[Any]) -> bool:
    """Whether text is before the first line break."""
    for token in tokens:
        if token.type in _TEXTS and token.content.strip():
            return True
        if token.type == "hardbreak" or _BREAK_TAGS.fullmatch(token.content):
            break
    return False


_ENTITY = re.compile(r"&#?\w{1,16};|[ \t]+")
_LAST = re.compile(rf"(?:{_ENTITY.pattern})\Z")
_WHITE = "".join(sign for sign in map(chr, range(0x3001)) if sign.isspace() and sign != "\n")


def _blank_edges(content: str) -> tuple[str, str]:
    """Entities at the beginning and the end of a block that stand for white space, such as &nbsp;."""
    start, end = 0, len(content)
    while (match := _ENTITY.match(content, start)) and html.unescape(match[0]).isspace():
        start = match.end()
    while (match := _LAST.search(content, max(start, end - 20), end)) and html.unescape(match[0]).isspace():
        end = match.start()
    return content[:start], content[end:]


def _break(content: str, span: tuple[int, int], gaps: Sequence[str]) -> str:
    """How a line break is written: a tag; a sign, or white space, and what is between the two lines."""
    start, end = span
    space = " " * content[:start].endswith((" ", "\n"))
    if content[start] == "<":
        return space + content[start:end].replace("\n", " ")
    gap = gaps[content.count("\n", 0, start)]
    return f"{space}\\{gap}" if content[start] == "\\" else gap


def _as_read(line_break: str) -> str:
    """A line break without what is before the next line in the blocks around it. After the title of an alert
    the document has only the end of a line."""
    sign = _LINE_END.sub("\n", line_break)
    return sign if "<" in sign or sign.endswith(("  \n", _BREAK)) else _BREAK


def _end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else 0


@functools.lru_cache(maxsize=1)  # all cells of a row come one after the other
def _cells(row: str) -> list[int]:
    """Where the cells of a table begin in their row."""
    pipes = [match.end() for match in _PIPE.finditer(row)]
    return pipes if row.startswith("|") else [0, *pipes]
