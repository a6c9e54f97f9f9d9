"""Trains a config: creates or resumes the run, prepares the data and runs the loop; or only prepares or
checks its corpus (`--data.prepare`, `--data.check`)."""

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax

from transformer.config.options import Config
from transformer.config.ranges import typed
from transformer.data.sources.text_files import BadLines, reading
from transformer.data.store import Corpus
from transformer.runs.run import Run, named_bases
from transformer.runtime.compilation import keep_programs
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError, counted
from transformer.runtime.hosts import barrier, gathered, is_main_process, refuse_forked
from transformer.tasks.preparation import TrainingData, prepare
from transformer.tasks.prepared_shards import PreparedShards
from transformer.tasks.task import Task
from transformer.tasks.text import spelling
from transformer.trainer.checks import OF_CONFIG, OF_CORPUS, OF_MACHINE, check_libraries, check_texts
from transformer.trainer.journal import Clock, Track, transcribed, untracked
from transformer.trainer.loop import Loop
from transformer.trainer.resolved import Resolved, check_unchanged, load_teacher, resolve, resumable
from transformer.trainer.starts import in_slices
from transformer.training.methods.registry import objective_of


@typed
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
      Stopped: SIGINT or SIGTERM arrived, or `training.minutes` are over; the state was saved.
    """
    refuse_forked()
    for name in ("check", "prepare"):
        if getattr(config.data, name):
            raise UserError(f"--data.{name} trains nothing: leave it out, or call transformer train")
    clock = Clock()
    watch = watch or ProgressReporter(quiet=not is_main_process())
    watch.forget()
    keep_programs()
    base = config.training.init_from if config.adapter.rank else None
    resolved = resolve(config, run_dir)
    system, run, parent = resolved.system, resolved.run, resolved.parent
    data = _prepared(resolved, OF_CONFIG + OF_MACHINE, watch, about)
    task, config = data.task, data.task.config
    with contextlib.closing(data.batcher.plan):
        steps_per_epoch = data.batcher.plan.steps_per_epoch
        config = replace(config, optimizer=config.optimizer.in_steps(steps_per_epoch))
        if (epochs := config.training.epochs) is not None:
            training = config.training.in_steps(steps_per_epoch)
            config = replace(config, training=training)
            watch.message(f"  --training.epochs {epochs:g}: {counted(training.steps, 'update')}")
            if run:
                check_unchanged(run, config)
        objective = objective_of(system, config, partial(load_teacher, task), spelling(task))
        if run is None:  # only now, after all checks: a run stores its options
            if config.adapter.rank and parent:
                config = replace(config, adapter=parent.changed_by(config.adapter))
            new = (Path("runs") / f"{config.system}-{number}" for number in itertools.count(1))
            path = gathered(str(run_dir or next(free for free in new if not free.exists())))[0]
            if is_main_process():
                unused = parent.kept if parent else {}
                Run.create(path, config, task, data.corpus.folder.name, unused=unused)
            barrier("run directory")
            run = Run(path, writes=True)
        with run.claimed(), transcribed(run, watch), resumable(run, config), named_bases(base):
            config = in_slices(config, system, run, watch.message)
            loop = Loop(config, system, objective, run, data, watch, parent, track, profile, clock)
            with watch.training(loop.step, config.training.steps):
                loop.train()
                tested = loop.test()
            loop.report(*tested)
        return Path(run.name)


def _prepared(
    resolved: Resolved, checks: Sequence[Callable[[Resolved], None]], watch: ProgressReporter, about: str
) -> TrainingData:
    """Opens and checks the corpus, learns the vocabulary, and prepares what training needs first."""
    config, system, run = resolved.config, resolved.system, resolved.run
    with reading(config.data.drop_bad) as bad:
        for check in checks:
            check(resolved)
        if about:
            watch.message(about)
        corpus = open_corpus_shown(config, system.task, watch)
    for line in bad.described():
        watch.message(f"  left out: {line}")
    if resolved.task:
        task = resolved.task
    elif known_run := run or resolved.parent:
        task = system.task.load(config, known_run.path)
    else:
        task = system.task.create(config, corpus, watch.progress)
    if run:
        run.check_corpus(corpus.folder.name)
    for check_corpus in OF_CORPUS:
        check_corpus(system, task, corpus)
    if run is None:
        task.learn(corpus, watch.progress)
        for note in (*task.remarks(config, corpus, watch.progress), *task.decide(corpus)):
            watch.message(f"  {note}")
    return prepare(task, corpus, host=jax.process_index(), hosts=jax.process_count(), progress=watch.progress)


def prepare_corpus(config: Config, run_dir: Path | str | None, watch: ProgressReporter, about: str) -> None:
    """Prepares the corpus of a config, with all shards, for trainings that follow (`--data.prepare`).

    Args:
      config: the complete configuration.
      run_dir: a run that has its vocabulary. None, or there is none yet: the one of the config.
      watch: shows the progress.
      about: text to print first.

    Raises:
      UserError: as `train`.
    """
    resolved = resolve(replace(config, data=replace(config.data, prepare=False)), run_dir)
    data = _prepared(resolved, (*OF_CONFIG, check_libraries, check_texts), watch, about)
    with contextlib.closing(data.batcher.plan) as plan:
        if isinstance(shards := getattr(plan, "shards", None), PreparedShards):
            shards.wait(range(len(shards)), watch.progress)
    watch.message(f"The corpus is prepared, in {data.corpus.folder}")


def open_corpus_shown(config: Config, task: type[Task], watch: ProgressReporter) -> Corpus:
    """Opens the corpus of a task with messages, since the first time takes a while."""
    watch.message("Preparing the corpus ...")
    start = time.monotonic()
    corpus = task.open_corpus(config, watch.progress)
    if not isinstance(corpus, Corpus):
        type_name = type(corpus).__name__
        raise UserError(f"{task.__name__}.open_corpus must return a transformer.Corpus, not {type_name}")
    sizes = ", ".join(f"{name} {len(records):,}" for name, records in corpus.splits.items())
    watch.message(f"  {corpus.name}: {sizes} {task.unit}, in {time.monotonic() - start:.1f} s")
    if corpus.note:
        watch.message(f"  {corpus.note}")
    return corpus


# `train.py --data.check`: which lines of a corpus cannot be read, and what is unusual about the others.


MANY = 10_000  # kinds, and ranges of line numbers, that are named


def check_corpus(config: Config, watch: ProgressReporter, about: str = "") -> None:
    """Opens the corpus of a config and says what is wrong and what is unusual. Nothing is trained.

    Raises:
      UserError: lines cannot be read: all of them, by file and by kind; or the config makes no sense.
    """
    resolved = resolve(replace(config, data=replace(config.data, check=False, drop_bad=True)), None)
    system = resolved.system
    with reading(drops=True) as bad:
        for check in (*OF_CONFIG, check_libraries, check_texts):
            check(resolved)
        if about:
            watch.message(about)
        try:
            corpus = open_corpus_shown(resolved.config, system.task, watch)
        except UserError as error:  # perhaps since all lines are left out
            raise _refusal(bad, str(error)) from error
        checked = replace(resolved.config, data=replace(resolved.config.data, check=True))
        for remark in system.task.remarks(checked, corpus, watch.progress):
            watch.message(f"  {remark}")
    if bad:
        raise _refusal(bad)
    watch.message("All lines can be read.")


def _refusal(bad: BadLines, *further: str) -> UserError:
    lines = bad.described(MANY)
    if lines:
        lines.append(f"{len(bad):,} cannot be read: --data.drop-bad leaves them out")
    return UserError("\n".join([*lines, *further]))
