"""How cost grows: decoding a token against length, beam and batch; training on a token against length; with
linear attention beside the ordinary one.

`python -m benchmarks.growth` draws it. With --panels, other panels keep what OUTPUT.json has. The networks
are untrained, so that every search runs to its maximum length: searches that end early would hide the growth.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.command import drawing_options, run
from benchmarks.measure import keep, machine
from benchmarks.training import CASES, Case, jax_step, network
from transformer import Transformer
from transformer.decoding.beam import beam_search

LENGTH, BEAM, ROWS = 32, 4, 16  # of a search, while another one grows
PANELS = ("length", "beam", "rows", "training")
FULL, LINEAR = "full attention", "linear attention"
MECHANISMS = {FULL: "dot-product", LINEAR: "linear"}
LENGTHS, BEAMS, BATCHES = (16, 32, 64, 128, 256), (1, 2, 4, 8, 16), (1, 4, 16, 64)
TRAINED, WINDOW, TOKENS = (32, 64, 128, 256, 512, 1024), 32, 4096
Point = tuple[str, str, int, float]
"""The panel, the line in it, the size, and seconds per token."""


def median_seconds(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Median seconds of each call. They take turns, so that a disturbance of the machine affects the whole
    curve. The first two rounds, which compile and warm up, do not count."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats + 2):
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call())
            times.append(time.perf_counter() - start)
    return [statistics.median(times[2:]) for times in seconds]


def searching(case: Case, length: int, beam: int, rows: int) -> Callable[[], Any]:
    """A search that takes `length` steps, since <eos> is as unlikely as any word."""
    model = Transformer(network(replace(case, dropout=0.0)))
    source = np.random.default_rng(0).integers(4, case.vocab_size, (rows, length), np.int32)
    variables = jax.jit(model.init)(jax.random.key(0), source[:1], source[:1])
    options = {"beam_size": beam, "stop": "full", "max_length": length, "extra_length": length}
    return lambda: beam_search(model, variables, jnp.asarray(source), **options)


def measure(
    searched: Case, trained: Case, tokens: int, repeats: int, sizes: dict[str, tuple[int, ...]]
) -> Iterator[list[Point]]:
    """The points of each panel. An update has `tokens` tokens at every length."""
    standard = {"length": LENGTH, "beam": BEAM, "rows": ROWS}
    for panel in ("length", "beam", "rows"):
        if panel not in sizes:
            continue
        chosen = [
            (line, standard | {panel: size})
            for line in (MECHANISMS if panel == "length" else (FULL,))
            for size in sizes[panel]
        ]
        cases = {line: replace(searched, mechanism=MECHANISMS[line]) for line, _ in chosen}
        seconds = median_seconds([searching(cases[line], **options) for line, options in chosen], repeats)
        yield [
            (panel, line, options[panel], once / (options["rows"] * options["length"]))
            for (line, options), once in zip(chosen, seconds, strict=True)
        ]
    if "training" not in sizes:
        return
    lines = [
        (line, replace(trained, rows=tokens // size, time=size, window=window, mechanism=mechanism))
        for line, window, mechanism in (
            (FULL, None, "dot-product"),
            (f"restricted, r = {WINDOW}", WINDOW, "dot-product"),
            (LINEAR, None, "linear"),
        )
        for size in sizes["training"]
    ]
    seconds = median_seconds([jax_step(case) for _, case in lines], repeats)
    yield [
        ("training", line, case.time, once / tokens)
        for (line, case), once in zip(lines, seconds, strict=True)
    ]


def earlier(output: Path, panels: Sequence[str]) -> list[Point]:
    """The points of the other panels that an earlier run has written."""
    data = output.with_suffix(".json")
    kept = json.loads(data.read_text())["points"] if data.exists() else []
    return [tuple(point) for point in kept if point[0] not in panels]


def plot(points: list[Point], path: Path) -> None:
    """Four panels, milliseconds per token against what grows."""
    from matplotlib import pyplot, ticker

    labels = {
        "length": ("decoding", "length of source and translation"),
        "beam": ("decoding", "beam size"),
        "rows": ("decoding", "sentences at once"),
        "training": ("training", "length of a sentence"),
    }
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
    for axis, (panel, (what, name)) in zip(axes.flat, labels.items(), strict=True):
        lines: dict[str, dict[int, float]] = {}
        for of, line, size, seconds in points:
            if of == panel:
                lines.setdefault(line, {})[size] = 1e3 * seconds
        for line, values in lines.items():
            axis.plot(list(values), list(values.values()), marker="o", label=line)
        ticks = sorted({size for values in lines.values() for size in values})
        axis.set(xscale="log", xlabel=name, ylabel="ms a token", title=f"{what} against {name}")
        axis.set_xticks(ticks, [str(size) for size in ticks])
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if len(lines) > 1:
            axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints a table, writes OUTPUT.json and OUTPUT.png."""
    given = drawing_options("growth", __doc__, 5, arguments, panels=PANELS)
    sizes = {"length": LENGTHS, "beam": BEAMS, "rows": BATCHES, "training": TRAINED}
    searched, trained, tokens = CASES["base"], CASES["tiny"], TOKENS
    if given.quick:
        small: dict[str, Any] = {"num_layers": 1, "d_model": 32, "d_ff": 64, "vocab_size": 100}
        searched, trained, tokens = replace(searched, **small), replace(trained, **small), 128
        sizes = {name: some[:1] for name, some in sizes.items()}
    sizes = {name: some for name, some in sizes.items() if name in given.panels}
    measured = measure(searched, trained, tokens, given.repeats, sizes)
    about, points = machine(), earlier(given.output, given.panels)
    table = Table("against", "what", "size", "ms a token")
    for found in track(measured, "measuring, panel by panel", len(sizes)):
        points.extend(found)  # saved at once: everything takes half an hour
        written = keep(given.output, {"about": about, "points": points}, lambda path: plot(points, path))
        for panel, line, size, seconds in found:
            table.add_row(panel, line, str(size), f"{1e3 * seconds:.3f}")
    Console(width=80).print(table)
    print(written)


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.growth", main))
