"""Which checkpoint is the best by its scores, and which ones are kept."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from transformer.runs.log import LOSSES, Log, standing
from transformer.runtime.files import Json, MiB, parse_object, read_text


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
class _Best:
    """Keeps the best checkpoint."""

    run_dir: Path

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        best = best_of({checkpoint.step: checkpoint.metrics for checkpoint in checkpoints}, self.run_dir)
        return [checkpoint.step == best for checkpoint in checkpoints]


@dataclasses.dataclass(frozen=True)
class _Newest:
    """Keeps the newest checkpoint, and the newest of those that were evaluated. What was saved in between, at
    a stop or after --training.save-minutes, is kept until the next one: the others do not depend on it."""

    count: int

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        evaluated = [checkpoint.step for checkpoint in checkpoints if checkpoint.metrics]
        newest = {*evaluated[-self.count :], *(checkpoint.step for checkpoint in checkpoints[-1:])}
        return [checkpoint.step in newest for checkpoint in checkpoints]


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
        keep = policies.AnyPreservationPolicy([_Newest(keep_last), _Best(run_dir)])
        options = ocp.CheckpointManagerOptions(
            best_fn=standing,  # Orbax stores scores only with one
            preservation_policy=keep,
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(active_processes=savers),
        )
        super().__init__(self._folder, options=options)

    def metrics(self, step: int) -> Json:
        return scores_of(self._folder / str(step))
