"""Compares all systems on one corpus: quality, training time and decoding speed.

`python -m benchmarks.studies.systems WORK` trains an autoregressive teacher and translates its training text
with it. Every parallel decoder is initialised from the teacher and trained for fewer updates (`--students`),
once on the original text and once on the teacher's. The baselines train for as many updates as the teacher,
on the original text. Then each system decodes the test set, and a table is written. The corpus is the
built-in one, or with --corpus a folder of train, validation and test in two languages (`train.en`, ...).
Everything is in WORK: if interrupted, the same command continues. `--only NAME ...` trains some runs in a
separate process.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, save
from benchmarks.runs import ADAM, once, test_set, text_files
from transformer import PRESETS, Config, Run, TransformerConfig, Translator, train, variant
from transformer.tasks.metrics.scores import bleu
from transformer.translator.distill import distill
from transformer.translator.rescoring import rescored
from transformer.translator.translator import translation_of

TEACHER, DISTILLED = "teacher", "distilled"
KINDS = ("length", "bos", "fertility", "masked")
BUILT_IN = 30_000  # training pairs: the teacher has to translate them all
PEAK = 3e-3  # learning rate
ROWS, ALONE = 64, 50  # sentences per batch; number of sentences also decoded one by one
BASELINES = ("convolutional", "recurrent", "recurrent-dot", "recurrent-hard", "recurrent-fixed")


@dataclass(frozen=True)
class Plan:
    """The runs to compare, and their numbers of updates."""

    work: Path
    corpus: Path | None
    family: str
    updates: int
    students: int

    def names(self) -> list[str]:
        """The runs, the teacher first."""
        students = [f"{kind}{suffix}" for kind in KINDS for suffix in ("", f"-{DISTILLED}")]
        return [TEACHER, *students, *(BASELINES if self.family == "tiny" else ())]

    def config(self, name: str) -> Config:
        """The config of a run."""
        system = name.removesuffix(f"-{DISTILLED}")
        preset = self._preset(system)
        folder = self.work / DISTILLED if name.endswith(DISTILLED) else self.corpus
        files = text_files(folder) if folder else {"built_in_size": BUILT_IN}
        data = replace(preset.data, **files)
        if self.family == "quickstart":  # compiling more programs would take longer than the training
            data = replace(data, buckets=(16, 24, 40))
        student = name not in (TEACHER, *BASELINES)
        model = replace(preset.model, dropout=0.1)
        if isinstance(model, TransformerConfig):
            model = replace(model, norm="pre")  # learns faster at first, and all runs are short
        if system == "fertility":
            model = replace(model, teacher=self.work / TEACHER)  # type: ignore[call-arg]
        steps = self.students if student else self.updates
        training = replace(
            preset.training,
            steps=steps,
            init_from=self.work / TEACHER if student else None,
            evaluate_every=max(1, steps // 4),
            evaluate_sentences=100,
            keep_last=1,
        )
        optimizer = preset.optimizer if self.family == "tiny" else ADAM
        warmup = min(optimizer.warmup_steps, max(1, steps // 4))
        optimizer = replace(optimizer, peak=PEAK, warmup_steps=warmup)
        return replace(preset, data=data, model=model, training=training, optimizer=optimizer)

    def _preset(self, name: str) -> Config:
        """The preset of a run, or its variant."""
        if name not in BASELINES:
            return variant(PRESETS[self.family], *[name] * (name != TEACHER))
        base, _, kind = name.partition("-")
        return variant(PRESETS[f"{self.family}-{base}"], *[kind] * bool(kind))

    def build(self, name: str) -> None:
        """Trains a run to its end. With the teacher, also translates its training text."""
        run_dir = self.work / name

        def seconds() -> dict[str, float]:
            start = time.monotonic()
            train(self.config(name), run_dir)
            return {"seconds": time.monotonic() - start}

        once(run_dir.with_suffix(".json"), seconds)
        if name == TEACHER:
            search = replace(Run(run_dir).config.decoding, beam_size=4, rows=64)
            distill(run_dir, self.work / DISTILLED, "last", search)


@dataclass(frozen=True)
class Way:
    """A way to decode a run: sources -> translations, `rows` at a time."""

    label: str
    translate: Callable[[list[str], int], list[str]]


def ways(plan: Plan, name: str) -> Iterator[Way]:
    """Yields the ways to decode a run."""
    translator, buckets = Translator.load(plan.work / name, "last"), (16, 24, 48)

    def way(label: str, **options: Any) -> Way:
        return Way(
            label,
            lambda sources, rows: translator.translate(sources, buckets=buckets, rows=rows, **options),
        )

    def judged(label: str, **options: Any) -> Way:
        def translate(sources: list[str], rows: int) -> list[str]:
            found = translator.search(sources, buckets=buckets, rows=rows, **options)
            return [several[0].text for several in rescored(sources, found, judge)]

        judge = Translator.load(plan.work / TEACHER, "last")
        return Way(label, translate)

    system = name.removesuffix(f"-{DISTILLED}")
    if name == TEACHER:
        yield way("beam 4", beam_size=4)
        yield way("greedy", method="greedy")
    elif system in BASELINES:
        yield way("beam 4", beam_size=4)
    elif system == "masked":
        for iterations in (1, 4, 10):
            yield way(f"{iterations} iterations", iterations=iterations, beam_size=1)
        yield way("10 iterations, 3 lengths", iterations=10, beam_size=3)
    else:
        yield way("at once", beam_size=1)
        if system != "bos":
            yield judged("9 candidates, teacher's choice", beam_size=9)


def measure(plan: Plan, names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Measures and prints BLEU and sentences per second, in batches and one by one, of every way of every run
    on the test set."""
    teacher = Run(plan.work / TEACHER)
    test = test_set(teacher.path)
    sources = [source for source, _ in test]
    references = [translation_of(teacher).tokenizers[1].plain(target) for _, target in test]
    rows = []
    for name in names:
        run = Run(plan.work / name)
        tokenize, _ = translation_of(run).bleu_tokenizer(references)
        for way in ways(plan, name):
            translations, together = _timed(way, [sources], ROWS, rounds)
            some = sources[:: max(1, len(sources) // ALONE)]
            _, alone = _timed(way, [[source] for source in some], 1, rounds)
            score = bleu(translations, references, tokenize)
            rows.append(
                {
                    "run": name,
                    "way": way.label,
                    "bleu": score.value,
                    "signature": score.signature,
                    "sentences_per_second": together,
                    "sentences_per_second_one_by_one": alone,
                    "updates": run.config.training.steps,
                    "training_minutes": json.loads((plan.work / f"{name}.json").read_text())["seconds"] / 60,
                    "parameters": _size(plan.work / name),
                }
            )
            speed = f"{together:.0f} sentences/s, {alone:.0f} one by one"
            print(f"{name}, {way.label}: BLEU {score.value:.2f}, {speed}", flush=True)
    return rows


def _timed(way: Way, asked: list[list[str]], rows: int, rounds: int) -> tuple[list[str], float]:
    """The translations of the first request, and sentences per second over all requests: the median of the
    rounds after one that compiles."""
    seconds = []
    for _ in range(1 + rounds):
        start = time.monotonic()
        said = [way.translate(sources, rows) for sources in asked]
        seconds.append(time.monotonic() - start)
    return said[0], sum(map(len, asked)) / statistics.median(seconds[1:])


def _size(run_dir: Path) -> int:
    return sum(x.size for x in jax.tree.leaves(Run(run_dir).shapes))


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, decodes, prints the table and writes WORK/systems.json."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs, the distilled corpus and the table")
    parser.add_argument("--corpus", type=Path, help="folder with train.en, train.de, validation.*, test.*")
    parser.add_argument("--updates", type=positive, default=3000, help="of the teacher and every baseline")
    parser.add_argument("--students", type=positive, help="of each parallel decoder (a third)")
    parser.add_argument("--only", nargs="+", help="train these runs and stop")
    parser.add_argument("--table", action="store_true", help="train nothing: measure the existing runs")
    parser.add_argument("--rounds", type=positive, default=3, help="timed rounds of each decoding")
    given = parser.parse_args(arguments)
    family = "tiny" if given.corpus else "quickstart"
    students = given.students or max(1, given.updates // 3)
    plan = Plan(given.work, given.corpus, family, given.updates, students)
    given.work.mkdir(parents=True, exist_ok=True)
    unknown = sorted(set(given.only or ()) - set(plan.names()))
    if unknown:
        parser.error(f"no run {', '.join(unknown)}: there are {', '.join(plan.names())}")
    names = [name for name in plan.names() if not given.table or (given.work / f"{name}.json").exists()]
    if not given.table:
        for name in given.only or names:
            plan.build(name)
    if given.only:
        return
    rows = measure(plan, names, given.rounds)
    table = Table("run", "way", "BLEU", "sentences/s", "one by one", "updates", "trained (min)", "parameters")
    for row in rows:
        table.add_row(
            row["run"],
            row["way"],
            f"{row['bleu']:.2f}",
            f"{row['sentences_per_second']:.0f}",
            f"{row['sentences_per_second_one_by_one']:.0f}",
            f"{row['updates']:,}",
            f"{row['training_minutes']:.1f}",
            f"{row['parameters']:,}",
        )
    Console(width=110).print(table)
    settings = {key: str(value) for key, value in dataclasses.asdict(plan).items()}
    save(str(given.work / "systems.json"), {"about": machine() | settings, "rows": rows})
    print(f"{rows[0]['signature']}\nwritten to {given.work / 'systems.json'}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
