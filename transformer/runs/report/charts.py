"""Charts as SVG, which needs no script and follows the page's colours, and the parts that every page has.

They are drawn for a width of about 400 pixels, that of a telephone or of half a page: letters stay legible.
"""

import hashlib
import html
import importlib.resources
import math
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

# The parts that every page has.


FILES = importlib.resources.files("transformer.runs.report")
ROWS, LONGEST = 1_000, 2_000  # of a table, and characters in a cell: files of a stranger may have any number


def document(title: str, sections: Iterable[str]) -> str:
    """A page that loads nothing and runs no script."""
    style = (FILES / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src {source_of(style)}; img-src data:; media-src data:; "
        "base-uri 'none'; form-action 'none'\">"
        f'<title>{html.escape(title)}</title><link rel="icon" href="{icon()}">'
        f"<style>{style}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def icon() -> str:
    """The address of the icon that every page has in a browser's tab: the file itself."""
    return f"data:image/svg+xml;base64,{b64encode((FILES / 'icon.svg').read_bytes()).decode('ascii')}"


def source_of(content: str) -> str:
    """What a page's policy allows: an element with exactly this content, by its hash (CSP, level 2)."""
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}'"


class Markup(str):
    """A part of a page that is no text but HTML already."""


def text(value: object) -> str:
    """A value as text of a page."""
    if isinstance(value, Markup):
        return value
    whole = str(value)
    return html.escape(whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}...")


def table(rows: Iterable[tuple[object, ...]], head: Sequence[str] = ()) -> str:
    """Rows, each with its name first; of very many the first, of long texts the beginning."""

    def cells(rest: Iterable[object]) -> str:
        return "".join(f"<td>{text(cell)}</td>" for cell in rest)

    body = "".join(f"<tr><th>{text(name)}</th>{cells(rest)}</tr>" for name, *rest in islice(rows, ROWS))
    top = "<tr>" + "".join(f"<th>{text(name)}</th>" for name in head) + "</tr>" if head else ""
    return f'<div class="wide"><table>{top}{body}</table></div>'


def facts(named: Mapping[str, str]) -> str:
    """Names and values, as many to a row as fit."""
    entries = (f"<div><dt>{text(n)}</dt><dd>{text(v)}</dd></div>" for n, v in islice(named.items(), ROWS))
    return f'<dl class="facts">{"".join(entries)}</dl>'


