"""What stands inside a paragraph of Markdown: its text and marks, and Markdown of these again."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformer.runtime.extras import library
from transformer.translator.documents.passages import Mark, MarkedText

_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)[^>]*?(/?)>", re.DOTALL)
_SPECIAL = re.compile(r"[\\`*\[\]<~&]|(?<!\w)_|_(?!\w)")
_OPENS_BLOCK = re.compile(
    r"\A(\d*)([.)](?=\s|\Z)(?<=\d.)|[-+*](?=\s|\Z)|>|#{1,6}(?=\s|\Z)|[=-]+\s*\Z|~~~|```)"
)


def markdown_parser() -> Any:
    """A parser of CommonMark with tables and strikethrough, which leaves addresses as they are written."""
    parser = library("markdown_it").MarkdownIt("commonmark", {"store_labels": True})
    parser.enable(["table", "strikethrough"])
    parser.normalizeLink = lambda address: address
    parser.normalizeLinkText = lambda address: address
    parser.validateLink = lambda address: True
    return parser


def marked_lines(tokens: Sequence[Any]) -> Iterator[MarkedText]:
    """The text of an inline token's children with its marks: one for each line that a hard break ends."""
    text, marks, opened = "", list[Mark](), list[tuple[int, str, str]]()
    for token in tokens:
        start = len(text)
        match token.type:
            case "text" | "text_special":
                text += token.content
            case "softbreak":
                text += " "
            case "hardbreak":
                ends = [Mark(begin, start, opening, closing) for begin, opening, closing in reversed(opened)]
                yield _in_order(text, marks + ends)
                text, marks = "", []
                opened = [(0, opening, closing) for _, opening, closing in opened]
            case "code_inline":
                text += token.content.strip() or token.content
                marks.append(Mark(start, len(text), literal=_code(token)))
            case "image":
                address = _address(token.attrs.get("src"), token)
                marks.append(Mark(start, start, literal=f"![{token.content}]{address}"))
            case "html_inline":
                tag = _TAG.fullmatch(token.content)
                name = tag[2].lower() if tag else ""
                closes = bool(tag and tag[1])
                if tag and not closes and not tag[3] and _is_closed(name, token, tokens):
                    opened.append((start, token.content, f"</{name}>"))
                elif closes and opened and opened[-1][2] == f"</{name}>":
                    begin, opening, _ = opened.pop()
                    marks.append(Mark(begin, start, opening, token.content))
                else:
                    marks.append(Mark(start, start, literal=token.content))
            case "link_open" if token.markup == "autolink":
                opened.append((start, "<", ">"))
            case "link_close" if token.markup == "autolink":
                begin, *_ = opened.pop()
                marks.append(Mark(begin, start, literal=f"<{text[begin:start]}>"))
            case "link_open":
                address = _address(token.attrs.get("href"), token)
                opened.append((start, "[", f"]{address}"))
            case _ if token.type.endswith("_open"):
                opened.append((start, token.markup, token.markup))
            case _ if token.type.endswith("_close"):
                begin, opening, closing = opened.pop()
                marks.append(Mark(begin, start, opening, closing))
    yield _in_order(text, marks)


def to_markdown(
    content: MarkedText, parser: Any, environment: Mapping[str, Any], in_table: bool = False
) -> str:
    """Markdown of a marked text on one line, which the parser reads as this text again. What looks like
    Markdown is escaped only if it would be read as such."""
    plain = _written(content, str, in_table)
    if reads_as(plain, content, parser, environment):
        return plain
    return _written(content, lambda text: _SPECIAL.sub(r"\\\g<0>", text), in_table)


def reads_as(markdown: str, content: MarkedText, parser: Any, environment: Mapping[str, Any]) -> bool:
    """Whether inline Markdown is read as this text with these marks."""
    (token,) = parser.parseInline(markdown.replace("\\|", "|"), dict(environment))
    lines = list(marked_lines(token.children))
    return len(lines) == 1 and _essence(lines[0]) == _essence(content)


def _essence(content: MarkedText) -> tuple[str, list[tuple[str, str, str]]]:
    """What two marked texts share if they are read alike."""
    marks = [(mark.opening, mark.closing, mark.literal or "") for mark in content.marks]
    text = "".join(content.written(str).split())
    return text, sorted(marks)


def _written(content: MarkedText, escape: Any, in_table: bool) -> str:
    text = content.written(escape)
    if not any(mark.start == 0 for mark in content.marks):
        text = _OPENS_BLOCK.sub(r"\1\\\2", text, count=1)
    return re.sub(r"(?<!\\)\|", r"\\|", text) if in_table else text


def _in_order(text: str, marks: Sequence[Mark]) -> MarkedText:
    """A marked text whose outer marks come before the inner ones: these were closed first."""
    return MarkedText(text, tuple(sorted(reversed(marks), key=lambda mark: (mark.start, -mark.end))))


def _is_closed(name: str, token: Any, tokens: Sequence[Any]) -> bool:
    """Whether a tag of HTML is closed among the tokens after it, at the same depth."""
    level = 0
    for other in tokens[[id(item) for item in tokens].index(id(token)) + 1 :]:
        if other.type.endswith("_open"):
            level += 1
        elif other.type.endswith("_close"):
            level -= 1
        if level < 0:
            return False
        if level == 0 and other.type == "html_inline" and other.content.lower() == f"</{name}>":
            return True
    return False


def _code(token: Any) -> str:
    content = token.content
    pad = " " if content[:1] == "`" or content[-1:] == "`" or (content[:1] == content[-1:] == " ") else ""
    return f"{token.markup}{pad}{content}{pad}{token.markup}"


def _address(target: object, token: Any) -> str:
    """What follows the text of a link or an image: the label of its address, or the address and a title."""
    if label := token.meta.get("label"):
        return f"[{label.lower()}]"  # the parser has it in capitals
    address = str(target or "")
    if re.search(r"[\s()<>]", address):
        address = f"<{address}>"
    title = str(token.attrs.get("title", "")).replace('"', '\\"')
    return f'({address} "{title}")' if title else f"({address})"
