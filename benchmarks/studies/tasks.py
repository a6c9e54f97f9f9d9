"""Which attention, output layer or recurrence solves small built-in tasks that have one right answer.

`python -m benchmarks.studies.tasks WORK` trains, for each task, the plain Transformer and others for the same
number of updates. It writes a table of each task: how many test lines are answered exactly by greedy search,
and the update from which validation BLEU stays above 99. In `spelling`, source and target advance together.
Its table also has the share of attention near the diagonal, and the lines answered exactly if a block of two
digits is repeated 1 to 6 times: up to 12 digits, where training has lines of up to 8. Everything is in WORK:
if interrupted, the same command continues.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.runs import once, test_set
from transformer import PRESETS, Config, Run, Translator, train, variant
from transformer.config.options import text_data
from transformer.data.built_in.spelling import spelled
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.training.methods.guidance import off_diagonal

SOLVED = 99.0  # BLEU of validation lines
REPEATS = range(1, 7)
WIDTH = 0.2  # of the diagonal, as of guided attention
PLAIN = "plain"


def spelling() -> dict[str, Config]:
    """The plain model, and others that are told or forced to advance."""
    base = PRESETS["spelling"]
    names = ("guided", "additive", "location", "monotonic", "at", "fat")
    return {PLAIN: base} | {name: variant(base, name) for name in names}


def dialogue() -> dict[str, Config]:
    """Models that spell names by their letters, and models that copy whole words."""
    plain = variant(PRESETS["dialogue-en"], "plain")
    letters = replace(text_data(plain), tokenizer="char", vocab_size=320, max_length=64, buckets=(48, 64))
    search = replace(plain.decoding, buckets=(48, 64))
    base = replace(plain, data=replace(letters, batch_tokens=2048), decoding=search)
    names = ("at", "fat", "fat-tanh", "fat-hybrid")
    return (
        {PLAIN: base}
        | {name: variant(base, name) for name in names}
        | {
            "pointer-generator, words": PRESETS["dialogue-en"],
            "CopyNet, words": variant(PRESETS["dialogue-en"], "copynet"),
            "plain, words": plain,
        }
    )


def pointing(task: str) -> dict[str, Config]:
    """Models that generate words, that point to them, and that do both."""
    pointer = PRESETS[task]
    outputs: dict[str, dict[str, Any]] = {
        "pointer network": {"output": "pointer", "once": False},
        "pointer network, each word once": {"output": "pointer", "once": True},
        "pointer-generator": {"output": "mixture", "once": False},
        "CopyNet": {"output": "copynet", "once": False},
    }
    each = {
        name: replace(pointer, model=replace(pointer.model, **options)) for name, options in outputs.items()
    }
    return {PLAIN: variant(pointer, "plain")} | each


TASKS: dict[str, Callable[[], dict[str, Config]]] = {
    "spelling": spelling,
    "dialogue": dialogue,
    "sorting": lambda: pointing("sorting"),
    "convex-hull": lambda: pointing("convex-hull"),
}


def exact(translator: Translator, lines: list[tuple[str, str]]) -> float:
    """The share of lines with the right answer, by greedy search."""
    found = translator.translate([source for source, _ in lines], method="greedy")
    return sum(text == target for text, (_, target) in zip(found, lines, strict=True)) / len(lines)


def solved(run: Run) -> int | None:
    """The update from which validation BLEU stays above 99; None: it does not."""
    first = None
    for record in run.log.records("evaluation"):
        if record["bleu"] < SOLVED:
            first = None
        elif first is None:
            first = record["step"]
    return first


def diagonality(translator: Translator, lines: list[tuple[str, str]]) -> float:
    """The mean over tokens of the attention that is near the diagonal: the sum over t of A[n, t] exp(-(n/N -
    t/T)^2 / 2 g^2), with g = 0.2, of the outputs that are found."""
    sources = [source for source, _ in lines]
    near: list[float] = []
    for best, *_ in translator.search(sources, method="greedy", alignments=True):
        attention = np.asarray(best.alignment)
        ones = [jnp.ones((1, size), jnp.int32) for size in attention.shape]
        penalties, _ = off_diagonal(ones[0], ones[1], WIDTH)
        near += (attention * (1 - np.asarray(penalties[0]))).sum(axis=-1).tolist()
    return float(np.mean(near))


def repeated(count: int) -> list[tuple[str, str]]:
    """The lines in which one of the blocks of two digits is repeated."""
    return [spelled([number // 10, number % 10] * count) for number in range(100)]


def build(work: Path, task: str, name: str, config: Config) -> Json:
    """Trains a run and measures it, unless that is done."""
    path = work / task / name.replace(", ", "-").replace(" ", "-")
    return once(path.with_suffix(".json"), lambda: trained(path, task, config) | {"name": name})


def trained(path: Path, task: str, config: Config) -> Json:
    """Trains a run and measures it."""
    start = time.monotonic()
    train(config, path)
    seconds, run = time.monotonic() - start, Run(path)
    translator, lines = Translator.load(path, "last"), test_set(path)
    found: Json = {
        "parameters": sum(x.size for x in jax.tree.leaves(run.shapes)),
        "updates": run.config.training.steps,
        "minutes": seconds / 60,
        "exact": exact(translator, lines),
        "solved": solved(run),
    }
    if task == "spelling":
        found["diagonality"] = diagonality(translator, lines[:200])
        found["repeated"] = [exact(translator, repeated(count)) for count in REPEATS]
    return found


def table(task: str, rows: list[Json]) -> str:
    """Markdown."""
    header = ["", "parameters", "minutes", "exact", "solved after"]
    if task == "spelling":
        header += ["near the diagonal", *(f"k = {count}" for count in REPEATS)]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for row in rows:
        cells = [row["name"], f"{row['parameters']:,}", f"{row['minutes']:.1f}", f"{row['exact']:.1%}"]
        cells.append("-" if row["solved"] is None else f"{row['solved']:,} updates")
        if task == "spelling":
            cells += [f"{row['diagonality']:.2f}", *(f"{share:.0%}" for share in row["repeated"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, and prints and writes the table of each task."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs and tables")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="which (all)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models of each task")
    parser.add_argument("--updates", type=positive, help="of each training (those of the task's preset)")
    given = parser.parse_args(arguments)
    known = {name for task in given.tasks for name in TASKS[task]()}
    if unknown := sorted(set(given.only or ()) - known):
        raise UserError(f"--only {unknown[0]}: there is no such model; there are {'; '.join(sorted(known))}")
    for task in given.tasks:
        (given.work / task).mkdir(parents=True, exist_ok=True)
        rows = []
        for name, config in TASKS[task]().items():
            if given.only and name not in given.only:
                continue
            steps = given.updates or config.training.steps
            every = min(config.training.evaluate_every, max(1, steps // 10))
            training = replace(config.training, steps=steps, evaluate_every=every, keep_last=1)
            rows.append(build(given.work, task, name, replace(config, training=training)))
        report(given.work / task, {"about": machine(), "rows": rows}, table(task, rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
