"""The shards of a corpus, made in other processes: one for each core, each with a copy of the task.

What they make does not depend on how many there are or where, nor on when training begins. The lock of a
shard that is being made has a byte for each block of pairs that was read.
"""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import logging
import math
import multiprocessing
import os
import pickle
import platform
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Int

from transformer.config.options import text_data
from transformer.config.pairs import noise_of
from transformer.data.plans import Batching
from transformer.data.remote import receive, send
from transformer.data.sequences import arrays_of, concatenated, ends_of
from transformer.data.shards import ABOUT, Shard, open_shard, write_shard
from transformer.data.sources.blocks import PairBlocks
from transformer.data.sources.noise import Noise
from transformer.data.sources.unusual import Filter
from transformer.data.store import Progress, silent
from transformer.runtime.errors import UserError
from transformer.runtime.files import address, failing
from transformer.runtime.machine import cores, ray_cluster
from transformer.tasks.task import Task

log = logging.getLogger("transformer")


_POLL = 0.1  # seconds


_MOST_LATE = 60.0  # seconds until a shard that another machine made is seen here


_ASK = 2.0  # seconds between two questions whether another host has made a shard


_RETRIES = 3  # of a shard whose process was lost


class RayTasks(Executor):
    """Makes shards by cores of a Ray cluster, in processes whose working folder is that of this one.

    Raises:
      UserError: Ray is not installed, or its cluster cannot be reached.
    """

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            ray = stack.enter_context(ray_cluster("--data.engine ray"))
            self._made_there = ray.remote(_make_there).options(num_cpus=1, max_retries=_RETRIES)
            self._put = functools.lru_cache(maxsize=1)(ray.put)
            self._stack = stack.pop_all()

    def submit(self, _: Any, /, pickled: bytes, *shard: Any) -> "Future[bool]":  # type: ignore[override] # of `_make`
        future: Future[bool] = self._made_there.remote(os.getcwd(), self._put(pickled), *shard).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stops the processes."""
        self._stack.close()


class PreparedShards:
    """The shards of a corpus, made in the background in the order in which training needs them. Processes
    that share the folder, such as those of several hosts, share the work.

    Args:
      task: makes the examples.
      pairs: the text.
      shard_pairs: how many pairs a shard has.
      folder: of the corpus.
      made_by: what decides about the examples, besides the text.
      workers: the number of processes, of which there is at most one for each core. 0: one for each.
      on_ray: whether the cores of a Ray cluster make them, which have the folder too.
      exchange: an address to which hosts copy what they make. None: each makes all.
      host: index of this process.
      hosts: number of processes. With `exchange` this one makes each shard of this number.
    """

    def __init__(
        self,
        task: Task,
        pairs: PairBlocks,
        shard_pairs: int,
        folder: Path,
        made_by: bytes,
        workers: int = 0,
        on_ray: bool = False,
        exchange: Path | None = None,
        host: int = 0,
        hosts: int = 1,
    ) -> None:
        self.batching = task.batching()
        self._pickled = pickle.dumps((task, pairs))
        dealt = [group.dealt(shard_pairs) for group in pairs.by_group()]
        self.pairs = [pairs for group in dealt for pairs in group]
        ends = ends_of(list(map(len, dealt))).tolist()
        self.groups = [range(*bounds) for bounds in itertools.pairwise(ends)]
        longest = self.batching.buckets[-1]
        key = f"{shard_pairs} {longest} {self.batching.packed}".encode()
        self.folder = folder / f"shards-{hashlib.blake2b(made_by + key, digest_size=8).hexdigest()}"
        most_workers = max(1, round(cores() or 1))  # more would only take memory and open files
        self._workers = min(workers or most_workers, most_workers)
        self._on_ray = on_ray
        where = address(exchange) if exchange else None
        self._exchange = where and f"{where}/{folder.name}/{self.folder.name}"
        self._host, self._hosts = host, hosts
        self._pool: Executor | None = None
        self._made: dict[int, Future[bool]] = {}
        self._asked = dict[int, float]()
        self._seen_late = dict[int, float]()  # until when shards of other machines are waited for
        self._open = functools.lru_cache(maxsize=len(self.groups) + 1)(
            lambda number: open_shard(self._path(number), task.stored_fields, self.batching)
        )
        self._stop = multiprocessing.get_context("spawn").Event()

    def __len__(self) -> int:
        return len(self.pairs)

    def begin(self, order: Sequence[int]) -> None:
        """Begins to make those that are missing, in this order.

        Raises:
          UserError: the folder cannot be written.
        """
        missing = [number for number in order if not self._path(number).exists()]
        if self._exchange:  # also what is here, but was not copied
            missing = list(order[self._host :: self._hosts])
        if not missing:
            return
        with failing(f"cannot write {self.folder}", "; see --data.cache-dir"):
            self.folder.mkdir(parents=True, exist_ok=True)
        if self._on_ray:
            self._pool = RayTasks()
        else:
            spawn, workers = multiprocessing.get_context("spawn"), min(self._workers, len(missing))
            self._pool = ProcessPoolExecutor(workers, spawn, _begin, (self._stop,))
        for number in missing:
            self._submit(number)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}"

    def _submit(self, number: int) -> None:
        assert self._pool
        where = self._exchange and f"{self._exchange}/{number:05d}"
        shard = self._path(number), self.pairs[number].chosen, self.batching
        self._made[number] = self._pool.submit(_make, self._pickled, where, *shard)

    def __call__(self, number: int) -> Shard:
        """A shard, once it is there.

        Raises:
          UserError: it cannot be made.
        """
        while not self._is_there(number):
            time.sleep(_POLL)
        return self._open(number)

    def _is_there(self, number: int) -> bool:
        """Whether a shard is made. Raises UserError if it cannot be."""
        path, future = self._path(number), self._made.get(number)
        if path.exists():
            return True
        if future is None and self._exchange:  # another host makes it
            return self._is_received(number)
        if future is None:
            raise UserError(f"{path} is missing: run the same command again")
        if not future.done():
            return False
        try:
            is_made = future.result()
        except (CancelledError, Exception) as error:
            raise self._refusal(path, getattr(error, "cause", error)) from error  # Ray adds a traceback
        if not is_made:  # another process makes it
            self._submit(number)
        elif time.monotonic() > self._seen_late.setdefault(number, time.monotonic() + _MOST_LATE):
            raise UserError(
                f"{path} was made on another machine, and is not here: name a folder that all share "
                "(--data.cache-dir)"
            )
        return path.exists()

    def _is_received(self, number: int) -> bool:
        """Whether a shard of another host has been copied here. Asks every few seconds."""
        if time.monotonic() < self._asked.get(number, 0):
            return False
        try:
            is_received = receive(f"{self._exchange}/{number:05d}", self._path(number), ABOUT)
        except OSError as error:
            is_received = self._path(number).exists()  # another process of this host has copied it meanwhile
            if not is_received:
                raise self._refusal(self._path(number), error) from error
        now = time.monotonic()
        self._asked[number] = now + _ASK
        if not is_received and now > self._seen_late.setdefault(number, now + 10 * _MOST_LATE):
            self._seen_late[number] = math.inf
            log.warning("%s/%05d: waiting for another host: has it the same text?", self._exchange, number)
        return is_received

    def _refusal(self, path: Path, error: BaseException) -> BaseException:
        """What is said of an error for which a shard is not made."""
        if isinstance(error, CancelledError):
            return UserError(f"{path} is not made: its preparation was stopped")
        if isinstance(error, OSError):
            reason = error.strerror or error
            return UserError(f"cannot write {self.folder}: {reason}; see --data.cache-dir")
        if isinstance(error, BrokenProcessPool) or type(error).__module__ == "ray.exceptions":
            return UserError(
                f"a process that prepared {path} has ended. If memory is short, run the same command again, "
                "which continues, with fewer processes (--data.workers); a script of your own must call "
                'train under `if __name__ == "__main__":`'
            )
        return error

    def wait(self, numbers: Sequence[int], progress: Progress = silent) -> None:
        """Waits for shards, with progress in pairs."""
        waiting = [number for number in numbers if not self._path(number).exists()]
        if not waiting:
            return
        total = sum(len(self.pairs[number]) for number in waiting)
        for _ in progress("examples", self._counted(waiting, total), total):
            pass

    def _counted(self, waiting: Sequence[int], total: int) -> Iterator[None]:
        """Yields as often as pairs have been read, while shards are waited for."""
        shown = 0
        for number in waiting:
            while not self._is_there(number):
                num_read = min(sum(map(self._pairs_read, waiting)), total)
                yield from (None for _ in range(shown, num_read))
                shown = max(shown, num_read)
                time.sleep(_POLL)
        yield from (None for _ in range(shown, total))

    def _pairs_read(self, number: int) -> int:
        """How many pairs of a shard have been read, by any process."""
        pairs = self.pairs[number]
        with contextlib.suppress(OSError):
            return min(self._path(number).with_suffix(".lock").stat().st_size * pairs.size, len(pairs))
        return len(pairs) if self._path(number).exists() else 0

    def all_there(self) -> bool:
        return all(self._path(number).exists() for number in range(len(self)))

    def close(self) -> None:
        """Stops the processes. What they have not finished is made anew next time."""
        if self._pool:
            self._stop.set()
            self._pool.shutdown(wait=True, cancel_futures=True)


# In one of these processes.


_process: dict[str, Any] = {}


_unpickled = functools.lru_cache(maxsize=1)(pickle.loads)


def _begin(stop: Any) -> None:
    """The process gives way to training, leaves Ctrl-C to its parent, and ends with it. What it is told here
    must be short: the parent waits until it is read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    parent = multiprocessing.parent_process()
    assert parent
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _process.update(stop=stop)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _make_there(folder: str, *shard: Any) -> bool:
    """Makes a shard in a process of a cluster, which gives way and ends by itself.

    Args:
      folder: the working folder of the process that asks for it.
      shard: arguments of `_make`.

    Raises:
      UserError: this machine has not this folder.
    """
    try:
        os.chdir(folder)
    except OSError as error:
        raise UserError(
            f"--data.engine ray: {platform.node()} has no folder {folder}: run the command in one that all "
            "machines of the cluster share, with its text and --data.cache-dir"
        ) from error
    _process.setdefault("stop", threading.Event())
    return _make(*shard)


