"""Tables, pictures and files of this program and its peers side by side.

Every contestant runs in a separate process. They take turns, and medians are compared.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.command import needs, new_file, positive
from benchmarks.measure import Measurement, keep, machine, picture, seconds_of


@dataclass(frozen=True)
class Row:
    """A contestant in a section: its median, its peak memory, and how many times faster ours is."""

    section: str
    name: str
    seconds: float
    rate: float
    unit: str
    memory: int
    ratio: float
    agreement: float | None = None
    """The share of sentences with the same translation as ours."""


Section = Callable[[argparse.Namespace], list[Row]]
"""Measures one comparison, for these options. Ours is the first row."""


def rows_of(
    section: str, measured: list[Measurement], work: float, unit: str, agree: Sequence[float | None]
) -> list[Row]:
    """The rows of a section, ours first. Each round does `work` units."""
    ours = measured[0].median
    return [
        Row(section, m.name, m.median, work / m.median, unit, m.memory, m.median / ours, share)
        for m, share in zip(measured, agree, strict=True)
    ]


def processes(section: str, commands: dict[str, list[str]], rounds: int) -> list[Row]:
    """Whole processes that take turns, after one untimed run each to warm caches."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            seconds = seconds_of(command)
            if turn:
                times[name].append(seconds)
    medians = {name: statistics.median(some) for name, some in times.items()}
    first = next(iter(medians.values()))
    return [Row(section, name, s, 1 / s, "1/s", 0, s / first) for name, s in medians.items()]


def compare(
    parser: argparse.ArgumentParser,
    sections: Mapping[str, Section],
    arguments: list[str] | None,
    libraries: Sequence[str],
) -> None:
    """Measures the chosen sections on a CPU, prints their tables, writes OUTPUT.json and OUTPUT.png.

    Args:
      parser: the command line, to which the options of all comparisons are added.
      sections: by their names on the command line.
      arguments: of the command line; None: those of this process.
      libraries: that have to be installed.
    """
    parser.add_argument("sections", nargs="*", help=f"some of {', '.join(sections)}; default: all")
    stem = Path(parser.prog.rpartition(".")[2])
    parser.add_argument("--output", type=new_file, default=stem, help="writes OUTPUT.json, OUTPUT.png")
    parser.add_argument("--rounds", type=positive, default=9, help="timed rounds of each contestant (9)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to test that it runs")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.sections) - set(sections)):
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(sections)}")
    needs("matplotlib", *libraries)
    os.environ["JAX_PLATFORMS"] = "cpu"
    about, rows = machine(), list[Row]()
    for name in given.sections or sections:
        measured = sections[name](given)
        rows.extend(measured)  # saved at once: the next section may fail
        results = {"about": about, "rows": [vars(row) for row in rows]}
        written = keep(given.output, results, lambda path: plot(rows, path))
        Console(width=110).print(table_of(measured))
    print(written)


def plot(rows: list[Row], path: Path) -> None:
    """Bars of the times, as multiples of ours."""
    names = list(dict.fromkeys(row.section for row in rows))
    with picture(path, len(names), size=(7, 1.2 + 1.6 * len(names))) as (figure, axes):
        for axis, name in zip(axes, names, strict=True):
            mine = [row for row in rows if row.section == name]
            colours = [
                "tab:orange" if row.name.startswith(("transformer", "decode")) else "tab:blue" for row in mine
            ]
            bars = axis.barh([row.name for row in mine], [row.ratio for row in mine], color=colours)
            axis.axvline(1, color="gray", linewidth=0.8, zorder=0)
            label = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # hides the line behind it
            axis.bar_label(bars, [f"{row.seconds:.3g} s" for row in mine], padding=4, bbox=label)
            axis.invert_yaxis()
            axis.set_title(name, loc="left", fontsize=10)
            axis.set_xlim(0, 1.15 * max(row.ratio for row in mine))
        figure.supxlabel("median time as a multiple of transformer's: shorter is better", fontsize=10)


def table_of(rows: list[Row]) -> Table:
    """The table of a section."""
    table = Table("program", "median s", "rate", "peak MiB", "x ours", "identical", title=rows[0].section)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.seconds:.4f}",
            f"{row.rate:,.1f} {row.unit}",
            f"{row.memory / 2**20:,.0f}" if row.memory else "",
            f"{row.ratio:.2f}",
            "" if row.agreement is None else f"{row.agreement:.0%}",
        )
    return table
