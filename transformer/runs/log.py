"""The log of a run, metrics.jsonl: one JSON object per line."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from transformer.config import COUNTS
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, append_flags, read_log
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
        try:
            yield from filter(_is_record, read_log(self.path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error

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
    known = isinstance(loss, int | float) and math.isfinite(loss)
    return float(merit(scores)), -loss if known else -math.inf


def spent_of(records: Sequence[Json]) -> dict[str, float]:
    """Seconds of a run by what they were spent on, up to the last of these records; empty if unknown."""
    last = max(filter(_is_timed, records), key=lambda record: record["elapsed"], default={})
    spent = last.get("spent")
    if isinstance(spent, dict) and all(map(_is_seconds, spent.values())):
        return spent
    # earlier versions did not count the preparation
    evaluations = [
        record["seconds"] for record in records if record["kind"] == "evaluation" and "seconds" in record
    ]
    evaluation = min(sum(filter(_is_seconds, evaluations)), last.get("elapsed", 0.0))
    return {"training": last["elapsed"] - evaluation, "evaluation": evaluation} if last else {}


def _is_timed(record: Json) -> bool:
    return _is_seconds(record.get("elapsed"))


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
            bounded[name] = {what: value[what] for what in SPENT if what in value}
        elif isinstance(value, int | float) or (name == "measure" and record["kind"] == "evaluation"):
            bounded[name] = value
        elif isinstance(value, str):
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
