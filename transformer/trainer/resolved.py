"""A config with everything that it leaves open or only names, which is looked up once: its run, its parent,
its teacher; and what a run may be resumed with."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from transformer.config.corpus import DataConfig
from transformer.config.model import ModelConfig
from transformer.config.options import (
    NOT_OPENED,
    Config,
    as_decided,
    as_options,
    changed,
    differences,
    first_added,
    locations,
    to_resume,
)
from transformer.data.remote import has
from transformer.data.tokenizers.trained import read_words
from transformer.model.parameters import platform
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import prefixed_errors
from transformer.runtime.hosts import hosts_given
from transformer.runtime.invocation import command
from transformer.systems.registry import system_of
from transformer.systems.system import System, decided_for
from transformer.tasks.task import Task
from transformer.trainer.starts import as_begun, with_encoder
from transformer.training.schedule import stable_until
from transformer.translator.decoder import Decoder

# What a run may be resumed with, and the command that resumes it.


CHANGEABLE = (
    "training.steps",
    "training.patience",
    "training.minutes",
    "training.save_minutes",
    "training.keep_last",
    "training.samples",
    "data.cache_dir",
    "data.workers",
    "data.engine",
    "data.exchange",
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
    options = {name: value_now for name, _, value_now in changed(run.config, config) if name in CHANGEABLE}
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
        model = replace(config.model, dropout=run.config.model.dropout)
        config = replace(config, model=model)
    config = as_decided(config, run.config)
    training = config.training
    if training.epochs is not None:  # their updates are compared when they are known
        training = replace(training, epochs=None, steps=run.config.training.steps)
    requested = replace(config, model=sized_like(config, run.config), training=training)
    fixed = set() if length_is_free(run, training.steps) else {"training.steps"}
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


def length_is_free(run: Run, steps: int) -> bool:
    """Whether no update so far depends on the length of training, nor would have depended on so many
    updates."""
    optimizer = run.config.optimizer
    if optimizer.schedule != "stable":
        return optimizer.schedule != "cosine"  # of which every learning rate does
    done = max(run.checkpoints.steps(), default=0)
    return done <= stable_until(optimizer, min(steps, run.config.training.steps))


def sized_like(config: Config, other: Config) -> ModelConfig:
    """The model config, with the other config's sizes that the data decides, if it has none."""
    model = config.model
    if model.vocab_size:
        return model
    common = set(model.FROM_DATA) & set(other.model.FROM_DATA)
    return replace(model, **{name: getattr(model, name) or getattr(other.model, name) for name in common})


@dataclass(frozen=True)
class Resolved:
    """A config, and what it names."""

    config: Config
    """The config, with what the kind of device and the run that is resumed or started from decide."""
    system: System
    run: Run | None = None
    """The run that is resumed. None: it is a new one."""
    parent: Run | None = None
    """The run whose best model a new run starts from."""
    task: Task | None = None
    """The task of the parent, with words that are added to its vocabulary. None: none are."""


def resolve(config: Config, run_dir: Path | str | None) -> Resolved:
    """Looks up the system, the run and its parent, and decides what they determine.

    Raises:
      UserError: there is no such system or parent; an option has no such value; the run directory is
        unusable, or belongs to another config.
    """
    system = system_of(config)
    run = _existing(run_dir, config)
    if run:
        config = _with_stored_base(config, run)
        config = replace(as_decided(config, run.config), model=run.config.model)
    elif config.training.init_encoder_from:
        config = with_encoder(config, Run(config.training.init_encoder_from))
    config = decided_for(system, config, platform())
    task = None
    parent = Run(config.training.init_from) if config.training.init_from and not run else None
    if parent:
        parent.checkpoints.best()  # refuses a run without checkpoints
        config = _sized_like_parent(config, system, parent)
        if isinstance(config.data, DataConfig):
            task = _grown_task(config, config.data, parent)
            config = task.config if task else config
    return Resolved(config, system, run, parent, task)


def _grown_task(config: Config, data: DataConfig, parent: Run) -> Task | None:
    """The parent's task with the words and languages that the options add. None: they add none.

    Raises:
      UserError: they cannot be added.
    """
    if data.first_added is not None:
        raise UserError(
            f"--data.first-added {data.first_added}: it is decided when a run begins; leave it out"
        )
    words = [] if data.add_tokens is None else read_words(data.add_tokens)
    if not words and not data.add_language:
        return None
    return parent.task.grown(config, words, data.add_language)


def _existing(run_dir: Path | str | None, config: Config) -> Run | None:
    """The existing run, or None. Raises UserError if it has another config."""
    if run_dir is None:
        return None
    if not has(run_dir, "config.json"):
        Run.check_free(run_dir)
        return None
    run = Run(run_dir, writes=True)
    run.check_resumable()
    config = _with_stored_base(config, run)
    check_unchanged(run, as_begun(config, run) if config.training.init_encoder_from else config)
    return run


def _with_stored_base(config: Config, run: Run) -> Config:
    """The config to resume an adapter with, which has the path of the model that it changes as the run stores
    it: the model may have moved, and is known by its hash."""
    if not run.config.adapter.rank or not run.checkpoints.steps():
        return config
    training = replace(config.training, init_from=run.config.training.init_from)
    return replace(config, training=training)


def _sized_like_parent(config: Config, system: System, parent: Run) -> Config:
    """The config with the vocabulary sizes of the parent.

    Raises:
      UserError: its network neither equals nor extends the parent's.
    """
    if not issubclass(system.model, parent.system.model):
        raise UserError(
            f"--init-from {parent.name} holds a {parent.config.system} model, not a {config.system} one: "
            "leave out the preset, or take only its encoder by --init-encoder-from"
        )
    model = sized_like(config, parent.config)
    model_type = type(parent.config.model)
    common = {item.name: getattr(model, item.name) for item in fields(model_type)}
    expected = replace(parent.config, model=model_type(**common))
    free = {f"model.{name}" for name in model_type.PARAMETER_FREE}
    if changed := differences(parent.config, expected, besides=free):
        raise UserError(
            f"--init-from {parent.name} holds another network: {changed}. Leave out these "
            "options, or the preset"
        )
    return replace(config, model=model)


# The teacher of a run: another run, whose attention its model learns from.


def check_teacher(resolved: Resolved) -> None:
    """Raises UserError if --model.teacher is missing, or no trained run with the same task."""
    config = resolved.config
    if missing := getattr(config.model, "untaught", ""):
        raise UserError(missing)
    if path := getattr(config.model, "teacher", None):
        with prefixed_errors(f"--model.teacher {path}: "):
            run = Run(path)
            run.checkpoints.best()  # refuses a run without checkpoints
        if run.system.task is not resolved.system.task:
            raise UserError(f"--model.teacher {path}: {config.system} cannot learn from {run.config.system}")


def load_teacher(task: Task, path: Path) -> Decoder[Any]:
    """The run --model.teacher.

    Args:
      task: of the run that learns.
      path: the run directory.

    Raises:
      UserError: it cannot be opened, or it has another vocabulary, or another scale of features.
    """
    with prefixed_errors(f"--model.teacher {path}: "):
        teacher: Decoder[Any] = Decoder.load(path)
    if teacher.task.content() != task.content():
        vocabulary = path / "source.model"
        hint = f", or give --data.source-tokenizer {vocabulary}" if vocabulary.exists() else ""
        raise UserError(
            f"--model.teacher {path}: it has another {task.learned}: train both on the same data{hint}"
        )
    return teacher
