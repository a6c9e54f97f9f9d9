"""Trains presets with several seeds: test scores, time and curves.

`python -m benchmarks.studies.presets WORK NAME [NAME ...]` runs `train.py NAME --training.seed S` for each
seed S, one after the other, with all further options. It writes WORK/presets.json, a table, and
WORK/presets.png with the first validation score against the number of updates. If it is interrupted, the same
command continues.
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import ROOT, machine, picture, report
from benchmarks.runs import once
from transformer import PRESETS, UserError

Results = dict[str, list[dict[str, Any]]]
"""Of each preset, those of its seeds."""


def cpu_seconds() -> float:
    """Those of all programs that were run and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def trained(
    work: Path, name: str, seed: int, options: Sequence[str] = (), run_name: str = ""
) -> dict[str, Any]:
    """Trains a preset with some options, or finishes its training. The run directory is `run_name` in `work`,
    or has the names of preset and seed.

    Returns:
      Its test scores by title, its curve of (update, first validation score), its CPU seconds and its seconds
      (None if an earlier command did a part of the training), and the title of the first score.
    """
    run_dir = work / (run_name or f"{name}-{seed}")
    command = [sys.executable, str(ROOT / "train.py"), name, "--run-dir", str(run_dir)]
    whole, before, started = not run_dir.exists(), cpu_seconds(), time.monotonic()
    with run_dir.with_name(f"{run_dir.name}.log").open("a") as log:
        ended = subprocess.run([*command, "--training.seed", str(seed), *options], stdout=log, stderr=log)
    if ended.returncode:
        raise RuntimeError(f"the training ended with an error: see {log.name}")
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    scores = json.loads((run_dir / "results.json").read_text()).values()
    return {
        "scores": {score["title"]: score["value"] for score in scores if isinstance(score, dict)},
        "curve": [(line["step"], line["merit"]) for line in evaluations],
        "cpu_seconds": cpu_seconds() - before if whole else None,
        "seconds": time.monotonic() - started if whole else None,
        "first": evaluations[0]["measure"]["title"],
    }


def table(results: Results) -> str:
    """Means over the seeds, with the lowest and the highest. Other work on the machine slows trainings, so of
    the seconds it has the fewest."""
    rows = ["| preset | test scores | CPU seconds | seconds, fastest seed |", "|---|---|---|---|"]
    for name, seeds in results.items():
        scores = [
            f"{title} {_mean([seed['scores'][title] for seed in seeds])}" for title in seeds[0]["scores"]
        ]
        measured = [seed for seed in seeds if seed["cpu_seconds"] is not None]
        cpu = f"{statistics.mean(seed['cpu_seconds'] for seed in measured):.0f}" if measured else ""
        fastest = f"{min(seed['seconds'] for seed in measured):.0f}" if measured else ""
        rows.append(f"| `{name}` | {', '.join(scores)} | {cpu} | {fastest} |")
    return "\n".join(rows)


def _mean(values: list[float]) -> str:
    spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def plot(results: Results, path: Path) -> None:
    """A panel for each preset, a line for each seed."""
    columns = min(3, len(results))
    rows = math.ceil(len(results) / columns)
    with picture(path, rows, columns, size=(4 * columns, 2.8 * rows)) as (_, axes):
        for axis in axes[len(results) :]:
            axis.set_visible(False)
        for axis, (name, seeds) in zip(axes, results.items(), strict=False):
            for seed in seeds:
                axis.plot(*zip(*[(0, 0), *seed["curve"]], strict=True), marker="o", markersize=3)
            axis.set(title=name, xlabel="updates", ylabel=f"validation {seeds[0]['first']}", ylim=(0, 102))
            axis.grid(alpha=0.3)


def main(arguments: list[str] | None = None) -> None:
    """Trains, writes and prints."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder of everything that is written")
    parser.add_argument("names", nargs="+", metavar="NAME", help="presets, such as sentiment parsing")
    parser.add_argument("--seeds", type=positive, default=3, help="trainings of each (3)")
    given, options = parser.parse_known_args(arguments)
    if unknown := [name for name in given.names if name not in PRESETS]:
        raise UserError(f"{unknown[0]}: there is no such preset")
    needs("matplotlib")
    given.work.mkdir(parents=True, exist_ok=True)
    results: Results = {name: [] for name in given.names}
    for seed in range(given.seeds):
        for name, found in results.items():
            made = given.work / f"{name}-{seed}.json"
            found.append(once(made, lambda name=name, seed=seed: trained(given.work, name, seed, options)))
            print(f"{name}, seed {seed}: {found[-1]['scores']}", flush=True)
    plot(results, given.work / "presets.png")
    report(given.work / "presets", {"about": machine(), "results": results}, table(results))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
