"""The checkpoints of a run: saved in the background, sealed, kept or deleted, found, restored, averaged."""

import contextlib
import dataclasses
import errno
import functools
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from transformer.errors import UserError
from transformer.files import Json, MiB, forbid_links, parse_object, read_text, temp_sibling
from transformer.model.parameters import Variables
from transformer.runs.bounds import allowed
from transformer.runs.log import LOSSES, Log, standing
from transformer.runs.mirror import Mirror
from transformer.runs.sealed import MANIFEST, first_line, read, seal
from transformer.runtime.arrays import as_global_arrays, on_host
from transformer.runtime.hosts import barrier, is_main_process
from transformer.training.step import TrainState

log = logging.getLogger("transformer")
_STEP = re.compile(r"0|[1-9][0-9]{0,9}")  # the name of a checkpoint
_HEAVY = re.compile(
    r"checkpoints/[^/]+/(?!metrics/|manifest)|(average|damaged|tensorboard|profile)/|report\.html|memory\.prof"
)
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}  # nothing can be written


def is_light(name: str) -> bool:
    """Whether a file of a run is copied from a remote one at once: what is small and always read."""
    return not _HEAVY.match(name)


@dataclasses.dataclass(frozen=True)
class _Best:
    """Keeps the best checkpoint."""

    best_of: Callable[[Mapping[int, Json | None]], int | None]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        best = self.best_of({each.step: each.metrics for each in checkpoints})
        return [each.step == best for each in checkpoints]


class _Manager(ocp.CheckpointManager):
    """Orbax's, which would read the scores of earlier checkpoints whatever their size and type.

    Args:
      scores_of: the scores of a checkpoint that is there.
    """

    def __init__(self, scores_of: Callable[[int], Json], *args: Any, **options: Any) -> None:
        self._scores_of = scores_of  # first, as the others ask for them
        super().__init__(*args, **options)

    def metrics(self, step: int) -> Json:
        return self._scores_of(step)


