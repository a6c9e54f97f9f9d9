"""What training on rewards adds to a trained translation model.

`python -m benchmarks.studies.rewards RUN WORK` continues RUN, from its best checkpoint, by cross-entropy,
minimum risk and REINFORCE, for the same updates each and with several seeds. Each run translates the test set
of RUN, and a paired bootstrap test compares it with RUN's own translation. The expected reward is estimated
by a sample for each sentence of the test set. Everything is in WORK: if interrupted, the same command
continues.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.runs import once, test_set, translated
from benchmarks.studies.bootstrap import Comparison, compare
from transformer import Config, Run, Translator, train
from transformer.config.methods import RDropConfig, RewardConfig, ScheduledConfig
from transformer.runtime.errors import UserError
from transformer.training.methods.reward import reward_of

METHODS = {
    "cross-entropy": RewardConfig(),
    "minimum risk": RewardConfig(share=0.9),
    "REINFORCE": RewardConfig(share=0.9, loss="reinforce"),
}
SEEDS = 3
UPDATES = 200
PEAK = 2e-4  # learning rate, after a short warmup


@dataclass(frozen=True)
class Plan:
    """What to continue, and how."""

    start: Path
    work: Path
    updates: int = UPDATES
    peak: float = PEAK

    def path(self, name: str, seed: int) -> Path:
        """The run directory of a method."""
        return self.work / f"{name.replace(' ', '-')}-{seed}"

    def config(self, name: str, seed: int) -> Config:
        """The config of a run: of the methods that RUN was trained with, none but guidance is kept, so that
        runs differ in the reward only."""
        base = Run(self.start).config
        buckets = base.data.buckets[::-3][::-1]  # each is a program, and a search takes long to compile
        return replace(
            base,
            data=replace(base.data, batching="buckets", buckets=buckets, seed=seed),
            rdrop=RDropConfig(),
            scheduled=ScheduledConfig(),
            reward=METHODS[name],
            training=replace(
                base.training,
                seed=seed,
                steps=self.updates,
                init_from=self.start,
                log_every=max(1, self.updates // 10),
                evaluate_every=self.updates,
                keep_last=1,
            ),
            optimizer=replace(
                base.optimizer,
                schedule="cosine",
                peak=self.peak,
                warmup_steps=max(1, self.updates // 10),
            ),
        )

    def build(self, name: str, seed: int) -> dict[str, Any]:
        """Trains a run, unless it is there: its translations of the test set, and its log of training."""
        path = self.path(name, seed)

        def trained() -> dict[str, Any]:
            train(self.config(name, seed), path)
            return results(path, "last")

        found = once(path.with_suffix(".json"), trained)
        if (there := Run(path).config.training.steps) != self.updates:
            raise UserError(f"{path} has {there:,} updates, not {self.updates:,}: name another WORK")
        return found

    def before(self) -> dict[str, Any]:
        """The translations of RUN, and its reward."""
        return once(self.work / "before.json", lambda: results(self.start, "best"))

    def row(self, name: str, seeds: int) -> dict[str, Any]:
        """A method, compared with RUN."""
        built = [self.build(name, seed) for seed in range(seeds)]
        before = self.before()["translations"]
        each = [compare(self.start, before, run["translations"]) for run in built]
        return {
            "name": name,
            "each": [asdict(one) for one in each],
            "rewards": [run["reward"] for run in built],
        }


def results(path: Path, checkpoint: str) -> dict[str, Any]:
    """The translations of the test set, and the expected reward."""
    found = {"translations": translated(path, checkpoint), "reward": expected(path, checkpoint)}
    jax.clear_caches()  # Linux limits the memory maps of a process, of which each program has some
    return found


def expected(path: Path, checkpoint: str) -> float:
    """The mean GLEU of subwords of a sample for each sentence of a run's test set, the reward of training by
    default."""
    translator = Translator.load(path, checkpoint)
    pairs = test_set(path)
    samples = translator.search([source for source, _ in pairs], method="sample", n_best=1)
    special, spell = translator.task.special, translator.task.spell
    found = [best.ids for best, *_ in samples]
    references = [example["target"] for example in translator.task.examples(pairs)]
    longest = max(map(len, [*found, *references]))

    def padded(some: Sequence[Sequence[int]]) -> Any:
        return np.array([[*ids, *[special.pad] * (longest - len(ids))] for ids in some], np.int32)

    reward = reward_of(RewardConfig().reward, special, spell)
    return float(reward(padded(found)[:, None], padded(references)).mean())


def rate(text: str) -> float:
    """The number of an option, above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0 and at most 1")
    return value


HEADER = "| | BLEU | difference of each seed | mean | p | expected reward |"


def table(before: Comparison, reward: float, rows: list[dict[str, Any]]) -> str:
    """Markdown, with the BLEU and the reward before."""
    lines = [
        HEADER,
        "|---" * (HEADER.count(" | ") + 1) + "|",
        f"| before | {before.bleu:.2f} ± {before.interval:.2f} | | | | {100 * reward:.1f} % |",
    ]
    for row in rows:
        differences = [each["difference"] for each in row["each"]]
        spread = f" ± {statistics.stdev(differences):.2f}" if len(differences) > 1 else ""
        lines.append(
            f"| {row['name']} | {statistics.mean(each['bleu'] for each in row['each']):.2f} | "
            f"{', '.join(f'{x:+.2f}' for x in differences)} | {statistics.mean(differences):+.2f}{spread} | "
            f"{', '.join(format(each['p'], '.3f') for each in row['each'])} | "
            f"{', '.join(format(100 * x, '.1f') for x in row['rewards'])} % |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, prints the table and writes WORK/rewards.json and rewards.md."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a trained translation model")
    parser.add_argument("work", type=work_folder, metavar="WORK", help="folder for runs and the table")
    parser.add_argument("--updates", type=positive, default=UPDATES, help=f"of each method ({UPDATES})")
    parser.add_argument("--peak", type=rate, default=PEAK, help=f"learning rate ({PEAK})")
    parser.add_argument("--seeds", type=positive, default=SEEDS, help=f"of each method ({SEEDS})")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), help="these methods")
    given = parser.parse_args(arguments)
    test_set(given.run)  # refuses what is no run, before anything is written
    given.work.mkdir(parents=True, exist_ok=True)
    plan = Plan(given.run, given.work, given.updates, given.peak)
    rows = [plan.row(name, given.seeds) for name in given.only]
    start = plan.before()
    before = compare(plan.start, start["translations"], start["translations"])
    settings = {"run": str(plan.start), "updates": plan.updates, "peak": plan.peak}
    found = {"before": asdict(before) | {"reward": start["reward"]}, "rows": rows}
    results = {"about": machine() | settings} | found
    report(given.work / "rewards", results, table(before, start["reward"], rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