def folded(summary: str, content: str) -> str:
    """Content behind its summary, which a click opens."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


WIDTH, HEIGHT = 420, 220  # in a chart's own units
LETTER = 7.5  # the width of a digit
RIGHT, BOTTOM, TOP = 24, 30, 12  # room for labels
BARS = 120  # the height of the highest bar
COLOURS = 8  # in page.css: a to h
MOST_POINTS = 100  # of a line, that can be pointed at
GROUPS = 1_000  # of the points of a line, if there are more than can be told apart
MOST_BARS, LONGEST_LABEL = 1_000, 100
LOGARITHMIC = 2  # times the lowest value that the highest one is, from which a logarithmic scale is offered
Points = Sequence[tuple[float, float]]


def line_chart(name: str, lines: Mapping[str, Points], labels: Sequence[str] = ()) -> str:
    """Lines against the step, in as many colours.

    Args:
      name: the title.
      lines: the points of each line, by its label.
      labels: those of all charts of the page, of which this one may lack some: a label has the same
        colour in all of them, and each chart says which. None given: those of the lines.
    """
    colours = {label: index for index, label in enumerate(labels or lines)}
    lines = {label: thinned(line) for label, line in lines.items()}
    points = [point for line in lines.values() for point in line]
    last_step = max(x for x, _ in points)
    high, low = (choose(y for _, y in points) for choose in (max, min))
    has_log = low > 0 and high >= LOGARITHMIC * low
    scales = {"linear": ticks(high), **({"log": log_ticks(low, high)} if has_log else {})}
    drawn = [
        f'<g class="{scale}">{"".join(_lines_of(lines, colours, last_step, marks, scale == "log"))}</g>'
        for scale, marks in scales.items()
    ]
    has_legend = len(lines) > 1 or labels
    keys = " ".join(key(colours[label], label) for label in lines) if has_legend else ""
    caption = f"{html.escape(name)} by step" + (f": {keys}" if keys else "")
    choice = ' <label><input type="checkbox"/> log scale</label>' if has_log else ""
    return figure(name, caption + choice, HEIGHT, drawn)


def _lines_of(
    lines: Mapping[str, Points],
    colours: Mapping[str, int],
    last_step: float,
    marks: Sequence[float],
    is_log: bool,
) -> Iterator[str]:
    """Axes, lines and points of a chart, for values from the first mark to the last one."""
    left = 12 + LETTER * max(len(_short(tick)) for tick in marks)
    scaled = math.log10 if is_log else float
    bottom, top = scaled(marks[0]), scaled(marks[-1])

    def x(step: float) -> float:
        return left + (WIDTH - left - RIGHT) * step / max(last_step, 1)

    def y(value: float) -> float:
        share = (scaled(value) - bottom) / (top - bottom)
        position = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share
        return max(-HEIGHT, min(position, 2 * HEIGHT))  # what is far outside is not seen

    for tick in marks:
        yield (
            f'<line class="grid" x1="{left:.1f}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text x="{left - 6:.1f}" y="{y(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        )
    for tick in ticks(last_step):
        if tick <= last_step:
            yield f'<text x="{x(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{_short(tick)}</text>'
    for label, line in lines.items():
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in line)
        yield f'<path class="{colour_of(colours[label])}" d="M{path}"/>' if line else ""
    for label, line in lines.items():
        shown = line[:: math.ceil(len(line) / MOST_POINTS)] if line else ()
        room = (WIDTH - left - RIGHT) / max(1, len(shown))
        for step, value in shown:
            label_text = f"{label[:LONGEST_LABEL]} at step {step:,}: {value:.4g}"
            middle = max(LETTER * len(label_text) / 2, min(x(step), WIDTH - LETTER * len(label_text) / 2))
            where = f'cx="{x(step):.1f}" cy="{y(value):.1f}"'
            yield (
                f'<g class="point{" many" * (len(line) > MOST_POINTS)}">'
                f'<circle class="{colour_of(colours[label])}" {where} r="3"/>'
                f'<circle class="near" {where} r="{max(4, min(room, 10)):.0f}"/>'
                f'<text class="said" x="{middle:.1f}" y="{max(TOP, y(value) - 10):.1f}" text-anchor="middle">'
                f"{html.escape(label_text)}</text></g>"
            )


def bar_chart(name: str, counts: Mapping[str, int]) -> str:
    """A bar for each name, with its count as a tooltip."""
    counts = {label[:LONGEST_LABEL]: count for label, count in islice(counts.items(), MOST_BARS)}
    name = name[:LONGEST_LABEL]
    high = max([1, *counts.values()])
    wide = (WIDTH - 20) / max(1, len(counts))
    step = math.ceil(LETTER * (1 + max(map(len, counts), default=1)) / wide)  # labels that do not touch
    shapes = []
    for index, (label, count) in enumerate(counts.items()):
        start = 10 + index * wide
        tall = BARS * count / high
        shapes.append(
            f'<rect class="a" x="{start + 1:.1f}" width="{max(1, wide - 2):.1f}" '
            f'y="{TOP + BARS - tall:.1f}" height="{tall:.1f}">'
            f"<title>{html.escape(label)}: {count:,}</title></rect>"
        )
        if (len(counts) - 1 - index) % step == 0:
            middle = min(start + wide / 2, WIDTH - LETTER * len(label) / 2)
            shapes.append(
                f'<text x="{middle:.1f}" y="{TOP + BARS + 20}" text-anchor="middle">'
                f"{html.escape(label)}</text>"
            )
    return figure(name, html.escape(name), TOP + BARS + 28, shapes)


def thinned(line: Points) -> Points:
    """The points of a line; of very many the lowest and the highest of each group, and the last."""
    if len(line) <= 2 * GROUPS:
        return line
    size = math.ceil(len(line) / GROUPS)
    points: list[tuple[float, float]] = []
    for start in range(0, len(line), size):
        group = range(start, min(start + size, len(line)))
        lowest, highest = (choose(group, key=lambda index: line[index][1]) for choose in (min, max))
        points += [line[index] for index in sorted({lowest, highest})]
    return [*points, line[-1]]


def colour_of(index: int) -> str:
    """The classes of a line: its colour, and dashes where colours are used again."""
    return "abcdefgh"[index % COLOURS] + " dashed" * (index >= COLOURS)


def key(index: int, label: str) -> str:
    """A label in the colour of its line."""
    return f'<span class="key {colour_of(index)}">{html.escape(label)}</span>'


def figure(name: str, caption: str, height: float, shapes: Sequence[str]) -> str:
    """Shapes in a frame of `WIDTH` and this height, below a caption in HTML; the name describes them."""
    shape = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(name)}"'
    return f"<figure><figcaption>{caption}</figcaption><svg {shape}>{''.join(shapes)}</svg></figure>"


def _short(tick: float) -> str:
    """A round number in at most seven characters: 0.0025, 750, 100k, 2.5M."""
    if tick < 1e4:
        return f"{tick:g}"
    return f"{tick / 1e3:g}k" if tick < 1e6 else f"{tick / 1e6:g}M"


def ticks(high: float) -> list[float]:
    """Round numbers from 0 to the first that is not below `high`."""
    if not 1e-300 < high < 1e300:  # or a step between two ticks would be no number
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(high / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if 5 * power * factor >= high)
    return [float(f"{step * index:.12g}") for index in range(math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from one that is not above `low` to one that is not below `high`, for a logarithmic
    scale."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = math.ceil((last - first) / 6)
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    powers = range(first, last + step, step)
    marks = [float(f"{factor}e{power}") for power in powers for factor in factors]
    begin = max(index for index, mark in enumerate(marks) if mark <= low)
    end = min(index for index, mark in enumerate(marks) if mark >= high)
    return marks[begin : end + 1]
