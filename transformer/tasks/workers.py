"""Makes the shards of a corpus, in processes of their own: one for each core, each with a copy of the task.
What they make does not depend on how many there are, nor on when training begins."""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from transformer.data.sequences import arrays_of, concatenated
from transformer.data.shards import Shard, open_shard, write_shard
from transformer.data.sources.blocks import PairBlocks
from transformer.data.store import Progress, silent
from transformer.runtime.errors import UserError
from transformer.runtime.machine import cores
from transformer.tasks.task import Task

_POLL = 0.1  # seconds


class PreparedShards:
    """The shards of a corpus, made in the background in the order in which training needs them. Processes
    that share the folder, such as those of several hosts, share the work.

    Args:
      task: makes the examples.
      pairs: the text.
      shard_pairs: how many pairs a shard has.
      folder: of the corpus.
      made_by: what decides about the examples, besides the text.
      workers: the number of processes.
    """

    def __init__(
        self, task: Task, pairs: PairBlocks, shard_pairs: int, folder: Path, made_by: bytes, workers: int = 0
    ) -> None:
        self.task, self.batching = task, task.batching()
        self.parts = pairs.dealt(shard_pairs)
        longest = self.batching.buckets[-1]
        key = f"{shard_pairs} {longest} {self.batching.packed}".encode()
        self.folder = folder / f"shards-{hashlib.blake2b(made_by + key, digest_size=8).hexdigest()}"
        self._workers = workers or max(1, round(cores() or 1))
        self._pool: ProcessPoolExecutor | None = None
        self._made: dict[int, Future[bool]] = {}
        self._open = functools.lru_cache(maxsize=8)(
            lambda number: open_shard(self._path(number), task.stored_fields, self.batching)
        )
        spawn = multiprocessing.get_context("spawn")
        self._done, self._stop = spawn.Value(ctypes.c_int64), spawn.Value(ctypes.c_bool)

    def __len__(self) -> int:
        return len(self.parts)

    def begin(self, order: Sequence[int]) -> None:
        """Begins to make those that are missing, in this order.

        Raises:
          UserError: the folder cannot be written.
        """
        missing = [number for number in order if not self._path(number).exists()]
        if not missing:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write {self.folder}: {error.strerror}; see --data.cache-dir") from error
        self._pool = ProcessPoolExecutor(
            min(self._workers, len(missing)),
            multiprocessing.get_context("spawn"),
            _begin,
            (pickle.dumps(self.task), self._done, self._stop),
        )
        for number in missing:
            self._submit(number)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}"

    def _submit(self, number: int) -> None:
        assert self._pool
        self._made[number] = self._pool.submit(_make, self._path(number), self.parts[number], self.batching)

    def __call__(self, number: int) -> Shard:
        """A shard, once it is there.

        Raises:
          UserError: it cannot be made.
        """
        while not self._path(number).exists():
            made = self._made.get(number)
            if made is None:
                raise UserError(f"{self._path(number)} is missing: run the same command again")
            try:
                is_made = made.result()
            except BrokenProcessPool as error:
                raise UserError(
                    f"a process that prepared {self._path(number)} has ended, perhaps since memory is short: "
                    "run the same command again, which continues, with fewer processes (--data.workers)"
                ) from error
            except OSError as error:
                reason = error.strerror or error
                raise UserError(f"cannot write {self.folder}: {reason}; see --data.cache-dir") from error
            if not is_made and not self._path(number).exists():  # another process makes it
                time.sleep(_POLL)
                self._submit(number)
        return self._open(number)

    def wait(self, numbers: Sequence[int], progress: Progress = silent) -> None:
        """Waits for shards, with progress in pairs."""
        waiting = [number for number in numbers if not self._path(number).exists()]
        if not waiting:
            return
        total = sum(len(self.parts[number]) for number in waiting)
        for _ in progress("examples", self._counted(waiting, total), total):
            pass

    def _counted(self, waiting: Sequence[int], total: int) -> Iterator[None]:
        """Yields as often as pairs have been read, while shards are waited for."""
        shown, start = 0, self._done.value
        for number in waiting:
            made = self._made.get(number)
            while made and not made.done():
                now = min(self._done.value - start, total)
                yield from (None for _ in range(shown, now))
                shown = max(shown, now)
                time.sleep(_POLL)
            self(number)
        yield from (None for _ in range(shown, total))

    def all_there(self) -> bool:
        return all(self._path(number).exists() for number in range(len(self)))

    def close(self) -> None:
        """Stops the processes. What they have not finished is made anew next time."""
        if self._pool:
            self._stop.value = True
            self._pool.shutdown(wait=True, cancel_futures=True)


# In a process of its own.


_process: dict[str, Any] = {}


def _begin(task: bytes, done: Any, stop: Any) -> None:
    """Reads the task. The process gives way to training, leaves Ctrl-C to its parent, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    parent = multiprocessing.parent_process()
    assert parent
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _process.update(task=pickle.loads(task), done=done, stop=stop)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _make(path: Path, pairs: PairBlocks, batching: Any) -> bool:
    """Makes a shard. Returns whether it did; else another process has begun it."""
    if path.exists():
        return True
    with _claimed(path.with_suffix(".lock")) as is_mine:
        if not is_mine or path.exists():
            time.sleep(_POLL)
            return path.exists()
        task: Task = _process["task"]
        parts = list[Mapping[str, Any]]()
        for block in pairs.blocks():
            if _process["stop"].value:
                return False
            parts.append(arrays_of(task.stored_examples(block), task.stored_fields))
            with _process["done"].get_lock():
                _process["done"].value += len(block)
        try:
            write_shard(path, concatenated(parts), task.stored_fields, batching)
        except OSError:
            if not path.exists():  # else another process has written it meanwhile
                raise
    return True


@contextlib.contextmanager
def _claimed(lock: Path) -> Iterator[bool]:
    """Whether this process makes a shard, and no other one on any host. The lock ends with the process,
    however it ends."""
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks: the last one to finish finds the shard there
            pass
        yield True
    lock.unlink(missing_ok=True)