def _make(pickled: bytes, where: str | None, path: Path, *shard: Any) -> bool:
    """Makes a shard, or copies it from an address that has it; and to the address. Returns whether it is
    there; else another process has begun it.

    Args:
      pickled: the task and the pairs, pickled.
      where: the address. None: there is none.
      path: of the shard.
      shard: further arguments of `_is_made`.
    """
    if where and not path.exists():
        with contextlib.suppress(OSError):  # else another process has copied it meanwhile
            receive(where, path, ABOUT)
    if not path.exists() and not _is_made(pickled, path, *shard):
        return False
    if where:
        send(path, where, ABOUT)
    return True


def _is_made(pickled: bytes, path: Path, blocks: Int[np.ndarray, " blocks"], batching: Batching) -> bool:
    """Makes a shard of some blocks. Returns whether it did; else another process has begun it."""
    with _claimed(path.with_suffix(".lock")) as lock:
        if lock is None or path.exists():
            time.sleep(_POLL)
            return path.exists()
        task: Task
        pairs: PairBlocks
        task, pairs = _unpickled(pickled)
        pairs = pairs.of(blocks)
        arrays = list[Mapping[str, Any]]()
        data = text_data(task.config)
        rules = Filter({name: value for name, value in data.filters.items() if name != "repeated"})
        noise = Noise(noise_of(data.noise), data.seed) if data.noise else None
        for block in pairs.filtered(rules):
            if noise:
                block = list(map(noise, block))
            if _process["stop"].is_set():
                return False
            arrays.append(arrays_of(task.stored_examples(block), task.stored_fields))
            lock.write(b".")
        try:
            write_shard(path, concatenated(arrays), pairs.numbers, task.stored_fields, batching)
        except OSError:
            if not path.exists():  # else another process has written it meanwhile
                raise
    return True


@contextlib.contextmanager
def _claimed(lock: Path) -> Iterator[IO[bytes] | None]:
    """The lock, empty, if this process makes a shard, and no other one on any host. It ends with the process,
    however that ends."""
    with lock.open("ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        except OSError:  # a file system without locks: the last one to finish finds the shard there
            pass
        file.truncate(0)
        yield file
    lock.unlink(missing_ok=True)