class Checkpoints:
    """The checkpoints of a run directory.

    Args:
      path: the run directory.
      keep_last: how many of the newest are kept, besides the best.
      name: of the run, for messages.
      mirror: of a remote run, whose copy is `path`. Then the main process alone saves.
    """

    def __init__(self, path: Path, keep_last: int, name: str = "", mirror: Mirror | None = None) -> None:
        # Orbax logs a lot, and a full disk once per array; `not_written` reports it once
        absl.logging.set_verbosity(absl.logging.FATAL)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        self.path, self.keep_last, self.name, self.mirror = path, keep_last, name or str(path), mirror
        self._sender = ThreadPoolExecutor(1)
        self._sending: Future[None] | None = None

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        keep = policies.AnyPreservationPolicy(
            [
                policies.LatestN(self.keep_last),
                _Best(self._best_of),
            ]
        )
        saving = {0} if self.mirror else None  # the processes that save; None: all
        options = ocp.CheckpointManagerOptions(
            best_fn=standing,  # Orbax stores scores only with one
            preservation_policy=keep,
            create=not saving,
            multiprocessing_options=ocp.options.MultiprocessingOptions(active_processes=saving),
        )
        (self.path / "checkpoints").mkdir(exist_ok=True)
        return _Manager(
            self._scores,
            (self.path / "checkpoints").absolute(),
            options=options,
            item_names=("model", "training"),
        )

    def save(self, state: TrainState, scores: dict[str, float] | None = None) -> None:
        """Starts to write a checkpoint of the state in the background; `finish_saving` waits for it. An
        existing checkpoint of the same step is replaced only if there are scores.

        Checkpoints older than the newest `keep_last` are deleted, except the best.

        Args:
          state: of training.
          scores: by name, of which `standing` says how good the checkpoint is.

        Raises:
          UserError: it could not be written; earlier checkpoints are unchanged.
        """
        stored = on_host if self.mirror else as_global_arrays
        items = ocp.args.Composite(
            **{name: ocp.args.StandardSave(stored(item)) for name, item in _items(state).items()}
        )
        step = int(state.step)
        self.finish_saving()
        there = step in self.steps()
        if there and scores is None:
            return
        if is_main_process():
            shutil.rmtree(self.path / "average", ignore_errors=True)  # made from older checkpoints
        if self.mirror and not is_main_process():
            return
        try:
            if there:
                self._manager.delete(step)
            self._manager.save(step, args=items, metrics=scores)
        except Exception as error:
            raise not_written(self.name, error) from error
        if self.mirror:
            self._sending = self._sender.submit(self._send)

    def _send(self) -> None:
        """Completes a checkpoint, and sends what is new to the remote run."""
        assert self.mirror
        self._manager.wait_until_finished()
        self._seal()
        self.mirror.push()

    def _seal(self) -> None:
        for step in self.steps():
            if not (self._place(step) / MANIFEST).exists():
                seal(self._place(step))

    def store_model(self, step: int, variables: Variables) -> None:
        """Saves variables as the checkpoint of a step, for decoding and `init_from`. It cannot be resumed."""
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((self._place(step) / "model").absolute(), variables)
        seal(self._place(step))

    def finish_saving(self) -> None:
        """Waits until pending checkpoints are complete, sealed with the hashes of their files, and sent.

        Raises:
          UserError: as `save`; another process has taken the remote run over.
        """
        try:
            if self._sending:
                sending, self._sending = self._sending, None
                sending.result()
            elif not self.mirror:
                self._manager.wait_until_finished()
                if is_main_process():
                    self._seal()
            self._meet("checkpoints")
        except UserError:
            raise
        except Exception as error:
            raise not_written(self.name, error) from error

    def _meet(self, what: str) -> None:
        """Waits for the other processes. Then all see the same checkpoints."""
        barrier(what)
        if self.mirror and not is_main_process():
            self.mirror.refresh(is_light)

    def _fetch(self, prefix: str, *like: Variables) -> None:
        """Copies what a remote run has under a name, if it is no larger than such items may be."""
        if self.mirror:
            self.mirror.pull(prefix, sum(map(allowed, like)))

    def _place(self, step: int) -> Path:
        return self.path / "checkpoints" / str(step)

    def steps(self) -> list[int]:
        """The complete checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        if folder.is_symlink() or any(entry.is_symlink() for entry in folder.glob("*")):
            raise UserError(f"{folder} is a link, or holds one: put the checkpoints themselves in its place")
        return sorted(int(entry.name) for entry in folder.glob("*") if _STEP.fullmatch(entry.name))

    def best(self) -> int:
        """The checkpoint with the best `standing`; the newest one if none was measured."""
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.name} holds no checkpoint yet")
        scores = {step: self._scores(step) for step in steps}
        best = self._best_of(scores)
        for step, each in scores.items():
            if not each and os.path.lexists(self._place(step) / "metrics"):
                log.warning(
                    "%s: the scores of checkpoint %d are damaged, so the best one is chosen without it; "
                    "--checkpoint %d takes it all the same",
                    self.name,
                    step,
                    step,
                )
        return steps[-1] if best is None else best

    def _scores(self, step: int) -> Json:
        """The scores of a checkpoint, which are numbers; none if it was not measured, or they are a link."""
        file = self._place(step) / "metrics" / "metrics"
        if file.is_symlink() or file.parent.is_symlink():
            return {}
        try:
            stored = parse_object(read_text(file, MiB))
        except (OSError, ValueError):
            return {}
        return {name: value for name, value in stored.items() if type(value) in (int, float)}

    def _best_of(self, scores: Mapping[int, Json | None]) -> int | None:
        """The best of checkpoints, by step, in order; None if none was measured."""
        measured = {step: each for step, each in scores.items() if each}
        if not all(any(name in each for name in LOSSES) for each in measured.values()):
            # earlier versions wrote the loss only to the log
            logged = {each["step"]: each for each in Log(self.path / "metrics.jsonl").records("evaluation")}
            measured = {step: logged.get(step, {}) | each for step, each in measured.items()}
        found: dict[int, tuple[float, float]] = {}
        for step, each in measured.items():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found[step] = standing(each)
        return max(found, key=found.__getitem__, default=None)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The training state of a step; `like` gives its structure, shapes and placement.

        Raises:
          UserError: the checkpoint is missing or damaged, or belongs to another model.
        """
        shapes = _items(like)
        self._fetch(f"checkpoints/{step}/", *shapes.values())
        with self._named():
            model, training = (read(self._place(step), shapes[name], name) for name in shapes)
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
          UserError: all are damaged; one cannot be copied from a remote run.
        """
        damaged: list[tuple[int, UserError]] = []
        for step in reversed(self.steps()):
            self._fetch(f"checkpoints/{step}/", *_items(like).values())  # what cannot be copied is no damage
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
                    os.replace(self._place(bad), aside)
                say(f"{reason}. Moved to {aside}; resuming from step {step}")
            if damaged and self.mirror and is_main_process():
                self.mirror.push()
            self._meet("moved")
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
            self._fetch("average/", like)
            stored = self.path / "average"
            with self._named():
                return read(stored, like) if stored.exists() else self.averaged(None, like)
        step = self.find(checkpoint)
        self._fetch(f"checkpoints/{step}/model/", like)
        with self._named():
            return read(self._place(step), like, "model")

    def _named(self) -> contextlib.AbstractContextManager[None]:
        return self.mirror.named() if self.mirror else contextlib.nullcontext()

    def find(self, checkpoint: str | int) -> int:
        """The step that "best", "last" or a number means.

        Raises:
          UserError: there is no such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.name} holds no checkpoint yet")
        if checkpoint == "best":
            return self.best()
        if checkpoint == "last":
            return steps[-1]
        if str(checkpoint) in map(str, steps):
            return int(checkpoint)
        raise UserError(
            f"{self.name} has no checkpoint {checkpoint!r}: choose best, last, average, or one of "
            f"{', '.join(map(str, steps))}"
        )

    def averaged(self, steps: Sequence[int] | None, like: Variables) -> Variables:
        """The mean of several checkpoints' variables (section 6.1), by default of the newest `keep_last`;
        computed in float64, then rounded."""
        chosen = [self.find(step) for step in steps or self.steps()[-self.keep_last :]]
        if not chosen:
            raise UserError(f"{self.name} holds no checkpoint yet")
        total = jax.tree.map(lambda x: np.zeros(x.shape, np.float64), like)
        for step in chosen:
            total = jax.tree.map(lambda a, b: a + np.asarray(b), total, self.variables(step, like))
        return jax.tree.map(lambda a, x: jnp.asarray(a / len(chosen), x.dtype), total, like)

    def store_average(self, variables: Variables) -> Path:
        """Saves averaged variables as the checkpoint "average", and returns its path.

        Raises:
          UserError: it cannot be written; an existing one is unchanged.
        """
        forbid_links(self.path, "a run directory may contain")
        place = self.path / "average"
        partial = temp_sibling(place)
        try:
            partial.mkdir()  # where it cannot be created, Orbax's threads warn, and wait for minutes
            partial.rmdir()
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(partial.absolute(), variables)
            shutil.rmtree(place, ignore_errors=True)
            os.replace(partial, place)
        except Exception as error:
            reason = first_line(error)
            raise UserError(f"could not write {place}: {reason}. The checkpoints are unchanged") from error
        finally:
            for left in self.path.glob(f"{partial.name}*"):
                shutil.rmtree(left, ignore_errors=True)
        if self.mirror:
            self.mirror.push()
        return place


def _items(state: TrainState) -> dict[str, Variables]:
    """What a checkpoint stores, by item."""
    return {"model": state.best_variables, "training": _resume_items(state)}


def _resume_items(state: TrainState) -> Json:
    """What resuming needs besides the model for decoding."""
    items = {"step": state.step, "optimizer": state.optimizer}
    if state.average is not None:
        items["params"] = state.params
    if jax.tree.leaves(state.carry):
        items["carry"] = state.carry
    return items


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
