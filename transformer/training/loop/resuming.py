"""What a run may be resumed with, and the command that resumes it."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from transformer.config import Config, ModelConfig, as_decided, changed, differences, first_added
from transformer.config.locations import NOT_OPENED, as_options, locations, to_resume
from transformer.runs.run import Run
from transformer.runtime.commands import command
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import hosts_given

CHANGEABLE = (
    "training.steps",
    "training.patience",
    "training.minutes",
    "training.save_minutes",
    "training.keep_last",
    "training.samples",
    "data.cache_dir",
    "mesh.fsdp",
    "mesh.tensor",
    "mesh.replicas",
)
"""Options that may change on resume, since they affect no earlier result."""


def resume_command(run: Run, config: Config | None = None) -> str:
    """The command that resumes a run, wherever it is printed. It names the paths of the run's text again,
    since those stored in a run directory are not opened, and the job that this process belongs to.

    Args:
      run: the run.
      config: to resume with. None: the run's own.
    """
    config = config or run.config
    options = {name: now for name, _, now in changed(run.config, config) if name in CHANGEABLE}
    words = [
        word
        for name, value in options.items()
        if not isinstance(value, Path)
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    is_adapter = bool(run.config.adapter.rank)
    paths = to_resume(locations(config), bool(run.checkpoints.steps()), is_adapter)
    return command("train", "--run-dir", run.name, *words, *hosts_given()) + as_options(paths)


@contextlib.contextmanager
def resumable(run: Run, config: Config) -> Iterator[None]:
    """Adds what is saved, and the command that resumes a run, to an interrupt that the loop does not handle,
    such as one during the test."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        steps = run.checkpoints.steps()
        saved = f"Step {max(steps)} of {config.training.steps} is saved" if steps else "No step is saved"
        interrupt.add_note(f"{saved}. Resume with: {resume_command(run, config)}")
        raise


def check_unchanged(run: Run, config: Config) -> None:
    """Raises UserError if a run cannot be resumed with a config, since it was made with another."""
    if config.training.dropout_by == "auto" and not config.model.dropout:  # which the run has decided
        model = dataclasses.replace(config.model, dropout=run.config.model.dropout)
        config = dataclasses.replace(config, model=model)
    config = as_decided(config, run.config)
    training = config.training
    if training.epochs is not None:  # their updates are compared when they are known
        training = dataclasses.replace(training, epochs=None, steps=run.config.training.steps)
    requested = dataclasses.replace(config, model=sized_like(config, run.config), training=training)
    # every learning rate of a cosine depends on its last step
    fixed = {"training.steps"} if run.config.optimizer.schedule == "cosine" else set()
    texts = {name for name in locations(requested) | locations(run.config) if name.startswith("data.")}
    # another path to the same text: its content is compared when it is opened
    free = set(CHANGEABLE) - fixed | {name for name in texts if name.split(".")[-1] not in NOT_OPENED}
    if first_added(run.config) is not None:  # which decided them
        free |= {"model.vocab_size", "model.target_vocab_size"}
    if wrong := differences(run.config, requested, besides=free):
        raise UserError(
            f"{run.name} was made with other options: {wrong}. To resume it, leave out the "
            f"preset, variants and these options: {resume_command(run)}; or name another directory"
        )


def sized_like(config: Config, other: Config) -> ModelConfig:
    """The model config, with the other config's sizes that the data decides, if it has none."""
    model = config.model
    if model.vocab_size:
        return model
    common = set(model.FROM_DATA) & set(other.model.FROM_DATA)
    return dataclasses.replace(
        model, **{name: getattr(model, name) or getattr(other.model, name) for name in common}
    )
