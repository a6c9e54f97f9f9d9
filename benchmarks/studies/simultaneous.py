"""Compares simultaneous translation with different numbers of tokens to wait for (wait-k, Ma et al. 2019).

`python -m benchmarks.studies.simultaneous WORK PRESET --wait 1 3 5` runs `train.py PRESET --model.wait-k K`
for each K and once without, one after the other, with all further options. It translates the test text of
each by greedy search, and writes WORK/simultaneous.json, a table of BLEU and average lagging, and
WORK/simultaneous.png. If it is interrupted, the same command continues.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import machine, report, table
from benchmarks.plotting import picture
from benchmarks.runs import once, test_set
from benchmarks.studies.presets import trained
from transformer import PRESETS, Translator, UserError
from transformer.tasks.metrics.scores import bleu
from transformer.tasks.metrics.segmentation import average_lagging, wait_k_delays

WHOLE = "whole sentence"


def measured(work: Path, preset: str, wait_k: int | None, options: Sequence[str]) -> dict[str, Any]:
    """BLEU, and the average lagging in tokens, of a model that waits for so many tokens. None: for all."""
    name = f"wait-{wait_k}" if wait_k else "whole"
    waits = ["--model.wait-k", str(wait_k)] if wait_k else []
    training = trained(work, preset, 0, [*waits, *options], run_name=name)
    sources, references = zip(*test_set(work / name), strict=True)
    translator = Translator.load(work / name)
    hypotheses = [found[0] for found in translator.search(list(sources), method="greedy")]
    lags = []
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        length = len(translator.subwords(source)) + 1  # with </s>
        delays = wait_k_delays(wait_k or length, length, len(hypothesis.ids))
        lags.append(average_lagging(delays, length))
    scores = {
        "BLEU": bleu([hypothesis.text for hypothesis in hypotheses], references).value,
        "average lagging": mean(lags),
    }
    seconds = training["cpu_seconds"]
    return scores if seconds is None else scores | {"CPU seconds": seconds}


def plot(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """BLEU by average lagging."""
    with picture(path, size=(5, 3.2)) as (_, [axis]):
        points = [(row["average lagging"], row["BLEU"]) for row in rows.values()]
        axis.plot(*zip(*sorted(points), strict=True), marker="o")
        for name, point in zip(rows, points, strict=True):
            axis.annotate(name, point, xytext=(4, -10), textcoords="offset points")
        axis.set(xlabel="average lagging (tokens of the source)", ylabel="test BLEU")
        axis.margins(x=0.2, y=0.15)
        axis.grid(alpha=0.3)


def main(arguments: list[str] | None = None) -> None:
    """Trains, translates, writes and prints."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder of everything that is written")
    parser.add_argument("preset", metavar="PRESET", help="of a translation, such as quickstart")
    parser.add_argument("--wait", nargs="+", type=positive, default=[1, 3, 5], metavar="K", help="(1 3 5)")
    given, options = parser.parse_known_args(arguments)
    if given.preset not in PRESETS:
        raise UserError(f"{given.preset}: there is no such preset")
    needs("matplotlib")
    given.work.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    for wait_k in [*given.wait, None]:
        name = f"wait-{wait_k}" if wait_k else WHOLE
        made = given.work / f"{name}.json"
        rows[name] = once(made, lambda wait_k=wait_k: measured(given.work, given.preset, wait_k, options))
        print(f"{name}: {rows[name]}", flush=True)
    plot(rows, given.work / "simultaneous.png")
    report(given.work / "simultaneous", {"about": machine(), "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
