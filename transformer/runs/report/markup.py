"""The parts that every page has."""

import html
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence


def document(title: str, parts: Iterable[str]) -> str:
    """A page that loads nothing and runs no script."""
    style = (importlib.resources.files("transformer.runs.report") / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:\">"
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def table(rows: Iterable[tuple[object, ...]], head: Sequence[str] = ()) -> str:
    """Rows, each with its name first."""

    def cells(rest: Iterable[object]) -> str:
        return "".join(f"<td>{html.escape(str(cell))}</td>" for cell in rest)

    body = "".join(f"<tr><th>{html.escape(str(name))}</th>{cells(rest)}</tr>" for name, *rest in rows)
    top = "<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr>" if head else ""
    return f'<div class="wide"><table>{top}{body}</table></div>'


def facts(named: Mapping[str, str]) -> str:
    """Names and values, as many to a row as fit."""
    parts = (f"<div><dt>{html.escape(n)}</dt><dd>{html.escape(v)}</dd></div>" for n, v in named.items())
    return f'<dl class="facts">{"".join(parts)}</dl>'


def folded(summary: str, content: str) -> str:
    """Content behind its summary, which a click opens."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"
