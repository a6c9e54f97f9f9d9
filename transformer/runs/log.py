"""The log of a run, metrics.jsonl: one JSON object per line."""

import json
import math
import os
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
        """The records of one kind ("start", "training" or "evaluation")
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


def _is_record(record: Json) -> bool:
    """Whether `log` could have written this record."""
    kind, step = record.get("kind"), record.get("step")
    if type(step) is not int or not 0 <= step <= COUNTS:
        return False
    if kind in ("start", "training"):
        return True
    try:
        return kind == "evaluation" and math.isfinite(merit(record)) and Measure.of(record).name in record
    except (KeyError, TypeError, AttributeError):
        return False
