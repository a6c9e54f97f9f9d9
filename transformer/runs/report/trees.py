"""Trees as pictures: where their labels and words stand, and SVG of them."""

import html
import unicodedata
from collections.abc import Collection
from typing import NamedTuple

from transformer.data.trees import Tree
from transformer.runs.report.charts import LETTER

GAP = 10  # between words, in pixels
ROW, WORD = 40, 20  # from a constituent to its parts, and from a part of speech to its word
TOP, BOTTOM = 14, 8  # room for a line of text: above the first one and below the last
ABOVE, BELOW = 13, 5  # from the middle of a line of text to the lines of the tree
LONGEST = 40  # letters of a label or a word: files of a stranger may have any number


class Node(NamedTuple):
    """A label or a word."""

    text: str
    x: float
    """Of its middle, in pixels."""
    y: float
    """Of its base line."""
    parent: int
    """The index of the constituent that it is a part of; -1 for the root."""
    bracket: int
    """Of a label: how many brackets open before its own. -1: it is a word."""


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
            (index, above.x, above.y + BELOW, node.x, node.y - ABOVE)
            for index, node, above in ends
            if node.parent >= 0 and node.y - above.y > WORD
        ]


class _Block(NamedTuple):
    """The room of a part of a tree."""

    text: str
    room: float
    """For its label or word."""
    width: float
    parts: "list[_Block]"


def drawing(tree: Tree) -> Drawing:
    """A drawing of a tree. Each constituent stands above the middle of its parts, and a word right below its
    part of speech."""
    nodes: list[Node] = []
    brackets = 0

    def place(block: _Block, left: float, y: float, parent: int) -> float:
        """Adds the nodes of a block. Returns the middle of the first one."""
        nonlocal brackets
        middle = left + block.width / 2
        if not block.parts:
            nodes.append(Node(block.text, middle, y, parent, -1))
            return middle
        index, bracket = len(nodes), brackets
        nodes.append(Node("", 0, 0, parent, bracket))
        brackets += 1
        start = middle - sum(part.width for part in block.parts) / 2
        is_preterminal = len(block.parts) == 1 and not block.parts[0].parts
        middles = []
        for part in block.parts:
            middles.append(place(part, start, y + (WORD if is_preterminal else ROW), index))
            start += part.width
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
    parts = [
        f'<line class="grid {classes[index]}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'
        for index, x, y, to_x, to_y in picture.lines()
    ]
    parts += [
        f'<text class="{name}" x="{node.x:.1f}" y="{node.y:.1f}" text-anchor="middle">'
        f"{html.escape(node.text)}</text>"
        for node, name in zip(picture.nodes, classes, strict=True)
    ]
    width, height = f"{picture.width:.0f}", f"{picture.height:.0f}"
    shape = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg class="tree" {shape} role="img" aria-label="{html.escape(caption)}">{"".join(parts)}</svg>'


def _block(part: Tree | str) -> _Block:
    text = part if isinstance(part, str) else part.label
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    letters = sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
    room = LETTER * letters + GAP
    if isinstance(part, str):
        return _Block(text, room, room, [])
    parts = list(map(_block, part.children))
    width = max(room, sum(part.width for part in parts))
    return _Block(text, room, width, parts)
