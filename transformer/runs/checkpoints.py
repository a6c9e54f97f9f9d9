"""The checkpoints of a run and their items: saved in the background and sealed, found, restored; and written
from arrays that are computed meanwhile."""

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import absl.logging
import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer.config.ranges import instance, shown
from transformer.model.parameters import Variables
from transformer.runs.log import Manager, best_of, scores_of
from transformer.runs.sealed import MANIFEST, allowed, groups, read, seal
from transformer.runs.stores import RunStore
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import Json, forbid_links, read_stored, temp_sibling, write_whole
from transformer.runtime.hosts import as_global_arrays, barrier, is_main_process, on_host
from transformer.runtime.invocation import command
from transformer.training.step import TrainState

# The items of a checkpoint: `model`, which decoding reads, and `training`, which only resuming needs.


def items_of(state: TrainState) -> dict[str, Variables]:
    """What a checkpoint stores of a training state, by item."""
    training: Json = {"step": state.step, "optimizer": state.optimizer}
    if state.average is not None:  # otherwise the model has them
        training["params"] = state.trained
    if jax.tree.leaves(state.carry):
        training["carry"] = state.carry
    return {"model": model_of(state), "training": training}


def model_of(state: TrainState) -> Variables:
    """The item "model": all variables, or those of an adapter without the parameters that it changes."""
    if state.parametrisation.is_adapter:
        return {"params": state.best_trained, **state.statistics}
    return state.best_variables


def state_of(model: Variables, training: Json, like: TrainState) -> TrainState:
    """The training state that these items were stored of: the inverse of `items_of`.

    Args:
      model: the item "model".
      training: the item "training".
      like: a state of the same run; the fixed parameters of an adapter are taken from it.
    """
    statistics = dict(model)
    best, fixed = statistics.pop("params"), like.fixed
    if not like.parametrisation.is_adapter:
        best, fixed = like.parametrisation.split(best)
    return replace(
        like,
        step=training["step"],
        trained=training.get("params") or best,
        optimizer=training["optimizer"],
        statistics=statistics,
        average=None if like.average is None else best,
        carry=training.get("carry", ()),
        fixed=fixed,
    )


log = logging.getLogger("transformer")
_STEP = re.compile(r"0|[1-9][0-9]{0,9}")  # the name of a checkpoint
AVERAGE = "average"
BEFORE = f".{AVERAGE}.before"  # while a new average takes the name
MADE_OF = "steps.json"  # in the folder of an average: the checkpoints that it is of, and the newest then
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}  # nothing can be written


