"""Exhibits on the page of a run: texts, players, pictures, trees and tables."""

import html
import struct
from base64 import b64decode
from pathlib import Path

from transformer.data.trees import read_tree
from transformer.runs.exhibits import OVERVIEW, read_exhibits
from transformer.runs.media import OWN_COLOURS
from transformer.runs.report.charts import LETTER, RIGHT, WIDTH, ticks
from transformer.runs.report.markup import ROWS, table, text
from transformer.runs.report.trees import svg_of
from transformer.runtime.files import Json

LEFT, BELOW, LINE = 64, 44, 17  # room for labels, and the height of a line of them
TALL = 140  # the height of a picture without labels of its rows
LEGEND = (
    "<p>Outputs with the most errors for their length, the worst first: the reference above, the output "
    'below. Errors are <span class="key substituted">substituted</span>, '
    '<span class="key deleted">deleted</span> or <span class="key inserted">inserted</span>.</p>'
)


def exhibits_of(folder: Path) -> str:
    """The part of the page with the exhibits of a run; empty if it has none."""
    step, exhibits = read_exhibits(folder)
    if not exhibits:
        return ""
    return f"<h2>Examples</h2><p>Of the checkpoint of step {step:,}.</p>" + "".join(map(_exhibit, exhibits))


def overview_of(folder: Path) -> str:
    """The part of the page with tables about a whole split; empty if it has none."""
    step, exhibits = read_exhibits(folder, OVERVIEW)
    if not exhibits:
        return ""
    return f"<h2>Outputs</h2><p>Of the checkpoint of step {step:,}.</p>" + "".join(map(_exhibit, exhibits))


def _exhibit(exhibit: Json) -> str:
    sounds = "".join(
        f"<figure><figcaption>{html.escape(sound['caption'])}</figcaption>"
        f'<audio controls preload="metadata" src="data:audio/wav;base64,{sound["wav"]}"></audio></figure>'
        for sound in exhibit["sounds"]
    )
    pictures = "".join(map(_picture, exhibit["pictures"]))
    trees = "".join(
        f'<figure class="wide"><figcaption>{html.escape(tree["caption"])}</figcaption>'
        f"{svg_of(tree['caption'], read_tree(tree['tree']), set(tree['marked']))}</figure>"
        for tree in exhibit.get("trees", [])
    )
    texts = table(exhibit["texts"].items()) if exhibit["texts"] else ""
    title = f"<h3>{html.escape(exhibit['title'])}</h3>"
    figures = (f'<div class="charts">{some}</div>' for some in (sounds, pictures, trees) if some)
    tables = "".join(map(_shaded, exhibit.get("tables", [])))
    comparisons = "".join(map(_compared, exhibit.get("comparisons", [])))
    legend = LEGEND if comparisons else ""
    return f"{title}{texts}{''.join(figures)}{tables}{legend}{comparisons}"


def _compared(shown: Json) -> str:
    """A reference above an output, word by word; errors have the class of their kind."""

    def word(expected: str, output: str) -> str:
        kind = "same" if expected == output else "substituted" if expected and output else ""
        kind = kind or ("deleted" if expected else "inserted")
        sides = "".join(f"<span>{text(side) or '&nbsp;'}</span>" for side in (expected, output))
        return f'<span class="pair {kind}">{sides}</span>'

    words = " ".join(word(*pair) for pair in shown["pairs"])
    return f'<div class="compared"><p>{html.escape(shown["caption"])}</p><p class="pairs">{words}</p></div>'


def _shaded(shown: Json) -> str:
    """A table whose cells have the classes `s0` to `s9`, from light to dark."""

    def cells(row: list[str], shades: list[float]) -> str:
        name, *rest = row
        classes = [f' class="s{min(int(10 * shade), 9)}"' for shade in shades] or [""] * len(rest)
        inner = "".join(f"<td{name}>{text(cell)}</td>" for cell, name in zip(rest, classes, strict=False))
        return f"<tr><th>{text(name)}</th>{inner}</tr>"

    rows = shown["rows"][:ROWS]
    shades = shown["shades"] or [[]] * len(rows)
    body = "".join(cells(row, dark) for row, dark in zip(rows, shades, strict=False) if row)
    head = "".join(f"<th><span>{text(name)}</span></th>" for name in shown["head"])
    kind = "counts" if shown["shades"] else "numbers"
    return (
        f"<p>{html.escape(shown['caption'])}</p>"
        f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{body}</table></div>'
    )


def _picture(picture: Json) -> str:
    """The matrix as an image, with its axes."""
    x = picture["x"]
    y = picture["y"]
    caption = html.escape(picture["caption"])
    rows = y["labels"]
    left = min(WIDTH / 3, max(LEFT, 24 + LETTER * max(map(len, rows), default=0)))
    wide = WIDTH - left - RIGHT
    tall = max(TALL, LINE * len(rows))
    columns, lines, _, colours = struct.unpack(">IIBB", b64decode(picture["png"])[16:26])
    if colours == OWN_COLOURS:
        wide = min(wide, tall * columns / max(1, lines))
    parts = [
        f'<image x="{left:.1f}" y="0" width="{wide:.1f}" height="{tall}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{picture["png"]}"/>'
    ]
    for offset, label in _labels(x, wide):
        across = min(left + offset, WIDTH - LETTER * len(label) / 2)
        parts.append(_text(label, across, tall + 16, "middle"))
    for offset, label in _labels(y, tall, down=True):
        parts.append(_text(label, left - 6, min(max(offset + 4, 10), tall), "end"))
    parts.append(_text(x["title"], left + wide / 2, tall + 36, "middle"))
    parts.append(
        f'<text transform="translate(12 {tall / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y['title'])}</text>"
    )
    shape = f'viewBox="0 0 {WIDTH} {tall + BELOW}" role="img" aria-label="{caption}"'
    return f"<figure><figcaption>{caption}</figcaption><svg {shape}>{''.join(parts)}</svg></figure>"


def _labels(axis: Json, size: float, down: bool = False) -> list[tuple[float, str]]:
    """What is written along an axis of this size, as far as labels do not touch, and where."""
    labels = axis["labels"]
    extent = axis["extent"]
    if labels:
        labelled = list[tuple[float, str]]()
        end = 0.0
        for index, label in enumerate(labels):
            middle = size * (index + 0.5) / len(labels)
            room = LINE - 3 if down else LETTER * (len(label) + 0.5)
            if not labelled or middle - room / 2 >= end:
                labelled.append((middle, label))
                end = middle + room / 2
        return labelled
    marks = [tick for tick in ticks(extent) if tick <= extent] if extent > 0 else []
    return [(size * tick / extent, f"{tick:g}") for tick in marks]


def _text(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
