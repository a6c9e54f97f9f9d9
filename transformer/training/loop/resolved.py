"""A config with everything that it leaves open or only names, which is looked up once."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from transformer.config import Config, DataConfig, as_decided, differences
from transformer.data.features.growth import read_words
from transformer.data.remote import has
from transformer.model.placement import platform
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.systems.decided import decided_for
from transformer.systems.registry import system_of
from transformer.systems.system import System
from transformer.tasks.task import Task
from transformer.training.loop.resuming import check_unchanged, sized_like
from transformer.training.loop.starts import as_begun, with_encoder


@dataclass(frozen=True)
class Resolved:
    """A config, and what it names."""

    config: Config
    """With what depends on the kind of device, and on the run that is resumed or that it starts from."""
    system: System
    run: Run | None = None
    """The run that is resumed. None: it is a new one."""
    parent: Run | None = None
    """The run whose best model a new run starts from."""
    task: Task | None = None
    """That of the parent, with words that are added to its vocabulary. None: none are."""


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
        config = dataclasses.replace(as_decided(config, run.config), model=run.config.model)
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
    training = dataclasses.replace(config.training, init_from=run.config.training.init_from)
    return dataclasses.replace(config, training=training)


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
    kind = type(parent.config.model)
    common = {item.name: getattr(model, item.name) for item in dataclasses.fields(kind)}
    expected = dataclasses.replace(parent.config, model=kind(**common))
    free = {f"model.{name}" for name in kind.PARAMETER_FREE}
    if changed := differences(parent.config, expected, besides=free):
        raise UserError(
            f"--init-from {parent.name} holds another network: {changed}. Leave out these "
            "options, or the preset"
        )
    return dataclasses.replace(config, model=model)