class Checkpoints:
    """The checkpoints of a run directory.

    Args:
      store: where the directory is.
      keep_last: how many of the newest that were evaluated are kept, besides the best.
    """

    def __init__(self, store: RunStore, keep_last: int) -> None:
        # Orbax logs a lot, and a full disk once per array; `not_written` reports it once
        absl.logging.set_verbosity(absl.logging.FATAL)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        self.store = store
        self.path = store.folder
        self.keep_last = keep_last
        self.name = store.name
        self._pending: Callable[[], None] | None = None  # waits for the checkpoint that is being saved

    @functools.cached_property
    def _manager(self) -> Manager:
        return Manager(self.path, self.keep_last, self.store.savers)

    @property
    def _is_saver(self) -> bool:
        """Whether this process saves."""
        return self.store.savers is None or jax.process_index() in self.store.savers

    def save(self, state: TrainState, scores: dict[str, float] | None = None) -> None:
        """Starts to write a checkpoint of the state in the background; `finish_saving` waits for it. An
        existing checkpoint of the same step is replaced only if there are scores.

        Checkpoints older than the newest `keep_last` with scores are deleted, except the best, and all others
        without scores.

        Args:
          state: of training.
          scores: by name, from which `standing` ranks the checkpoint.

        Raises:
          UserError: it could not be written; earlier checkpoints are unchanged.
        """
        stored = as_global_arrays if self.store.savers is None else on_host
        items = ocp.args.Composite(
            **{name: ocp.args.StandardSave(stored(item)) for name, item in items_of(state).items()}
        )
        step = int(state.step)
        self.finish_saving()
        exists = step in self.steps()
        if exists and scores is None:
            return
        if not self._is_saver:
            return
        try:
            if exists:
                self._manager.delete(step)
            self._manager.save(step, args=items, metrics=scores)
        except Exception as error:
            raise not_written(self.name, error) from error
        self._pending = self.store.completing(self._complete)

    def _complete(self) -> None:
        """Waits until pending checkpoints are written, and seals them with the hashes of their files."""
        self._manager.wait_until_finished()
        if not is_main_process():
            return
        for step in self.steps():
            if not (self._folder(step) / MANIFEST).exists():
                seal(self._folder(step))

    def store_model(self, step: int, variables: Variables) -> None:
        """Saves variables as the checkpoint of a step, for decoding and `init_from`. It cannot be resumed.

        Args:
          step: of the checkpoint.
          variables: arrays, or `Deferred` ones, of which a few at a time are in memory.
        """
        with deferred_checkpointer() as checkpointer:
            folder = (self._folder(step) / "model").absolute()
            checkpointer.save(folder, args=ocp.args.PyTreeSave(jax.tree.map(deferred, variables)))
        seal(self._folder(step))

    def finish_saving(self) -> None:
        """Waits until pending checkpoints are complete, sealed with the hashes of their files, and sent.

        Raises:
          UserError: as `save`; another process has taken the remote run over.
        """
        finish = self._pending or self._complete
        self._pending = None
        try:
            if self._is_saver:
                finish()
            self.store.meet("checkpoints")
        except UserError:
            raise
        except Exception as error:
            raise not_written(self.name, error) from error

    def _pull(self, prefix: str, *like: Variables) -> None:
        """Makes the files under a name readable, if they are no larger than such items may be."""
        self.store.pull(prefix, sum(map(allowed, like)))

    def _folder(self, step: int) -> Path:
        return self.path / "checkpoints" / str(step)

    def steps(self) -> list[int]:
        """The complete checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        if folder.is_symlink() or any(entry.is_symlink() for entry in folder.glob("*")):
            raise UserError(f"{folder} is a link, or holds one: put the checkpoints themselves in its place")
        return sorted(int(entry.name) for entry in folder.glob("*") if _STEP.fullmatch(entry.name))

    def saved(self) -> list[int]:
        """As `steps`. Raises UserError if there is none yet."""
        if steps := self.steps():
            return steps
        raise UserError(f"{self.name} holds no checkpoint yet")

    def best(self) -> int:
        """The checkpoint with the best `standing`; the newest one if none was measured."""
        steps = self.saved()
        scores = {step: scores_of(self._folder(step)) for step in steps}
        best = best_of(scores, self.path)
        for step, step_scores in scores.items():
            if not step_scores and os.path.lexists(self._folder(step) / "metrics"):
                log.warning(
                    "%s: the scores of checkpoint %d are damaged, so the best one is chosen without it; "
                    "--checkpoint %d takes it all the same",
                    self.name,
                    step,
                    step,
                )
        return steps[-1] if best is None else best

    def resume(self, like: TrainState, say: Callable[[str], None]) -> TrainState | None:
        """Restores the newest intact checkpoint. Damaged ones are moved to `damaged/` and reported by `say`.
        None if there are no checkpoints.

        Args:
          like: gives the state's structure, shapes and placement.
          say: shows a message.

        Raises:
          UserError: all are damaged; one cannot be copied from a remote run.
        """
        damaged: list[tuple[int, UserError]] = []
        for step in reversed(self.steps()):
            self._pull(
                f"checkpoints/{step}/", *jax.eval_shape(items_of, like).values()
            )  # what cannot be copied is no damage
            try:
                state = self._restored(step, like)
            except UserError as error:
                damaged.append((step, error))
                continue
            barrier("read")
            for bad, reason in damaged:
                aside = self.path / "damaged" / str(bad)
                if is_main_process():
                    shutil.rmtree(aside, ignore_errors=True)
                    aside.parent.mkdir(exist_ok=True)
                    os.replace(self._folder(bad), aside)
                say(f"{reason}. Moved to {aside}; resuming from step {step}")
            if damaged:
                self.store.push()
            self.store.meet("moved")
            return state
        if damaged:
            raise damaged[0][1]
        return None

    def _restored(self, step: int, like: TrainState) -> TrainState:
        shapes = jax.eval_shape(items_of, like)
        with self.store.named():
            model, training = (read(self._folder(step), shapes[name], name) for name in shapes)
        return state_of(model, training, like)

    def variables(self, checkpoint: str | int, like: Variables) -> Variables:
        """A checkpoint's model variables.

        Args:
          checkpoint: "best" (by the first score), "last", or a step.
          like: a pytree of arrays or shapes.

        Raises:
          UserError: there is no such checkpoint, or it is damaged or belongs to another model.
        """
        step = self.find(checkpoint)
        self._pull(f"checkpoints/{step}/model/", like)
        with self.store.named():
            return read(self._folder(step), like, "model")

    def newest(self) -> list[int]:
        """The newest `keep_last`. Raises UserError if there is none yet."""
        return self.saved()[-self.keep_last :]

    def find(self, checkpoint: str | int) -> int:
        """The step that "best", "last" or a number means.

        Raises:
          UserError: there is no such checkpoint.
        """
        steps = self.saved()
        instance("checkpoint", checkpoint, str | int)
        if checkpoint == "best":
            return self.best()
        if checkpoint == "last":
            return steps[-1]
        for step in steps:
            if checkpoint in (step, str(step)):
                return step
        raise UserError(
            f"{self.name} has no checkpoint {shown(checkpoint)}: choose best, last, average, or one of "
            f"{', '.join(map(str, steps))}"
        )

    def average(self, like: Variables) -> Variables | None:
        """The variables that `store_average` saved, if it did. A warning says so if checkpoints are newer.

        Raises:
          UserError: they are damaged or belong to another model.
        """
        self._pull("average/", like)
        stored = self.path / AVERAGE
        if not stored.exists():
            stored = self.path / BEFORE
        if not stored.exists():
            return None
        with self.store.named():
            variables = read(stored, like)
            note = read_stored(stored / MADE_OF, _steps_of_average)
        newest = self.steps()[-1:]
        if note is None or note["newest"] < newest:
            steps = ", ".join(map(str, note["steps"])) if note else "that an earlier version did not store"
            again = command("average", self.name)
            log.warning(
                "%s: its average is of steps %s; %s makes one of the newest, up to %s",
                self.name,
                steps,
                again,
                *newest,
            )
        return variables

    def store_average(self, variables: Variables, steps: Sequence[int]) -> Path:
        """Saves averaged variables as the checkpoint "average", and returns its path. Training leaves it.

        Args:
          variables: the average.
          steps: the checkpoints that it is of, for the warning of `average`.

        Raises:
          UserError: it cannot be written; an existing one is unchanged.
        """
        forbid_links(self.path, "a run directory may contain")
        path = self.path / AVERAGE
        partial = temp_sibling(path)
        try:
            with self._averaging():
                partial.mkdir()  # where it cannot be created, Orbax's threads warn, and wait for minutes
                partial.rmdir()
                with ocp.StandardCheckpointer() as checkpointer:
                    checkpointer.save(partial.absolute(), variables)
                note = {"steps": list(steps), "newest": self.steps()[-1:]}
                write_whole(partial / MADE_OF, json.dumps(note))
                if path.exists():
                    os.replace(path, self.path / BEFORE)
                os.replace(partial, path)
        except Exception as error:
            reason = first_line(error)
            raise UserError(f"could not write {path}: {reason}. The checkpoints are unchanged") from error
        self.store.push(written=path.name)
        return path

    @contextlib.contextmanager
    def _averaging(self) -> Iterator[None]:
        """Lets one process at a time write the average. Removes, before and after, what one has left that was
        killed or whose disk was full: then Orbax's threads may still have been writing."""

        def clean() -> None:
            if before.exists() and not path.exists():
                os.replace(before, path)
            for leftover in self.path.glob(f".{AVERAGE}.*"):
                shutil.rmtree(leftover, ignore_errors=True)

        path, before = self.path / AVERAGE, self.path / BEFORE
        folder = os.open(self.path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            clean()
            try:
                yield
            finally:
                clean()
        finally:
            os.close(folder)


def _steps_of_average(note: Json) -> Json:
    """Raises ValueError if this is not what `store_average` writes."""
    for name in "steps", "newest":
        steps = note.get(name)
        if not isinstance(steps, list) or not all(type(step) is int for step in steps):
            raise ValueError(f"{name} is no list of steps")
    return note


def not_written(path: Path | str, error: Exception) -> UserError:
    """The error to raise if a run directory cannot be written."""
    reason = first_line(error).rstrip(".")
    remedy = "Is the disk full? If so, make room, then"
    if isinstance(error, OSError) and error.errno not in FULL:
        remedy = "Fix that, then"
    if isinstance(error, TimeoutError):  # measured by the system clock, which may have been changed
        remedy = "Is the disk very slow, or was the clock changed? If so, fix that, then"
    return UserError(
        f"could not write to {path}: {reason}. Earlier checkpoints are unchanged. {remedy} run "
        f"the same command again with --run-dir {path}"
    )


# Arrays that are computed when a checkpoint is written, a few at a time: a model may exceed memory.


@dataclass(frozen=True)
class Deferred:
    """An array that is not there yet."""

    shape: tuple[int, ...]
    """Shape of the array."""
    load: Callable[[], np.ndarray]
    """Reads the array and returns it."""
    dtype: Any = np.float32
    """Type of the array's elements."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it will need."""
        return self.size * np.dtype(self.dtype).itemsize


def deferred(x: Any) -> Deferred:
    """An array, or a `Deferred` one, as a `Deferred` one."""
    return x if isinstance(x, Deferred) else Deferred(x.shape, lambda: np.asarray(x), x.dtype)


class _FewAtATime(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]  # Orbax is untyped
    """Writes some arrays before it loads the next ones."""

    async def serialize(
        self, values: Sequence[Deferred], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        args = args or [ocp.SaveArgs()] * len(values)
        for group in groups([value.nbytes for value in values]):
            arrays = [values[i].load() for i in group]
            for writing in await super().serialize(
                arrays, [infos[i] for i in group], [args[i] for i in group]
            ):
                writing.result()
        return []


def deferred_checkpointer() -> ocp.Checkpointer:
    """An Orbax checkpointer for trees of `Deferred`. The files are those of arrays of NumPy."""
    handler = Deferred, _FewAtATime(deepcopy_host_arrays=False)
    registry = ocp.type_handlers.create_type_handler_registry(handler)
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry))
