"""The run directory: everything that training writes, self-contained and movable.

    config.json          the resolved config
    corpus               the name of the prepared corpus, which changes with its content
    source.model ...     what the task stores: for translation the tokenizers of source and target
    checkpoints/<step>/  Orbax: `model` (for decoding) and `training` (for resuming);
                         manifest.json, written last, has the hashes of all files
    average/             an averaged `model`, if requested
    metrics.jsonl        the log, one JSON object per line; tensorboard/ has the same for TensorBoard
    results.json         test scores with their signatures
    report.html          all of this as a page
    lock                 held during training

It contains no pickles.
"""

import contextlib
import errno
import fcntl
import functools
import json
import logging
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from transformer.config import COUNTS, Config
from transformer.config.json import from_json, to_json
from transformer.errors import UserError
from transformer.evaluation.scores import Measure
from transformer.files import (
    Json,
    MiB,
    append_flags,
    beside,
    check_name,
    check_plain,
    folder_whole,
    parse_object,
    read_log,
    read_text,
    write_whole,
)
from transformer.model.parameters import Variables
from transformer.runs.checkpoints import MANIFEST, read, seal
from transformer.runtime.hosts import barrier, is_main_process
from transformer.runtime.sharding import as_global_arrays
from transformer.systems.registry import find_system
from transformer.tasks.task import Task
from transformer.training.step import TrainState

_STEP = re.compile(r"0|[1-9][0-9]{0,9}")  # the name of a checkpoint
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}  # nothing can be written


