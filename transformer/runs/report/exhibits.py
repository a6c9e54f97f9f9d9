"""Exhibits on the page of a run: texts, players, pictures, trees and tables."""

import html
import struct
import unicodedata
from base64 import b64decode
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.data.trees import Tree, read_tree
from transformer.runs.exhibits import OVERVIEW, OWN_COLOURS, read_exhibits
from transformer.runs.report.charts import LETTER, RIGHT, ROWS, WIDTH, figure, table, text, ticks
from transformer.runtime.files import Json
from transformer.tasks.exhibit import in_a_cell

# Trees as pictures: where their labels and words stand, and SVG of them.


GAP = 10  # between words, in pixels
ROW, WORD = 40, 20  # from a constituent to its parts, and from a part of speech to its word
TOP, BOTTOM = 14, 8  # room for a line of text: above the first one and below the last
ABOVE, UNDER = 13, 5  # from the middle of a line of text to the lines of the tree


class Node(NamedTuple):
    """A label or a word."""

    text: str
    x: float
    """The middle of the text, in pixels."""
    y: float
    """The base line of the text, in pixels."""
    parent: int
    """The index of the constituent that it is a part of; -1 for the root."""
    bracket: int
    """How many brackets open before that of a label. -1: it is a word."""


class Drawing(NamedTuple):
    """A tree with a row for each depth, so that no lines cross."""

    width: float
    height: float
    nodes: list[Node]
    """Each after its parent."""

    def lines(self) -> list[tuple[int, float, float, float, float]]:
        """A line to each node from its parent, unless it is the word right below: the index of the node,
        x and y of both ends."""
        ends = ((index, node, self.nodes[node.parent]) for index, node in enumerate(self.nodes))
        return [
            (index, above.x, above.y + UNDER, node.x, node.y - ABOVE)
            for index, node, above in ends
            if node.parent >= 0 and node.y - above.y > WORD
        ]


class _Block(NamedTuple):
    """The room of a part of a tree."""

    text: str
    room: float
    """Width of its label or word, in pixels."""
    width: float
    children: "list[_Block]"


def drawing(tree: Tree) -> Drawing:
    """A drawing of a tree. Each constituent stands above the middle of its parts, and a word right below its
    part of speech."""
    nodes: list[Node] = []
    brackets = 0

    def place(block: _Block, left: float, y: float, parent: int) -> float:
        """Adds the nodes of a block. Returns the middle of the first one."""
        nonlocal brackets
        middle = left + block.width / 2
        if not block.children:
            nodes.append(Node(block.text, middle, y, parent, -1))
            return middle
        index, bracket = len(nodes), brackets
        nodes.append(Node("", 0, 0, parent, bracket))
        brackets += 1
        start = middle - sum(child.width for child in block.children) / 2
        is_preterminal = len(block.children) == 1 and not block.children[0].children
        middles = []
        for child in block.children:
            middles.append(place(child, start, y + (WORD if is_preterminal else ROW), index))
            start += child.width
        ends = left + block.room / 2, left + block.width - block.room / 2
        middle = min(max((middles[0] + middles[-1]) / 2, ends[0]), ends[1])
        nodes[index] = Node(block.text, middle, y, parent, bracket)
        return middle

    whole = _block(tree)
    place(whole, 0, TOP, -1)
    return Drawing(whole.width, max(node.y for node in nodes) + BOTTOM, nodes)


def svg_of(caption: str, tree: Tree, marked: Collection[int] = ()) -> str:
    """A tree as SVG.

    Args:
      caption: describes it to those who cannot see it.
      tree: what is drawn.
      marked: brackets that have the class `marked` (see `TreePicture`).
    """
    picture = drawing(tree)
    classes = ["marked" if node.bracket in marked else "word" * (node.bracket < 0) for node in picture.nodes]
    shapes = [
        f'<line class="grid {classes[index]}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'
        for index, x, y, to_x, to_y in picture.lines()
    ]
    shapes += [
        f'<text class="{name}" x="{node.x:.1f}" y="{node.y:.1f}" text-anchor="middle">'
        f"{html.escape(node.text)}</text>"
        for node, name in zip(picture.nodes, classes, strict=True)
    ]
    width, height = f"{picture.width:.0f}", f"{picture.height:.0f}"
    shape = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg class="tree" {shape} role="img" aria-label="{html.escape(caption)}">{"".join(shapes)}</svg>'


