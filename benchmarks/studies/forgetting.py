"""Adds a direction to a model of two, and measures what it learns and what it forgets.

`python -m benchmarks.studies.forgetting WORK --corpus DIR` trains a model from English to German and to
French on a folder of train, validation and test in three languages (`train.en`, `train.de`, `train.fr`,
...), with the preset `multi30k`. Then it teaches it French to German in three ways: all parameters, all but
the encoder (`--training.freeze encoder`), and adapters (`--adapter.rank`), each with the same updates and
each seed. The best checkpoint, by validation BLEU of the new direction, translates the test set in all
three directions. A table has chrF of each, the share of parameters that is trained, the optimizer's memory,
and the time of the updates. Everything is in WORK: if interrupted, the same command continues.
"""

import argparse
import dataclasses
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.runs import once
from transformer import PRESETS, Config, Run, Translator, train
from transformer.config.methods import AdapterConfig
from transformer.config.options import text_data
from transformer.config.training import OptimizerConfig
from transformer.model.parameters import count
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.tasks.metrics.scores import chrf

OLD, NEW = ("en:de", "en:fr"), ("fr:de",)
SPLITS = ("train", "validation", "test")
LANGUAGES = ("en", "de", "fr")
BASE, FULL, FROZEN, ADAPTER = "base", "full", "frozen-encoder", "adapter"
WAYS = (FULL, FROZEN, ADAPTER)


@dataclass(frozen=True)
class Plan:
    """What to compare."""

    work: Path
    corpus: Path
    before: int
    """Updates of the model of two directions."""
    updates: int
    """Updates of each way to add the third one."""
    rank: int
    seeds: int

    def path(self, name: str, seed: int) -> Path:
        """The run directory."""
        return self.work / f"{name}-{seed}"

    def config(self, name: str, seed: int) -> Config:
        """The config of a run."""
        base, is_base = PRESETS["multi30k"], name == BASE
        files = {
            f"{split}_{side}": self.corpus / f"{split}.{{{side}}}"
            for split in SPLITS
            for side in ("source", "target")
        }
        steps = self.before if is_base else self.updates
        training = replace(
            base.training,
            seed=seed,
            steps=steps,
            evaluate_every=max(1, steps // 5),
            evaluate_sentences=200,
            keep_last=1,
            init_from=None if is_base else self.path(BASE, seed),
            freeze=("encoder",) if name == FROZEN else (),
        )
        data = replace(text_data(base), **files, directions=OLD if is_base else NEW, batching="buckets")
        warmup = max(1, min(400, steps // 5))
        tuned = OptimizerConfig(
            schedule="inverse_sqrt", warmup_steps=warmup, peak=1e-3 if name == ADAPTER else 5e-4
        )
        return replace(
            base,
            data=data,
            training=training,
            optimizer=replace(base.optimizer, warmup_steps=warmup) if is_base else tuned,
            adapter=AdapterConfig(rank=self.rank if name == ADAPTER else 0),
        )

    def build(self, name: str, seed: int) -> Json:
        """Trains a run, unless it is there, and scores it in every direction."""

        def trained() -> Json:
            path = train(self.config(name, seed), self.path(name, seed))
            jax.clear_caches()  # Linux limits the memory maps of a process, of which each program has some
            return self.scored(Run(path)) | about(Run(path))

        return once(self.path(name, seed).with_suffix(".json"), trained)

    def scored(self, finished: Run) -> Json:
        """chrF of each direction on the test set."""
        translator = Translator.load(finished.path)
        found = {}
        for direction in (*OLD, *NEW):
            source, target = direction.split(":")
            lines, references = (
                (self.corpus / f"test.{language}").read_text(encoding="utf-8").splitlines()
                for language in (source, target)
            )
            outputs = translator.translate(lines, source_language=source, target_language=target)
            found[direction] = chrf(outputs, references).value
        return found


def about(finished: Run) -> Json:
    """What is trained, and the time of the updates."""
    trained, _ = jax.eval_shape(finished.parametrisation.split, finished.shapes["params"])
    share = count(trained) / count(finished.shapes["params"])
    (*_, last) = finished.log.records("test")
    return {"share": share, "optimizer": 8 * count(trained), "seconds": last["spent"]["training"]}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each way, means over the seeds."""
    head = [*(f"chrF {x.replace(':', ' to ')}" for x in (*OLD, *NEW)), "trained", "optimizer", "updates took"]
    lines = [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for name in (BASE, *WAYS):
        found = [row[name] for row in rows if name in row]
        if not found:
            continue
        cells = [_mean([one[direction] for one in found]) for direction in (*OLD, *NEW)]
        first = found[0]
        cells += [f"{first['share']:.1%}", f"{first['optimizer'] / 1e6:.1f} MB"]
        cells.append(f"{statistics.median(one['seconds'] for one in found):.0f} s")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, prints the table and writes WORK/forgetting.json and forgetting.md."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs and the table")
    parser.add_argument(
        "--corpus", type=Path, required=True, help="folder with train.en, .de and .fr, validation.*, test.*"
    )
    parser.add_argument("--before", type=positive, default=6_000, help="updates of the first model (6000)")
    parser.add_argument("--updates", type=positive, default=1_000, help="updates of each way (1000)")
    parser.add_argument("--rank", type=positive, default=16, help="of the adapters (16)")
    parser.add_argument("--seeds", type=positive, default=3, help="repetitions (3)")
    given = parser.parse_args(arguments)
    files = [given.corpus / f"{split}.{language}" for split in SPLITS for language in LANGUAGES]
    if missing := [path for path in files if not path.is_file()]:
        raise UserError(f"--corpus {given.corpus}: there is no {missing[0].name} in it")
    given.work.mkdir(parents=True, exist_ok=True)
    plan = Plan(**vars(given))
    rows: list[dict[str, Any]] = []
    for seed in range(plan.seeds):
        rows.append({"seed": seed})
        for name in (BASE, *WAYS):
            rows[-1][name] = plan.build(name, seed)
            settings = {key: str(value) for key, value in dataclasses.asdict(plan).items()}
            report(given.work / "forgetting", {"about": machine() | settings, "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
