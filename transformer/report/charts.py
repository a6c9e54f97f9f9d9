"""Charts as SVG, which needs no script and follows the page's colours."""

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 640, 240  # in a chart's own units
LEFT, BOTTOM, TOP = 64, 32, 12  # room for its labels
BARS = 120  # the height of the highest bar
Points = Sequence[tuple[float, float]]


def line_chart(name: str, lines: Mapping[str, Points]) -> str:
    """One or two lines against the step."""
    points = [point for line in lines.values() for point in line]
    most, high = max(x for x, _ in points), max(y for _, y in points)
    ticks = _ticks(high)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * step / max(most, 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / ticks[-1]

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        for tick in ticks
    ]
    parts += [
        f'<text x="{x(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{tick:,.0f}</text>'
        for tick in _ticks(most)
        if tick <= most
    ]
    for colour, (label, line) in zip("ab", lines.items(), strict=False):
        way = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in line)
        parts.append(f'<path class="{colour}" d="M{way}"/>' if line else "")
        if len(line) <= 100:
            parts += [
                f'<circle class="{colour}" cx="{x(s):.1f}" cy="{y(v):.1f}" r="3">'
                f"<title>{html.escape(label)} at step {s:,}: {v:.4g}</title></circle>"
                for s, v in line
            ]
    named = zip("ab", lines, strict=False)
    keys = " ".join(f'<span class="key {colour}">{html.escape(label)}</span>' for colour, label in named)
    caption = f"{html.escape(name)} against the step" + (f": {keys}" if len(lines) > 1 else "")
    shape = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(name)}"'
    return f"<figure><figcaption>{caption}</figcaption><svg {shape}>{''.join(parts)}</svg></figure>"


def _ticks(high: float) -> list[float]:
    """Round numbers from 0 to the first that is not below `high`."""
    if not 1e-300 < high < 1e300:  # or a step between two ticks would be no number
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(high / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if 5 * power * factor >= high)
    return [float(f"{step * index:.12g}") for index in range(math.ceil(high / step - 1e-9) + 1)]


def bar_chart(name: str, counts: Mapping[str, int]) -> str:
    """A bar for each name, with its count as a tooltip."""
    high, wide = max([1, *counts.values()]), (WIDTH - 20) / max(1, len(counts))
    parts = []
    for index, (label, count) in enumerate(counts.items()):
        left, tall = 10 + index * wide, BARS * count / high
        parts.append(
            f'<rect class="a" x="{left + 1:.1f}" width="{wide - 2:.1f}" y="{TOP + BARS - tall:.1f}" '
            f'height="{tall:.1f}"><title>{html.escape(label)}: {count:,}</title></rect>'
            f'<text x="{left + wide / 2:.1f}" y="{TOP + BARS + 20}" text-anchor="middle">'
            f"{html.escape(label)}</text>"
        )
    shape = f'viewBox="0 0 {WIDTH} {TOP + BARS + 28}" role="img" aria-label="{html.escape(name)}"'
    return f"<figure><figcaption>{html.escape(name)}</figcaption><svg {shape}>{''.join(parts)}</svg></figure>"
