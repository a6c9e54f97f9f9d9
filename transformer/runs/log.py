"""The log of a run, metrics.jsonl: one JSON object per line; and what follows from it: which checkpoint is
the best, and whether the model memorises its text."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from transformer.config.ranges import COUNTS
from transformer.runtime.files import Json, MiB, append_flags, failing, parse_object, read_log, read_text
from transformer.tasks.metrics.scores import Metric

LOSSES = ("nll", "loss")
"""The validation loss in an evaluation: the negative log-likelihood, or the objective's loss without one."""
MOST = 1_000_000  # values of the records of a kind
LONGEST_TEXT, MOST_SAMPLES = 2_000, 50
LONGEST_TIME = 10**10  # seconds
SPENT = "preparation", "training", "waiting for input", "evaluation"
"""What the time of a run is spent on."""


class Log:
    """The records that training writes. What is read may come from a stranger."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stream(self) -> Iterator[Json]:
        """Yields the records, as they were written. Other lines, such as one that a kill truncated, are
        skipped.

        Raises:
          UserError: it cannot be read.
        """
        with failing(f"cannot read {self.path}"), contextlib.suppress(FileNotFoundError):
            yield from filter(_is_record, read_log(self.path))

    def records(self, kind: str | None = None) -> list[Json]:
        """The records of one kind ("start", "training", "evaluation" or "test") or of all, without fields
        that training does not write. Long texts are truncated, and of more records than memory should
        hold about every second one is kept, the last one always.

        Raises:
          UserError: it cannot be read.
        """
        by_kind: dict[str, list[tuple[int, Json]]] = {}
        sizes: dict[str, int] = {}
        for number, record in enumerate(self.stream()):
            if kind not in (None, record["kind"]):
                continue
            same = by_kind.setdefault(record["kind"], [])
            same.append((number, _bounded(record)))
            sizes[record["kind"]] = sizes.get(record["kind"], 0) + _values(same[-1][1])
            if sizes[record["kind"]] > MOST and len(same) > 1:
                del same[-2::-2]
                sizes[record["kind"]] = sum(_values(stored) for _, stored in same)
        return [record for _, record in sorted(chain.from_iterable(by_kind.values()), key=itemgetter(0))]

    def append(self, record: Json) -> None:
        """Writes a record as the last line."""
        line = json.dumps(record, ensure_ascii=False) + "\n"
        with open(self.path, "ab+", opener=append_flags) as file:
            if file.tell():  # end a line that a kill truncated
                file.seek(-1, os.SEEK_END)
                line = line if file.read() == b"\n" else "\n" + line
            file.write(line.encode())


def merit(scores: Json) -> Any:
    """The score that decides which checkpoint is best. Runs of version 0.1 have only BLEU."""
    return scores["merit"] if "merit" in scores else scores["bleu"]


def standing(scores: Json) -> tuple[float, float]:
    """What orders checkpoints, higher for a better one: the deciding score, then at equal scores the lower
    validation loss. `max(..., key=standing)` over checkpoints in order of their steps is the best one:
    progress is only what is better than all before.

    Args:
      scores: of an evaluation, or of a checkpoint. Those of version 0.1 have no loss.
    """
    loss = next((scores[name] for name in LOSSES if name in scores), math.nan)
    is_finite = isinstance(loss, int | float) and math.isfinite(loss)
    return float(merit(scores)), -loss if is_finite else -math.inf


def spent_of(records: Sequence[Json]) -> dict[str, float]:
    """Seconds of a run by what they were spent on, up to the last of these records; empty if unknown."""
    timed = (record for record in records if _is_seconds(record.get("elapsed")))
    last = max(timed, key=lambda record: record["elapsed"], default={})
    spent = last.get("spent")
    if isinstance(spent, dict) and all(map(_is_seconds, spent.values())):
        return spent
    # earlier versions did not count the preparation
    evaluations = [
        record["seconds"] for record in records if record["kind"] == "evaluation" and "seconds" in record
    ]
    evaluation = min(sum(filter(_is_seconds, evaluations)), last.get("elapsed", 0.0))
    return {"training": last["elapsed"] - evaluation, "evaluation": evaluation} if last else {}


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= LONGEST_TIME


def _is_record(record: Json) -> bool:
    """Whether `log` could have written this record."""
    kind, step = record.get("kind"), record.get("step")
    if type(step) is not int or not 0 <= step <= COUNTS:
        return False
    if kind in ("start", "training", "test"):
        return True
    try:
        Metric.of(record).value(record)
        return kind == "evaluation" and math.isfinite(merit(record))
    except (KeyError, TypeError, ValueError):
        return False


def _bounded(record: Json) -> Json:
    """A record's numbers, texts, measure, samples and data, each if it has the type that training writes."""
    bounded: Json = {}
    for name, value in record.items():
        if name == "samples":
            bounded[name] = _samples(value)
        elif name == "data":
            bounded[name] = _data(value)
        elif name == "spent" and isinstance(value, dict) and all(map(_is_seconds, value.values())):
            bounded[name] = {phase: value[phase] for phase in SPENT if phase in value}
        elif isinstance(value, int | float) or (name == "measure" and record["kind"] == "evaluation"):
            bounded[name] = value
        elif isinstance(value, str) and name not in LOSSES:
            bounded[name] = value[:LONGEST_TEXT]
    return bounded


