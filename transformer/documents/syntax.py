"""The parser of Markdown: CommonMark, and what GitHub and MkDocs add to it."""

import functools
import re
from collections import ChainMap
from collections.abc import Callable
from typing import Any

from transformer.runtime.machine import library

Environment = dict[str, Any]
"""What the parser has learned of a document: the addresses of links, and footnotes."""
LEVELS = 60
"""Blocks within blocks that are read, of which a list has two, and marks within marks. What is in deeper ones
stays as it is."""
OPAQUE, UNREAD = "opaque", "unread"
"""Types of tokens: lines that stay as they are, and lines whose text is not read."""
_TEMPLATE = r"\{%(?:(?!\{%).)*?%\}|\{\{(?:(?!\{\{).)*?\}\}|\{#(?:(?!\{#).)*?#\}"
"""Of Jinja, Liquid, Hugo: none begins in another."""
_ATTRIBUTES = (
    r"\{:[^{}]*\}"
    r"|\{\s*+(?:(?:[#.=][^\s{}]++|[\w:-]++=(?:\"[^\"{}]*+\"|'[^'{}]*+'|[^\s{}\"']++)|-)(?:\s++|(?=\})))++\}"
)
_LINE = re.compile(
    rf"(?:{_TEMPLATE}|{_ATTRIBUTES}|\[\[?_?toc_?\]\]?"  # a table of contents
    # containers of Pandoc and MkDocs, inserted files
    r"|(?::::++|///++)[ \t]*+[\w.:-]*+[ \t]*+(?:\{[^{}]*\})?[ \t]*+:*+"
    r"|-{1,2}8<-{1,2}(?:[ \t]+(?:\"[^\"]*\"|'[^']*'|\S+))?)\s*\Z",
    re.DOTALL | re.IGNORECASE,
)
_UNREAD = re.compile(r"\*\[[^\]]+\]:|:::|///++[ \t]*+[\w-]++[ \t]*+\|")
"""How abbreviations and containers with titles begin."""
_COPIED = re.compile(
    rf"{_TEMPLATE}|{_ATTRIBUTES}"
    r"|(?<!\w):(?=[0-9_+-]*+[a-z])[a-z0-9_+-]++:"  # emoji
    # formulas: prices are none, since a space is before the second sign, or a digit after it
    r"|\$\$[^$]+\$\$|\$(?![\s$])(?:[^$\\]|\\.)*(?<!\s)\$(?!\d)",
    re.DOTALL,
)
_BEFORE_FORMULAS = re.compile(r"(?P<ticks>`+)|(?P<link>\]\()|<(?=[a-zA-Z/!?])|(?<!\w)[a-zA-Z]\w*+://")
"""How begins what comes before a formula: code, the address of a link, a tag, a bare address."""
_TO_ITS_END = re.compile(r"<[^<>]*+>|\w++://[^\s<>]*+")
_TAB = re.compile(r'===[!+]{0,2} +"')
_TEMPLATE_LINES = 100


@functools.cache
def markdown_parser() -> Any:
    """A parser that leaves addresses as they are written and says where each part of a text stands.

    The `meta` of an inline token has `starts`, where its lines begin in the document; that of its children
    `span`, from where to where they stand in its content.

    Raises:
      UserError: a library is missing.
    """
    parser = library("markdown_it").MarkdownIt("commonmark", {"maxNesting": LEVELS + 10})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = lambda address: True
    library("mdit_py_plugins.footnote").footnote_plugin(parser, inline=False, move_to_end=False)
    library("mdit_py_plugins.deflist").deflist_plugin(parser)
    library("mdit_py_plugins.admon").admon_plugin(parser)
    library("mdit_py_plugins.dollarmath").dollarmath_plugin(parser, allow_blank_lines=False)
    parser.disable("math_inline")  # which has other rules than GitHub's: see `_COPIED`
    interrupts = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    first = parser.block.ruler.get_all_rules()[0]
    parser.block.ruler.before(first, "opaque", _opaque, interrupts)
    parser.block.ruler.before("opaque", "tab", _tab, interrupts)
    parser.block.ruler.before("tab", "deep", _deep, {})
    parser.inline.ruler.before("backticks", "template", _template)
    for rule in parser.block.ruler.__rules__:
        rule.fn = functools.partial(_located, rule.fn)
    for rule in parser.inline.ruler.__rules__:
        rule.fn = functools.partial(_spanned, rule.fn, rule.name)
    return parser


