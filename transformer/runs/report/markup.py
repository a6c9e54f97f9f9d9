"""The parts that every page has."""

import hashlib
import html
import importlib.resources
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

ROWS, LONGEST = 1_000, 2_000  # of a table, and characters in a cell: files of a stranger may have any number


def document(title: str, parts: Iterable[str]) -> str:
    """A page that loads nothing and runs no script."""
    style = (importlib.resources.files("transformer.runs.report") / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src {source_of(style)}; img-src data:; media-src data:; "
        "base-uri 'none'; form-action 'none'\">"
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def source_of(content: str) -> str:
    """What a page's policy allows: an element with exactly this content, by its hash (CSP, level 2)."""
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}'"


def text(value: object) -> str:
    """A value as text of a page."""
    whole = str(value)
    return html.escape(whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}...")


def table(rows: Iterable[tuple[object, ...]], head: Sequence[str] = ()) -> str:
    """Rows, each with its name first; of very many the first, of long texts the beginning."""

    def cells(rest: Iterable[object]) -> str:
        return "".join(f"<td>{text(cell)}</td>" for cell in rest)

    body = "".join(f"<tr><th>{text(name)}</th>{cells(rest)}</tr>" for name, *rest in islice(rows, ROWS))
    top = "<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr>" if head else ""
    return f'<div class="wide"><table>{top}{body}</table></div>'


def facts(named: Mapping[str, str]) -> str:
    """Names and values, as many to a row as fit."""
    parts = (f"<div><dt>{text(n)}</dt><dd>{text(v)}</dd></div>" for n, v in islice(named.items(), ROWS))
    return f'<dl class="facts">{"".join(parts)}</dl>'


def folded(summary: str, content: str) -> str:
    """Content behind its summary, which a click opens."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"