class Run:
    """An open run directory.

    Args:
      path: a directory that `create` made.

    Raises:
      UserError: it is missing, or not a run directory.
    """

    def __init__(self, path: Path | str) -> None:
        # Orbax logs a lot, and a full disk once per array; `_not_written` reports it once
        absl.logging.set_verbosity(absl.logging.FATAL)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        self.path = Path(path)
        check_name(self.path)
        if not self.path.is_dir():
            raise UserError(f"{self.path}: no such run directory")
        try:
            text = read_text(self.path / "config.json", MiB)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path} is not a run directory: it has no readable config.json") from error
        try:
            self.config = from_json(text)
        except UserError as error:
            foreign = '"model_type"' in text
            hint = "; to use a Marian model, first: transformer import" if foreign else ""
            raise UserError(f"{self.path / 'config.json'}: {error}{hint}") from error
        if self.config.model.vocab_size < 1:
            raise UserError(f"{self.path / 'config.json'}: model.vocab_size is missing")

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: Config,
        task: Task,
        corpus: str | None = None,
        variables: Variables | None = None,
    ) -> "Run":
        """Creates a run directory, complete or not at all.

        Args:
          path: the new directory.
          config: of the run.
          task: what it learned from the corpus is stored.
          corpus: the name of the prepared corpus. None: the model is imported.
          variables: of an imported model, saved as the checkpoint of step 0.

        Raises:
          UserError: the path exists already, or cannot be written; the config is invalid.
        """
        path = Path(path)
        cls.check_free(path)
        try:
            with folder_whole(path) as partial:
                task.save(partial)
                if corpus:
                    write_whole(partial / "corpus", corpus + "\n")
                write_whole(partial / "config.json", to_json(config))
                run = cls(partial)  # refuses what could not be opened again
                if variables is not None:
                    run.store_model(0, variables)
        except OSError as error:
            raise UserError(f"cannot create {path}: {error.strerror}") from error
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """Raises UserError if a run directory cannot be created."""
        check_name(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists already: name a new directory")
        above = next(folder for folder in path.absolute().parents if folder.exists())
        try:  # permission bits are not enough on every file system
            tempfile.TemporaryFile(dir=above).close()
        except OSError as error:
            reason = f"{above} is not a writable folder ({error.strerror})"
            raise UserError(f"cannot create {path}: {reason}") from None

    def check_resumable(self) -> None:
        """Raises UserError if this model was imported."""
        if not (self.path / "corpus").exists() and self.steps():
            raise UserError(
                f"{self.path} holds a model that was not trained here: to train it further, give "
                f"--init-from {self.path} and another --run-dir"
            )

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Locks the run directory for training. The lock ends with the process, however it ends.

        Raises:
          UserError: another process trains here; the directory contains a link, which could lead outside, or
            cannot be written.
        """
        check_plain(self.path, "a run directory may contain")
        with contextlib.ExitStack() as held:
            try:
                if is_main_process():
                    file = held.enter_context(open(self.path / "lock", "a", opener=append_flags))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"{self.path}: another process trains there; wait for it, or choose another --run-dir"
                ) from error
            except OSError as error:
                raise UserError(f"cannot write to {self.path}: {error.strerror}") from error
            try:
                yield
            except BrokenPipeError:
                raise
            except OSError as error:
                raise self._not_written(error) from error

    def check_corpus(self, corpus: str) -> None:
        """Raises UserError if this is not the corpus that the run was started with."""
        try:
            began_with = read_text(self.path / "corpus", MiB).strip()
        except (OSError, UnicodeDecodeError):
            began_with = ""
        if began_with != corpus:
            raise UserError(
                f"{self.path}: the training text has changed since this run was started; restore the old "
                "text, or start another run with another --run-dir"
            )

    @functools.cached_property
    def task(self) -> Task:
        """The task, with what it learned from the corpus.

        Raises:
          UserError: a file is missing or damaged.
        """
        return find_system(self.config.system).task.load(self.config, self.path)

    # Checkpoints

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        keep = policies.AnyPreservationPolicy(
            [
                policies.LatestN(self.config.training.keep_last),
                policies.BestN(get_metric_fn=merit, n=1, keep_checkpoints_without_metrics=False),
            ]
        )
        options = ocp.CheckpointManagerOptions(best_fn=merit, preservation_policy=keep)
        return ocp.CheckpointManager(
            (self.path / "checkpoints").absolute(), options=options, item_names=("model", "training")
        )

    def save(self, state: TrainState, scores: dict[str, float] | None = None) -> None:
        """Starts to write a checkpoint of the state in the background; `finish_saving` waits for it. An
        existing checkpoint of the same step is replaced only if there are scores.

        Checkpoints older than the newest `keep_last` are deleted, except the best.

        Args:
          state: of training.
          scores: by name; "merit" is the one that decides, higher for a better checkpoint.

        Raises:
          UserError: it could not be written; earlier checkpoints are unchanged.
        """
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(as_global_arrays(state.best_variables)),
            training=ocp.args.StandardSave(as_global_arrays(_resume_items(state))),
        )
        step = int(state.step)
        self.finish_saving()
        there = step in self.steps()
        if there and scores is None:
            return
        if is_main_process():
            shutil.rmtree(self.path / "average", ignore_errors=True)  # made from older checkpoints
        try:
            if there:
                self._manager.delete(step)
            self._manager.save(step, args=items, metrics=scores)
        except Exception as error:
            raise self._not_written(error) from error

    def store_model(self, step: int, variables: Variables) -> None:
        """Saves variables as the checkpoint of a step, for decoding and `init_from`. It cannot be resumed."""
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((self._checkpoint_path(step) / "model").absolute(), variables)
        seal(self._checkpoint_path(step))

    def finish_saving(self) -> None:
        """Waits until pending checkpoints are complete, and seals them with the hashes of their files.

        Raises:
          UserError: as `save`.
        """
        try:
            self._manager.wait_until_finished()
            if is_main_process():
                for step in self.steps():
                    if not (self._checkpoint_path(step) / MANIFEST).exists():
                        seal(self._checkpoint_path(step))
            barrier("checkpoints")
        except Exception as error:
            raise self._not_written(error) from error

    def _not_written(self, error: Exception) -> UserError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        remedy = "Is the disk full? If so, make room, then"
        if isinstance(error, OSError) and error.errno not in FULL:
            remedy = "Fix that, then"
        if isinstance(error, TimeoutError):  # measured by the system clock, which may have been changed
            remedy = "Is the disk very slow, or was the clock changed? If so, fix that, then"
        return UserError(
            f"could not write to {self.path}: {reason}. Earlier checkpoints are unchanged. {remedy} run "
            f"the same command again with --run-dir {self.path}"
        )

    def _checkpoint_path(self, step: int) -> Path:
        return self.path / "checkpoints" / str(step)

    def steps(self) -> list[int]:
        """The complete checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        if folder.is_symlink() or any(entry.is_symlink() for entry in folder.glob("*")):
            raise UserError(f"{folder} is a link, or holds one: put the checkpoints themselves in its place")
        return sorted(int(entry.name) for entry in folder.glob("*") if _STEP.fullmatch(entry.name))

    def best_step(self) -> int:
        """The checkpoint with the best score; the newest one if several are equal or none was measured."""
        scores = {step: self._merit(step) for step in self.steps()}
        if not scores:
            raise UserError(f"{self.path} holds no checkpoint yet")
        return max(scores, key=lambda step: (scores[step], step))

    def _merit(self, step: int) -> float:
        try:
            text = read_text(self._checkpoint_path(step) / "metrics" / "metrics", MiB)
            return float(merit(parse_object(text)))
        except (OSError, ValueError, KeyError, TypeError):
            return float("-inf")

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The training state of a step; `like` gives its structure, shapes and placement.

        Raises:
          UserError: the checkpoint is missing or damaged, or belongs to another model.
        """
        shapes = {"model": like.best_variables, "training": _resume_items(like)}
        model, training = (read(self._checkpoint_path(step), shapes[name], name) for name in shapes)
        params = training.get("params") or model["params"]
        return TrainState(
            step=training["step"],
            params=params,
            optimizer=training["optimizer"],
            statistics={name: value for name, value in model.items() if name != "params"},
            average=None if like.average is None else model["params"],
            carry=training.get("carry", ()),
        )

    def resume(self, like: TrainState, say: Callable[[str], None]) -> TrainState | None:
        """Restores the newest intact checkpoint. Damaged ones are moved to `damaged/` and reported by `say`.
        None if there are no checkpoints.

        Raises:
          UserError: all are damaged.
        """
        damaged: list[tuple[int, UserError]] = []
        for step in reversed(self.steps()):
            try:
                state = self.restore(step, like)
            except UserError as error:
                damaged.append((step, error))
                continue
            barrier("read")
            for bad, reason in damaged:
                aside = self.path / "damaged" / str(bad)
                if is_main_process():
                    shutil.rmtree(aside, ignore_errors=True)
                    aside.parent.mkdir(exist_ok=True)
                    os.replace(self._checkpoint_path(bad), aside)
                say(f"{reason}. Moved to {aside}; resuming from step {step}")
            barrier("moved")
            return state
        if damaged:
            raise damaged[0][1]
        return None

    def variables(self, checkpoint: str | int, like: Variables) -> Variables:
        """A checkpoint's model variables.

        Args:
          checkpoint: "best" (by the first score), "last", "average", or a step.
          like: a pytree of arrays or shapes.

        Raises:
          UserError: there is no such checkpoint, or it is damaged or belongs to another model.
        """
        if checkpoint == "average":
            stored = self.path / "average"
            return read(stored, like) if stored.exists() else self.averaged(None, like)
        return read(self._checkpoint_path(self.find(checkpoint)), like, "model")

    def find(self, checkpoint: str | int) -> int:
        """The step that "best", "last" or a number means.

        Raises:
          UserError: there is no such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.path} holds no checkpoint yet")
        if checkpoint == "best":
            return self.best_step()
        if checkpoint == "last":
            return steps[-1]
        if str(checkpoint) in map(str, steps):
            return int(checkpoint)
        raise UserError(
            f"{self.path} has no checkpoint {checkpoint!r}: choose best, last, average, or one of "
            f"{', '.join(map(str, steps))}"
        )

    def averaged(self, steps: Sequence[int] | None, like: Variables) -> Variables:
        """The mean of several checkpoints' variables (section 6.1), by default of the newest `keep_last`;
        computed in float64, then rounded."""
        chosen = [self.find(step) for step in steps or self.steps()[-self.config.training.keep_last :]]
        if not chosen:
            raise UserError(f"{self.path} holds no checkpoint yet")
        total = jax.tree.map(lambda x: np.zeros(x.shape, np.float64), like)
        for step in chosen:
            total = jax.tree.map(lambda a, b: a + np.asarray(b), total, self.variables(step, like))
        return jax.tree.map(lambda a, x: jnp.asarray(a / len(chosen), x.dtype), total, like)

    def store_average(self, variables: Variables) -> Path:
        """Saves averaged variables as the checkpoint "average", and returns its path.

        Raises:
          UserError: it cannot be written; an existing one is unchanged.
        """
        check_plain(self.path, "a run directory may contain")
        place = self.path / "average"
        partial = beside(place)
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(partial.absolute(), variables)
            shutil.rmtree(place, ignore_errors=True)
            os.replace(partial, place)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"could not write {place}: {reason}. The checkpoints are unchanged") from error
        finally:
            for left in self.path.glob(f"{partial.name}*"):
                shutil.rmtree(left, ignore_errors=True)
        return place

    # Reports

    def records(self, kind: str | None = None) -> list[Json]:
        """The records that training wrote to metrics.jsonl, of one kind ("start", "training" or "evaluation")
        or of all. Other lines, such as one that a kill truncated, are skipped.

        Raises:
          UserError: it cannot be read.
        """
        path = self.path / "metrics.jsonl"
        try:
            return [
                record for record in read_log(path) if _is_record(record) and kind in (None, record["kind"])
            ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error

    def log(self, record: Json) -> None:
        """Appends a line to metrics.jsonl."""
        line = json.dumps(record, ensure_ascii=False) + "\n"
        with open(self.path / "metrics.jsonl", "ab+", opener=append_flags) as file:
            if file.tell():  # end a line that a kill truncated
                file.seek(-1, os.SEEK_END)
                line = line if file.read() == b"\n" else "\n" + line
            file.write(line.encode())


def merit(scores: Json) -> Any:
    """The score that decides which checkpoint is best. Runs of version 0.1 have only BLEU."""
    return scores["merit"] if "merit" in scores else scores["bleu"]


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


def _resume_items(state: TrainState) -> Json:
    """What resuming needs besides the model for decoding."""
    items = {"step": state.step, "optimizer": state.optimizer}
    if state.average is not None:
        items["params"] = state.params
    if jax.tree.leaves(state.carry):
        items["carry"] = state.carry
    return items
