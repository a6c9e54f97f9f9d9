"""The teacher of a run: another run, whose attention its model learns from."""

from pathlib import Path
from typing import Any

from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.tasks.task import Task
from transformer.training.loop.resolved import Resolved
from transformer.translator.decoder import Decoder


def check_teacher(resolved: Resolved) -> None:
    """Raises UserError if --model.teacher is missing, or no trained run with the same task."""
    config = resolved.config
    if missing := getattr(config.model, "untaught", ""):
        raise UserError(missing)
    if path := getattr(config.model, "teacher", None):
        run: Run = _named(path, Run)
        if run.system.task is not resolved.system.task:
            raise UserError(f"--model.teacher {path}: {config.system} cannot learn from {run.config.system}")
        _named(path, lambda _: run.checkpoints.best())


def load_teacher(task: Task, path: Path) -> Decoder[Any]:
    """The run --model.teacher.

    Args:
      task: of the run that learns.
      path: the run directory.

    Raises:
      UserError: it cannot be opened, or it has another vocabulary, or another scale of features.
    """
    teacher: Decoder[Any] = _named(path, Decoder.load)
    if teacher.task.content() != task.content():
        vocabulary = path / "source.model"
        other = f", or give --data.source-tokenizer {vocabulary}" if vocabulary.exists() else ""
        raise UserError(
            f"--model.teacher {path}: it has another {task.learned}: train both on the same data{other}"
        )
    return teacher


def _named(path: Path, open_run: Any) -> Any:
    try:
        return open_run(path)
    except UserError as error:
        raise UserError(f"--model.teacher {path}: {error}") from error
