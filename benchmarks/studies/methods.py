"""Compares attention mechanisms and training methods with the plain Transformer, under equal updates.

`python -m benchmarks.studies.methods WORK` trains the model of the preset `quickstart` by Adam, and each
variant of it with another attention or training method, from the same seed for the same number of updates,
on the built-in corpus; or with --corpus the preset `tiny` on a folder of train, validation and test in two
languages (`train.en`, ...).
Variants for a trained model continue the plain run for a quarter of the updates, and so does the plain model.
Each run translates the test set. Where a paired bootstrap test finds no difference from the plain model
(p > 0.05), the run is repeated with more seeds. Then the cost of each is measured beside the plain model, and
a table is written. Everything is in WORK: if interrupted, the same command continues.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import Contestant, machine, report, save, side_by_side
from benchmarks.runs import ADAM, Comparison, compare, once, test_set, text_files, translated, updates
from transformer import PRESETS, Config, Run, Translator, train
from transformer.config.options import text_data
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.fast_autoregressive.options import OPTIONS as FAST
from transformer.systems.registry import Variant
from transformer.systems.transformer.options import METHODS as OF_TRANSFORMERS

PLAIN, FURTHER = "plain", "further"
PEAK, LOWER = 3e-3, 3e-4  # learning rates, from scratch and of a trained model
SENTENCES = 200  # of each timed decoding
UPDATES = 10  # of each turn that is timed
TOGETHER = 4  # methods that are timed in turns
UNCERTAIN = 0.05  # p of a difference that needs more seeds
_VARIANTS = {**OF_TRANSFORMERS, **FAST.variants}
METHODS = {
    PLAIN: Variant("as it is"),
    **{name: variant for name, variant in _VARIANTS.items() if not variant.continues},
    FURTHER: Variant("as it is, trained further", continues=True),
    **{name: variant for name, variant in _VARIANTS.items() if variant.continues},
}


@dataclass(frozen=True)
class Plan:
    """What to compare."""

    work: Path
    corpus: Path | None
    updates: int
    seeds: int

    def path(self, name: str, seed: int) -> Path:
        """The run directory of a method."""
        return self.work / f"{name}-{seed}"

    def config(self, name: str, seed: int) -> Config:
        """The config of a run."""
        variant, base = METHODS[name], PRESETS["tiny" if self.corpus else "quickstart"]
        optimizer = base.optimizer if self.corpus else ADAM
        steps = max(1, self.updates // 4) if variant.continues else self.updates
        files = text_files(self.corpus) if self.corpus else {"buckets": (16, 24, 40)}
        config = replace(
            base,
            data=replace(text_data(base), batching="buckets", **files),
            model=replace(base.model, dropout=0.1, norm="pre"),  # type: ignore[call-arg]
        )
        changed = variant.of(config)
        scheduled = changed.scheduled
        return replace(
            changed,
            training=replace(
                base.training,
                seed=seed,
                steps=steps,
                init_from=self.path(PLAIN, seed) if variant.continues else None,
                evaluate_every=max(1, steps // 4),
                evaluate_sentences=100,
                keep_last=1,
            ),
            optimizer=replace(
                optimizer,
                peak=LOWER if variant.continues else PEAK,
                warmup_steps=max(1, min(optimizer.warmup_steps, steps // 4)),
            ),
            scheduled=replace(scheduled, updates=steps) if scheduled.share else scheduled,
        )

    def build(self, name: str, seed: int) -> Json:
        """Trains a run, unless it is there, and translates the test set with its last checkpoint."""
        path, about = self.path(name, seed), self.path(name, seed).with_suffix(".json")
        if about.exists():
            there, wanted = (each.training.steps for each in (Run(path).config, self.config(name, seed)))
            if there != wanted:
                raise UserError(f"{path} has {there:,} updates, not {wanted:,}: name another WORK")
        elif METHODS[name].continues:
            self.build(PLAIN, seed)
        return once(about, lambda: self.trained(name, seed))

    def trained(self, name: str, seed: int) -> Json:
        """Trains a run, and translates the test set."""
        path, start = self.path(name, seed), time.monotonic()
        train(self.config(name, seed), path)
        seconds = time.monotonic() - start
        found: Json = {"seconds": seconds, "translations": translated(path, "last")}
        jax.clear_caches()  # Linux limits the memory maps of a process, of which each program has some
        return found


# Quality


def compared(plan: Plan, name: str, seed: int) -> Comparison:
    """A run, compared with the plain run with that seed."""
    against = FURTHER if METHODS[name].continues else PLAIN
    both = (plan.build(each, seed)["translations"] for each in (against, name))
    return compare(plan.path(PLAIN, seed), *both)


def quality(plan: Plan, name: str) -> dict[str, Any]:
    """The comparisons of a method: with one seed, or with all if it is not certainly different."""
    found = [compared(plan, name, 0)]
    baseline = name in (PLAIN, FURTHER)
    if found[0].p > UNCERTAIN and not baseline:
        found += [compared(plan, name, seed) for seed in range(1, plan.seeds)]
    differences = [each.difference for each in found]
    return {
        "name": name,
        "options": METHODS[name].words,
        "seeds": len(found),
        "bleu": statistics.mean(each.bleu for each in found),
        "interval": found[0].interval,
        "difference": statistics.mean(differences),
        "spread": statistics.stdev(differences) if len(differences) > 1 else None,
        "p": found[0].p,
        "each": [dataclasses.asdict(each) for each in found],
    }


# Cost


def update(config: Config) -> Callable[[], None]:
    """Some updates of a run, on its first batch. (After one alone, most of its time is for memory that the
    system has taken away while the others had their turns.)"""
    every = updates(config, repeat=True)

    def some() -> None:
        for _ in range(UPDATES):
            next(every)

    return some


def decoding(path: Path) -> Callable[[], None]:
    """Translation of some test sentences."""
    translator = Translator.load(path, "last")
    sources = [source for source, _ in test_set(path)[:SENTENCES]]

    def translate() -> None:
        translator.translate(sources)

    return translate


def costs(plan: Plan, names: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Of each method, seconds and peak memory of an update, and seconds of a decoding, relative to the plain
    model: ratios of medians. Some methods and the plain model take turns."""
    kept = {name: plan.path(name, 0).with_suffix(f".cost-{rounds}.json") for name in names}
    missing = [name for name in names if not kept[name].exists()]
    for some in (missing[start : start + TOGETHER] for start in range(0, len(missing), TOGETHER)):
        each = [PLAIN, *(name for name in some if name != PLAIN)]
        updating = [Contestant(name, update, {"config": plan.config(name, 0)}) for name in each]
        searching = [Contestant(name, decoding, {"path": plan.path(name, 0)}) for name in each]
        measured = zip(
            side_by_side(updating, rounds), side_by_side(searching, max(3, rounds // 3), 1), strict=True
        )
        (plain, plain_search), *others = measured
        for updating, search in [(plain, plain_search), *others]:
            found = {
                "update": updating.median / plain.median,
                "memory": updating.memory / plain.memory,
                "decoding": search.median / plain_search.median,
                "update_seconds": updating.median / UPDATES,
                "sentences_per_second": SENTENCES / search.median,
            }
            if updating.name in some:
                save(str(kept[updating.name]), found)
    return {name: json.loads(path.read_text()) for name, path in kept.items()}


# The table

HEADER = "| method | options | BLEU | difference | p | seeds | update | memory | decoding |"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown. The costs, of an update in time and memory and of decoding in time, are relative to the plain
    model."""
    lines = [HEADER, "|---" * HEADER.count(" | ") + "|---|"]
    for row in rows:
        spread = "" if row["spread"] is None else f" ± {row['spread']:.2f}"
        baseline = row["name"] in (PLAIN, FURTHER)
        against = "" if baseline else f"{row['difference']:+.2f}{spread}"
        options = f"`{row['options']}`" if row["options"] else ""
        lines.append(
            f"| {row['name']} | {options} | {row['bleu']:.2f} ± {row['interval']:.2f} | {against} | "
            f"{'' if baseline else format(row['p'], '.3f')} | {row['seeds']} | {row['update']:.2f} | "
            f"{row['memory']:.2f} | {row['decoding']:.2f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, measures, prints the table and writes WORK/methods.json and methods.md."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs and the table")
    parser.add_argument("--corpus", type=Path, help="folder with train.en, train.de, validation.*, test.*")
    parser.add_argument("--updates", type=positive, default=1200, help="of each training from scratch (1200)")
    parser.add_argument("--seeds", type=positive, default=3, help="where one seed shows no difference (3)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these methods; plain is always needed")
    parser.add_argument("--train", action="store_true", help="train with one seed and stop")
    parser.add_argument(
        "--rounds", type=positive, default=9, help=f"timed turns of each method, of {UPDATES} updates (9)"
    )
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.only or ()) - set(METHODS)):
        raise UserError(f"--only {unknown[0]}: there is no such method; there are {', '.join(METHODS)}")
    if given.corpus and not given.corpus.is_dir():
        raise UserError(f"--corpus {given.corpus}: no such folder")
    given.work.mkdir(parents=True, exist_ok=True)
    plan = Plan(given.work, given.corpus, given.updates, given.seeds)
    names = [name for name in METHODS if not given.only or name in given.only]
    for name in names:
        plan.build(name, 0)
    if given.train:
        print(f"trained: {', '.join(names)}, in {given.work}")
        return
    measured = costs(plan, names, given.rounds)
    rows = [quality(plan, name) | measured[name] for name in names]
    settings = {key: str(value) for key, value in dataclasses.asdict(plan).items()}
    report(given.work / "methods", {"about": machine() | settings, "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