def copied(environment: Environment) -> Environment:
    """An environment with which a part is parsed, which leaves this one as it is, and shares what it has."""
    footnotes = environment.get("footnotes", {})
    return {
        "references": ChainMap({}, environment.get("references", {})),
        "footnotes": {kind: ChainMap({}, footnotes.get(kind, {})) for kind in ("refs", "list")},
    }


def _located(rule: Callable[..., bool], state: Any, start: int, end: int, silent: bool) -> bool:
    """A rule of blocks that also says where the lines of their text begin, less what contains them."""
    count = len(state.tokens)
    matched = rule(state, start, end, silent)
    if matched and not silent:
        for token in state.tokens[count:]:
            if token.type == "inline" and "starts" not in token.meta:
                lines = range(token.map[0], token.map[0] + token.content.count("\n") + 1)
                token.meta["starts"] = [state.bMarks[line] + state.tShift[line] for line in lines]
    return matched


def _spanned(rule: Callable[..., bool], name: str, state: Any, silent: bool) -> bool:
    """A rule of inline text that also says where it stands."""
    start, count = state.pos, len(state.tokens)
    matched = rule(state, silent)
    if matched and not silent:
        span = start, state.pos
        for token in state.tokens[count:]:
            token.meta.setdefault("span", span)
            if token.type == "link_open" and name == "link" and token.meta["span"] == span:
                token.meta["label_end"] = state.md.helpers.parseLinkLabel(state, start, True)
    return matched


def _deep(state: Any, start: int, end: int, silent: bool) -> bool:
    """Blocks in too many others."""
    if state.level < LEVELS or silent:
        return False
    _push(state, UNREAD, start, end)
    return True


def _push(state: Any, token_type: str, start: int, end: int) -> None:
    token = state.push(token_type, "", 0)
    token.map = [start, end]
    token.content = state.getLines(start, end, state.blkIndent, False)
    state.line = end


def _line(state: Any, line: int) -> str:
    text: str = state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]
    return text


def _is_code(state: Any, line: int) -> bool:
    return bool(state.sCount[line] - state.blkIndent >= 4)


def _opaque(state: Any, start: int, end: int, silent: bool) -> bool:
    """Lines that are a template, or what begins or ends a container."""
    if _is_code(state, start):
        return False
    text, token_type, last = _line(state, start), OPAQUE, start + 1
    if text.startswith(("{%", "{{", "{#")):
        while last < min(end, start + _TEMPLATE_LINES) and not _LINE.match(text):
            text += "\n" + _line(state, last)
            last += 1
    if not _LINE.match(text):
        token_type, last = UNREAD, start + 1
        if not _UNREAD.match(text):
            return False
    if not silent:
        _push(state, token_type, start, last)
    return True


def _tab(state: Any, start: int, end: int, silent: bool) -> bool:
    """A tab of MkDocs: a line such as `=== "Name"`, and what is indented after it."""
    if _is_code(state, start) or not _TAB.match(_line(state, start)):
        return False
    if silent:
        return True
    _push(state, UNREAD, start, start + 1)
    indent = state.blkIndent + 4
    last = start + 1
    while last < end and (state.isEmpty(last) or state.sCount[last] >= indent):
        last += 1
    outer = state.parentType, state.lineMax, state.blkIndent
    state.parentType, state.lineMax, state.blkIndent = "tab", last, indent
    state.md.block.tokenize(state, start + 1, last)
    state.parentType, state.lineMax, state.blkIndent = outer
    state.line = last
    return True


def _cuts(text: str, start: int, end: int) -> bool:
    """Whether code, a link, a tag or an address begins between two dollar signs and ends after them: then
    they enclose no formula."""
    position = start
    while match := _BEFORE_FORMULAS.search(text, position, end):
        position = match.end()
        if match["link"]:
            return True
        if ticks := match["ticks"]:
            closing = re.compile(f"(?<!`){ticks}(?!`)").search(text, position)
            position = closing.end() if closing else position
        elif whole := _TO_ITS_END.match(text, match.start()):
            position = whole.end()
        if position > end:
            return True
    return False


def _template(state: Any, silent: bool) -> bool:
    """A part of a template, attributes, the name of an emoji, or a formula."""
    match = _COPIED.match(state.src, state.pos) if state.src[state.pos] in "{:$" else None
    if not match or (match[0][0] == "$" and _cuts(state.src, *match.span())):
        return False
    if not silent:
        state.push(OPAQUE, "", 0)
    state.pos = match.end()
    return True