def _samples(samples: Any) -> list[list[str]]:
    """Input, reference and output of each sample."""
    first = samples[:MOST_SAMPLES] if isinstance(samples, list) else []
    if not all(isinstance(sample, list) and list(map(type, sample)) == [str] * 3 for sample in first):
        return []
    return [[text[:LONGEST_TEXT] for text in sample] for sample in first]


def _data(data: Any) -> Json:
    """What a start records of the data: texts and numbers, and the number of sequences by length."""
    if not isinstance(data, dict):
        return {}
    facts = {name: value for name, value in data.items() if isinstance(value, str | int | float)}
    lengths = data.get("lengths")
    counts = {
        side: histogram
        for side, histogram in (lengths.items() if isinstance(lengths, dict) else ())
        if isinstance(histogram, dict)
        and all(type(count) is int and count >= 0 for count in histogram.values())
    }
    return facts | {"lengths": counts}


def _values(record: Json) -> int:
    """How many values it has, by which its size in memory is estimated."""
    data = record.get("data", {})
    counts = sum(1 + len(histogram) for histogram in data.get("lengths", {}).values())
    return len(record) + 3 * len(record.get("samples", ())) + len(data) + counts


# Whether a model memorises its training text: its validation loss rises while its training loss falls.


RISE = 1.02  # of the lowest validation loss: less is noise


def overfitting(training: Sequence[Json], evaluations: Sequence[Json]) -> str:
    """A sentence about a run that overfits; empty if it does not.

    Args:
      training: records of training.
      evaluations: records of evaluations.
    """
    name = next(
        (name for name in LOSSES if evaluations and all(name in record for record in evaluations)), None
    )
    if name is None:
        return ""
    best, last = min(evaluations, key=lambda record: record[name]), evaluations[-1]
    before, after = (_training_loss(training, name, evaluations, record["step"]) for record in (best, last))
    rises = 0 < best[name] * RISE < last[name]
    if not rises or before is None or after is None or after >= before:
        return ""
    return (
        f"overfitting: since step {best['step']:,} the validation loss rises from {best[name]:.2f} to "
        f"{last[name]:.2f} while that of training falls from {before:.2f} to {after:.2f}. More text, more "
        "dropout (--model.dropout) or fewer updates help"
    )


def _training_loss(
    training: Sequence[Json], name: str, evaluations: Sequence[Json], step: int
) -> float | None:
    """The mean training loss between an evaluation and the one before it; None if it was not logged."""
    previous = max((record["step"] for record in evaluations if record["step"] < step), default=0)
    losses = [record[name] for record in training if previous < record["step"] <= step and name in record]
    return sum(losses) / len(losses) if losses else None


# Which checkpoint is the best by its scores, and which ones are kept.


def scores_of(checkpoint: Path) -> Json:
    """The scores of a checkpoint, which are numbers; none if it was not measured, or they are a link."""
    file = checkpoint / "metrics" / "metrics"
    if file.is_symlink() or file.parent.is_symlink():
        return {}
    try:
        stored = parse_object(read_text(file, MiB))
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in stored.items() if type(value) in (int, float)}


def best_of(scores: Mapping[int, Json | None], run_dir: Path) -> int | None:
    """The best of a run's checkpoints, given by step, in order; None if none was measured."""
    measured = {step: step_scores for step, step_scores in scores.items() if step_scores}
    if not all(any(name in step_scores for name in LOSSES) for step_scores in measured.values()):
        # earlier versions wrote the loss only to the log
        logged = {record["step"]: record for record in Log(run_dir / "metrics.jsonl").records("evaluation")}
        measured = {step: logged.get(step, {}) | step_scores for step, step_scores in measured.items()}
    standings: dict[int, tuple[float, float]] = {}
    for step, step_scores in measured.items():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            standings[step] = standing(step_scores)
    return max(standings, key=standings.__getitem__, default=None)


@dataclasses.dataclass(frozen=True)
class _Policy:
    """Keeps the best checkpoint, the newest one, and the newest of those that were evaluated. What was saved
    in between, at a stop or after --training.save-minutes, is kept until the next one: the others do not
    depend on it."""

    run_dir: Path
    count: int

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        best = best_of({checkpoint.step: checkpoint.metrics for checkpoint in checkpoints}, self.run_dir)
        evaluated = [checkpoint.step for checkpoint in checkpoints if checkpoint.metrics]
        preserved = {best, *evaluated[-self.count :], *(checkpoint.step for checkpoint in checkpoints[-1:])}
        return [checkpoint.step in preserved for checkpoint in checkpoints]


class Manager(ocp.CheckpointManager):
    """Orbax's, which would read the scores of earlier checkpoints whatever their size and type.

    Args:
      run_dir: the run directory.
      keep_last: how many of the newest checkpoints that were evaluated are kept, besides the best.
      savers: the processes that save. None: all.
    """

    def __init__(self, run_dir: Path, keep_last: int, savers: set[int] | None) -> None:
        self._folder = (run_dir / "checkpoints").absolute()  # first, as the others ask for scores
        self._folder.mkdir(exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            best_fn=standing,  # Orbax stores scores only with one
            preservation_policy=_Policy(run_dir, keep_last),
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(active_processes=savers),
        )
        super().__init__(self._folder, options=options)

    def metrics(self, step: int) -> Json:
        return scores_of(self._folder / str(step))
