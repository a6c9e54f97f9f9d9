"""The log of a run, metrics.jsonl: one JSON object per line."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.config import COUNTS
from transformer.errors import UserError
from transformer.evaluation.scores import Measure
from transformer.files import Json, append_flags, read_log

LOSSES = ("nll", "loss")
"""The validation loss in an evaluation: the negative log-likelihood, or the objective's loss without one."""


class Log:
    """The records that training writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self, kind: str | None = None) -> list[Json]:
        """The records of one kind ("start", "training", "evaluation" or "test")
        or of all. Other lines, such as one that a kill truncated, are skipped.

        Raises:
          UserError: it cannot be read.
        """
        try:
            records = [record for record in read_log(self.path) if _is_record(record)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error
        return [record for record in records if kind in (None, record["kind"])]

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
    evaluations = [each["seconds"] for each in records if each["kind"] == "evaluation" and "seconds" in each]
    evaluation = min(sum(filter(_is_seconds, evaluations)), last.get("elapsed", 0.0))
    return {"training": last["elapsed"] - evaluation, "evaluation": evaluation} if last else {}


def _is_timed(record: Json) -> bool:
    return _is_seconds(record.get("elapsed"))


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _is_record(record: Json) -> bool:
    """Whether `log` could have written this record."""
    kind, step = record.get("kind"), record.get("step")
    if type(step) is not int or not 0 <= step <= COUNTS:
        return False
    if kind in ("start", "training", "test"):
        return True
    try:
        return kind == "evaluation" and math.isfinite(merit(record)) and Measure.of(record).name in record
    except (KeyError, TypeError, AttributeError):
        return False
