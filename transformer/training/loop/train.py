"""Trains a config: creates or resumes the run, prepares the data and runs the loop."""

import dataclasses
import time
from functools import partial
from pathlib import Path

import jax

from transformer.config import Config, as_decided, differences
from transformer.data.corpus import Corpus
from transformer.data.remote import has
from transformer.model.placement import platform
from transformer.model.sharding import check_rows, layout_of
from transformer.runs.run import Run
from transformer.runtime.compilation import keep_programs
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError, counted
from transformer.runtime.extras import check_libraries
from transformer.runtime.forks import refuse_forked
from transformer.runtime.hosts import barrier, gathered, is_main_process
from transformer.systems.checks import check_search, check_system, decided_for
from transformer.systems.registry import find_system
from transformer.systems.system import System
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.preparation import prepare
from transformer.tasks.task import Task
from transformer.tasks.text import spelling
from transformer.training.loop.checks import check_task
from transformer.training.loop.clock import Clock
from transformer.training.loop.journal import Track, untracked
from transformer.training.loop.loop import Loop
from transformer.training.loop.resuming import check_unchanged, resumable, sized_like
from transformer.training.loop.teacher import check_teacher, load_teacher
from transformer.training.methods.registry import check_methods, objective_of


def train(
    config: Config,
    run_dir: Path | str | None = None,
    *,
    watch: ProgressReporter | None = None,
    about: str = "",
    track: Track = untracked,
    profile: int = 0,
) -> Path:
    """Trains a model, and evaluates its best checkpoint on the test set.

    Args:
      config: the complete configuration.
      run_dir: run directory. An existing run is resumed. None: a new directory under runs/.
      watch: shows the progress. None: on the standard output of the main process.
      about: text to print first, after the options have been checked.
      track: called with every record of the log, for example to send it to another tool. Only in the main
        process.
      profile: number of steps of which to write a trace, for TensorBoard or Perfetto.

    Returns:
      The run directory, or its address.

    Raises:
      UserError: bad input; the run directory belongs to another config; the loss became
        non-finite; a checkpoint could not be written.
      Stopped: SIGINT or SIGTERM arrived; the state was saved.
    """
    refuse_forked()
    clock = Clock()
    watch = watch or ProgressReporter(quiet=not is_main_process())
    keep_programs()
    check_system(config)
    system = find_system(config.system)
    check_libraries(system.task.libraries(config), f"system {config.system}")
    layout = layout_of(config.mesh)  # refuses what these devices cannot do
    run = _existing(run_dir, config)
    if run:
        config = dataclasses.replace(as_decided(config, run.config), model=run.config.model)
    config = decided_for(config, platform())
    parent = Run(config.training.init_from) if config.training.init_from and not run else None
    if parent:
        parent.checkpoints.best()  # refuses a run without checkpoints
        config = _sized_like_parent(config, system, parent)
    system.task.check(config)
    check_teacher(config, system)
    if run is None:  # those of an older run may have options without effect
        check_methods(config)
    check_rows(jax.eval_shape(lambda: system.carry(config, False)), layout.shards, config.training.accumulate)
    if about:
        watch.message(about)
    corpus = open_corpus_shown(config, system.task, watch)
    if known := run or parent:
        task = system.task.load(config, known.path)
    else:
        task = system.task.create(config, corpus, watch.progress)
    if run:
        run.check_corpus(corpus.folder.name)
    check_task(task.config, system, task, corpus)
    for note in task.decide(corpus) if run is None else ():
        watch.message(f"  {note}")
    config = task.config
    data = prepare(task, corpus, host=jax.process_index(), hosts=jax.process_count(), progress=watch.progress)
    if (epochs := config.training.epochs) is not None:
        training = config.training.in_steps(data.batcher.plan.steps_per_epoch)
        config = dataclasses.replace(config, training=training)
        watch.message(f"  --training.epochs {epochs:g}: {counted(training.steps, 'update')}")
        if run:
            check_unchanged(run, config)
    if isinstance(task, DecodingTask):
        check_search(system, task, config.decoding)
    objective = objective_of(config, partial(load_teacher, task), spelling(task))
    if run is None:  # only now, after all checks: a run stores its options
        path = gathered(str(run_dir or _new_directory(config)))[0]
        if is_main_process():
            Run.create(path, config, task, corpus.folder.name)
        barrier("run directory")
        run = Run(path, writes=True)
    with run.claimed(), resumable(run, config):
        loop = Loop(config, system, objective, run, data, watch, parent, track, profile, clock)
        loop.train()
        loop.report()
    return Path(run.name)


def open_corpus_shown(config: Config, task: type[Task], watch: ProgressReporter) -> Corpus:
    """Opens the corpus of a task with messages, since the first time takes a while."""
    watch.message("Preparing the corpus ...")
    start = time.monotonic()
    corpus = task.open_corpus(config, watch.progress)
    if not isinstance(corpus, Corpus):
        kind = type(corpus).__name__
        raise UserError(f"{task.__name__}.open_corpus must return a transformer.Corpus, not {kind}")
    sizes = ", ".join(f"{name} {len(records):,}" for name, records in corpus.splits.items())
    watch.message(f"  {corpus.name}: {sizes} {task.unit}, in {time.monotonic() - start:.1f} s")
    if corpus.note:
        watch.message(f"  {corpus.note}")
    return corpus


def _existing(run_dir: Path | str | None, config: Config) -> Run | None:
    """The existing run, or None. Raises UserError if it has another config."""
    if run_dir is None:
        return None
    if not has(run_dir, "config.json"):
        Run.check_free(run_dir)
        return None
    run = Run(run_dir, writes=True)
    run.check_resumable()
    check_unchanged(run, config)
    return run


def _sized_like_parent(config: Config, system: System, parent: Run) -> Config:
    """The config with the vocabulary sizes of the parent.

    Raises:
      UserError: its network neither equals nor extends the parent's.
    """
    if not issubclass(system.model, find_system(parent.config.system).model):
        raise UserError(
            f"--init-from {parent.name} holds a {parent.config.system} model, not a {config.system} one: "
            "leave out the preset"
        )
    model = sized_like(config, parent.config)
    kind = type(parent.config.model)
    common = {item.name: getattr(model, item.name) for item in dataclasses.fields(kind)}
    expected = dataclasses.replace(parent.config, model=kind(**common))
    free = {f"model.{name}" for name in kind.PARAMETER_FREE}
    if changed := differences(parent.config, expected, besides=free):
        raise UserError(
            f"--init-from {parent.name} holds another network: {'; '.join(changed)}. Leave out these "
            "options, or the preset"
        )
    return dataclasses.replace(config, model=model)


def _new_directory(config: Config) -> Path:
    """runs/<system>-<n>, the first n that is free."""
    number = 1
    while (path := Path("runs") / f"{config.system}-{number}").exists():
        number += 1
    return path
