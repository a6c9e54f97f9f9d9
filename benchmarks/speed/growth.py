"""How cost grows: decoding a token against length, beam and batch; training on a token against length.
Against length also the memory, which the compiler states, and for full, restricted and linear attention.

`python -m benchmarks.speed.growth` draws it. With --panels, other panels keep what OUTPUT.json has. The
networks are untrained, so that every search runs to its maximum length: searches that end early would hide
the growth.
"""

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.command import drawing_options, run
from benchmarks.measure import Program, compiled, keep, machine, medians, picture
from benchmarks.speed.training import CASES, Case, batch_of, jax_update, network
from transformer import Transformer
from transformer.decoding.beam import beam_search

LENGTH, BEAM, ROWS = 32, 4, 16  # of a search, while another one grows
PANELS = ("length", "beam", "rows", "training")
AGAINST_LENGTH = ("length", "training")  # with all kinds of attention
WINDOW = 32
FULL = "full attention"
ATTENTION: dict[str, dict[str, Any]] = {
    FULL: {},
    f"restricted, r = {WINDOW}": {"window": WINDOW},
    "linear attention": {"mechanism": "linear"},
}
LENGTHS, BEAMS, BATCHES = (16, 32, 64, 128, 256), (1, 2, 4, 8, 16), (1, 4, 16, 64)
TRAINED = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Point:
    """What a program costs."""

    panel: str
    line: str
    size: int
    seconds: float
    """A token."""
    bytes: int
    """For results in between, in decoding with the cache."""


def searching(case: Case, length: int, beam: int, rows: int) -> Program:
    """A search that takes `length` steps, since <eos> is as unlikely as any word."""
    model = Transformer(network(replace(case, dropout=0.0)))
    source = np.random.default_rng(0).integers(4, case.vocab_size, (rows, length), np.int32)
    variables = jax.jit(model.init)(jax.random.key(0), source[:1], source[:1])
    search = functools.partial(
        beam_search, model, beam_size=beam, stop="full", max_length=length, extra_length=length
    )
    return compiled(search, variables, jnp.asarray(source))


def updating(case: Case) -> Program:
    """A training step."""
    step, state = jax_update(case)
    return compiled(step, state, jax.tree.map(jnp.asarray, batch_of(case)))


def program(searched: Case, trained: Case, panel: str, line: str, size: int) -> tuple[Program, int]:
    """A program of a panel, and how many tokens it generates or trains on."""
    if panel == "training":
        case = replace(trained, rows=trained.tokens // size, time=size, **ATTENTION[line])
        return updating(case), case.tokens
    options = {"length": LENGTH, "beam": BEAM, "rows": ROWS, panel: size}
    return searching(replace(searched, **ATTENTION[line]), **options), options["rows"] * options["length"]


def measure(
    searched: Case, trained: Case, repeats: int, sizes: dict[str, tuple[int, ...]]
) -> Iterator[list[Point]]:
    """The points of each panel. All updates have as many tokens as `trained`."""
    for panel, some in sizes.items():
        lines = list(itertools.product(ATTENTION if panel in AGAINST_LENGTH else [FULL], some))
        made = [program(searched, trained, panel, *one) for one in track(lines, f"compiling, {panel}")]
        seconds = medians([each for each, _ in made], repeats, f"measuring, {panel}")
        yield [
            Point(panel, *one, once / tokens, each.bytes)
            for one, once, (each, tokens) in zip(lines, seconds, made, strict=True)
        ]


def earlier(output: Path, panels: Sequence[str]) -> list[Point]:
    """The points of the other panels that an earlier run has written."""
    data = output.with_suffix(".json")
    kept = json.loads(data.read_text())["points"] if data.exists() else []
    return [Point(**point) for point in kept if point["panel"] not in panels]


def plot(points: list[Point], path: Path) -> None:
    """Six panels, milliseconds per token and megabytes against what grows."""
    from matplotlib import ticker

    time, memory = "ms a token", "MB"
    panels = [
        ("length", time, "decoding", "length of source and translation"),
        ("length", memory, "decoding", "length of source and translation"),
        ("beam", time, "decoding", "beam size"),
        ("training", time, "training", "length of a sentence"),
        ("training", memory, "training", "length of a sentence"),
        ("rows", time, "decoding", "sentences at once"),
    ]
    with picture(path, 2, 3, size=(13, 6.5)) as (_, axes):
        for axis, (panel, unit, what, name) in zip(axes, panels, strict=True):
            lines: dict[str, dict[int, float]] = {}
            for point in points:
                if point.panel == panel:
                    value = 1e3 * point.seconds if unit == time else point.bytes / 1e6
                    lines.setdefault(point.line, {})[point.size] = value
            for line, values in lines.items():
                axis.plot(list(values), list(values.values()), marker="o", label=line)
            ticks = sorted({size for values in lines.values() for size in values})
            axis.set(xscale="log", xlabel=name, ylabel=unit, title=f"{what} against {name}")
            axis.set_xticks(ticks, [str(size) for size in ticks])
            axis.xaxis.set_minor_locator(ticker.NullLocator())
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
            if len(lines) > 1:
                axis.legend()


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints a table, writes OUTPUT.json and OUTPUT.png."""
    given = drawing_options(__spec__.name, __doc__, 5, arguments, panels=PANELS)
    sizes = {"length": LENGTHS, "beam": BEAMS, "rows": BATCHES, "training": TRAINED}
    searched, trained = CASES["base"], CASES["tiny"]
    if given.quick:
        small: dict[str, Any] = {"num_layers": 1, "d_model": 32, "d_ff": 64, "vocab_size": 100}
        searched, trained = replace(searched, **small), replace(trained, **small, rows=4)
        sizes = {name: some[:1] for name, some in sizes.items()}
    sizes = {name: some for name, some in sizes.items() if name in given.panels}
    about, points = machine(), earlier(given.output, given.panels)
    table = Table("against", "what", "size", "ms a token", "MB")
    for found in measure(searched, trained, given.repeats, sizes):
        points.extend(found)  # saved at once: everything takes half an hour
        results = {"about": about, "points": [asdict(point) for point in points]}
        written = keep(given.output, results, lambda path: plot(points, path))
        for each in found:
            costs = f"{1e3 * each.seconds:.3f}", f"{each.bytes / 1e6:.1f}"
            table.add_row(each.panel, each.line, str(each.size), *costs)
    Console(width=80).print(table)
    print(written)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
