"""`python -m benchmarks`: this program and its peers side by side on a CPU, on the same weights and inputs.

Every contestant runs in a separate process. They take turns, and medians are compared. Outputs are compared
too: the networks must agree on the loss of a batch, and the table has the share of identical translations.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.command import needs, new_file, positive, run
from benchmarks.measure import Measurement, keep, machine, script, seconds_of, side_by_side

AGREE = 0.9  # of the sentences; the others may differ because float32 sums have another order


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


def rows_of(
    section: str, found: list[Measurement], work: float, unit: str, agree: Sequence[float | None]
) -> list[Row]:
    """The rows of a section, ours first. Each round does `work` units."""
    return [
        Row(section, m.name, m.median, work / m.median, unit, m.memory, m.median / found[0].median, share)
        for m, share in zip(found, agree, strict=True)
    ]


def training(given: argparse.Namespace, size: str) -> list[Row]:
    """A training step: dropout, label smoothing and Adam included."""
    from benchmarks import training as section

    case = section.CASES[size]
    if given.quick:
        case = replace(case, num_layers=1, vocab_size=200, rows=8)
    section.check_losses(case)
    found = side_by_side(section.contestants(case), given.rounds)
    return rows_of(f"training step, {size}", found, case.tokens, "tokens/s", [None] * len(found))


def sentences(run_dir: Path, count: int) -> list[str]:
    """Test sentences of mixed lengths, at equal distances in the run's test set."""
    from transformer import Run
    from transformer.data.sources.corpora import open_corpus

    splits = open_corpus(Run(run_dir).config.data).splits
    pairs = list(splits.get("test", splits["validation"]))
    return [source for source, _ in pairs[:: max(1, len(pairs) // count)]][:count]


def decoding(given: argparse.Namespace, count: int, name: str) -> list[Row]:
    """Beam search over `count` sentences at once."""
    from benchmarks import decoding as section

    run_dir = section.model(given.work, given.model, given.steps, given.quick)
    sources = sentences(run_dir, count)
    found = side_by_side(section.contestants(run_dir, given.work, sources), given.rounds)
    agree = [section.agreement(found[0].output, m.output) for m in found]
    for measured, share in zip(found, agree, strict=True):
        if share < AGREE and "int8" not in measured.name:
            print(
                f"note: {measured.name} has only {share:.0%} of the translations in common", file=sys.stderr
            )
    return rows_of(name, found, len(sources), "sentences/s", agree)


def whole_file(given: argparse.Namespace) -> list[Row]:
    """1,000 sentences, by whole processes from start to end."""
    from benchmarks import decoding as section

    run_dir = section.model(given.work, given.model, given.steps, given.quick)
    commands = section.whole_process(run_dir, given.work, sentences(run_dir, 1000))
    rows = processes("file of 1,000, whole process", commands, given.rounds)
    texts = ((given.work / name).read_text(encoding="utf-8").splitlines() for name in section.WRITTEN)
    ours, *theirs = ([line.split() for line in lines] for lines in texts)
    shares = [1.0, *(section.agreement(ours, other) for other in theirs)]
    return [replace(row, agreement=share) for row, share in zip(rows, shares, strict=True)]


def start_up(given: argparse.Namespace) -> list[Row]:
    """The time of an import, and from start to the first translation."""
    from benchmarks import decoding as section

    run_dir = section.model(given.work, given.model, given.steps, given.quick)
    text = given.work / "sentence.txt"
    text.write_text(sentences(run_dir, 1)[0] + "\n", encoding="utf-8")
    translation = given.work / "translation.txt"
    commands = {
        "import transformer": [sys.executable, "-c", "import transformer"],
        "decode.py, one sentence": script("decode.py", run_dir, "--input", text, "--output", translation),
    }
    return processes("start-up", commands, given.rounds)


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


Section = Callable[[argparse.Namespace], list[Row]]
SECTIONS: dict[str, Section] = {
    "train-tiny": lambda given: training(given, "tiny"),
    "train-base": lambda given: training(given, "base"),
    "decode": lambda given: decoding(given, 48, "beam 4, 48 sentences"),
    "sentence": lambda given: decoding(given, 1, "beam 4, one sentence"),
    "file": whole_file,
    "start": start_up,
}


def plot(rows: list[Row], path: Path) -> None:
    """Bars of the times, as multiples of ours."""
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.section for row in rows))
    figure, axes = pyplot.subplots(len(names), 1, figsize=(7, 1.2 + 1.6 * len(names)), layout="constrained")
    for axis, name in zip([axes] if len(names) == 1 else axes, names, strict=True):
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
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Measures the chosen sections, prints the table, writes OUTPUT.json and OUTPUT.png."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "sections",
        nargs="*",
        help=f"some of {', '.join(SECTIONS)}; default: all",
    )
    parser.add_argument(
        "--output", type=new_file, default=Path("performance"), help="writes OUTPUT.json, .png"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/benchmarks"), help="folder for models")
    parser.add_argument(
        "--model", type=Path, help="a run to decode with; default: one that is trained on first use"
    )
    parser.add_argument("--steps", type=positive, default=2000, help="updates of the default model")
    parser.add_argument("--rounds", type=positive, default=9, help="timed rounds of each contestant")
    parser.add_argument("--quick", action="store_true", help="small sizes, to test that it runs")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.sections) - set(SECTIONS)):
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    needs("matplotlib", "torch", "transformers", "ctranslate2")
    os.environ["JAX_PLATFORMS"] = "cpu"
    given.work.mkdir(parents=True, exist_ok=True)
    about, rows = machine(), list[Row]()
    for name in given.sections or SECTIONS:
        found = SECTIONS[name](given)
        rows.extend(found)  # saved at once: the next section may fail
        results = {"about": about, "rows": [vars(row) for row in rows]}
        written = keep(given.output, results, lambda path: plot(rows, path))
        Console(width=110).print(table_of(found))
    print(written)


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


if __name__ == "__main__":
    raise SystemExit(run("benchmarks", main))