def _block(subtree: Tree | str) -> _Block:
    text = in_a_cell(subtree if isinstance(subtree, str) else subtree.label)
    letters = sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
    room = LETTER * letters + GAP
    if isinstance(subtree, str):
        return _Block(text, room, room, [])
    subtrees = list(map(_block, subtree.children))
    width = max(room, sum(child.width for child in subtrees))
    return _Block(text, room, width, subtrees)


LEFT, BELOW, LINE = 64, 44, 17  # room for labels, and the height of a line of them
TALL = 140  # the height of a picture without labels of its rows
LEGEND = (
    "<p>Outputs with the most errors for their length, the worst first: the reference above, the output "
    'below. Errors are <span class="key substituted">substituted</span>, '
    '<span class="key deleted">deleted</span> or <span class="key inserted">inserted</span>.</p>'
)


def exhibits_of(folder: Path) -> str:
    """The part of the page with the exhibits of a run; empty if it has none."""
    return _section("Examples", *read_exhibits(folder))


def overview_of(folder: Path) -> str:
    """The part of the page with tables about a whole split; empty if it has none."""
    return _section("Outputs", *read_exhibits(folder, OVERVIEW))


def _section(title: str, step: int, exhibits: Sequence[Json]) -> str:
    if not exhibits:
        return ""
    return f"<h2>{title}</h2><p>Of the checkpoint of step {step:,}.</p>" + "".join(map(_exhibit, exhibits))


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
    figures = (f'<div class="charts">{markup}</div>' for markup in (sounds, pictures, trees) if markup)
    tables = "".join(map(_shaded, exhibit.get("tables", [])))
    comparisons = "".join(map(_compared, exhibit.get("comparisons", [])))
    legend = LEGEND if comparisons else ""
    return f"{title}{texts}{''.join(figures)}{tables}{legend}{comparisons}"


def _compared(shown: Json) -> str:
    """A reference above an output, word by word; errors have the class of their kind."""

    def word(expected: str, output: str) -> str:
        css_class = "same" if expected == output else "substituted" if expected and output else ""
        css_class = css_class or ("deleted" if expected else "inserted")
        sides = "".join(f"<span>{text(side) or '&nbsp;'}</span>" for side in (expected, output))
        return f'<span class="pair {css_class}">{sides}</span>'

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
    css_class = "counts" if shown["shades"] else "numbers"
    return (
        f"<p>{html.escape(shown['caption'])}</p>"
        f'<div class="wide"><table class="{css_class}"><tr>{head}</tr>{body}</table></div>'
    )


def _picture(picture: Json) -> str:
    """The matrix as an image, with its axes."""
    x = picture["x"]
    y = picture["y"]
    rows = y["labels"]
    left = min(WIDTH / 3, max(LEFT, 24 + LETTER * max(map(len, rows), default=0)))
    wide = WIDTH - left - RIGHT
    tall = max(TALL, LINE * len(rows))
    columns, lines, _, colours = struct.unpack(">IIBB", b64decode(picture["png"])[16:26])
    if colours == OWN_COLOURS:
        wide = min(wide, tall * columns / max(1, lines))
    shapes = [
        f'<image x="{left:.1f}" y="0" width="{wide:.1f}" height="{tall}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{picture["png"]}"/>'
    ]
    for offset, label in _labels(x, wide):
        across = min(left + offset, WIDTH - LETTER * len(label) / 2)
        shapes.append(_text(label, across, tall + 16, "middle"))
    for offset, label in _labels(y, tall, down=True):
        shapes.append(_text(label, left - 6, min(max(offset + 4, 10), tall), "end"))
    shapes.append(_text(x["title"], left + wide / 2, tall + 36, "middle"))
    shapes.append(
        f'<text transform="translate(12 {tall / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y['title'])}</text>"
    )
    return figure(picture["caption"], html.escape(picture["caption"]), tall + BELOW, shapes)


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
