"""Threads that search what waits in a queue: one for each device, or on a CPU one or two."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from transformer.decoding.queue import Queue, Request, SearchThread
from transformer.runtime.arrays import on_one_cpu

IDLE = 2.0  # seconds without requests after which a thread ends and its memory is freed
FEW = 8  # requests that one worker searches alone: each device that joins compiles its own programs
LOOK = 0.05  # seconds between checks whether the program is ending


@runtime_checkable
class Searcher(Protocol):
    """What a worker drives: a `Lane` of slots, or a `BatchSearch`."""

    index: int
    """Of its lane in the queue."""

    @property
    def busy(self) -> int:
        """How many requests it holds."""

    def prepare(self) -> None:
        """Compiles all of its programs."""

    def turn(self) -> Iterator[tuple[Request, Any]]:
        """Takes requests from the queue, continues those that it holds, and yields what is done, with its
        result."""

    def empty(self) -> list[Request]:
        """Drops everything, and returns the requests that it held."""


def worker_devices() -> list[jax.Device]:
    """The device of each worker. On a CPU of several cores there are two: while one runs a sequential part,
    the other uses the remaining cores."""
    devices = jax.local_devices()
    if not on_one_cpu():
        return devices
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return devices * min(2, cores or 1)


class Workers:
    """The workers of a queue. Their threads begin when requests wait, no more than these need, and end when
    there are none.

    Args:
      queue: where requests come from.
      searchers: (number of the worker) -> what it drives.
      devices: of each worker.
    """

    def __init__(
        self,
        queue: Queue,
        searchers: Callable[[int], Sequence[Searcher]],
        devices: Sequence[jax.Device | None],
    ) -> None:
        self.queue = queue
        self._searchers = searchers
        self._devices = devices
        self._running: set[int] = set()
        self._searching: dict[int, Sequence[Searcher]] = {}  # of each worker that has some

    def submit(self, requests: Iterable[Request]) -> None:
        """Adds requests to the queue."""
        with self.queue.changed:
            self.queue.put(requests)
            needed = -(-len(self.queue) // FEW)
            for worker in range(min(needed, len(self._devices))):
                if worker not in self._running:
                    # not a daemon, even in a daemon: JAX must not be running when the interpreter ends
                    SearchThread(
                        target=self._work, args=(worker,), name=f"search-{worker}", daemon=False
                    ).start()
                    self._running.add(worker)  # it cannot end before: the queue is locked

    @property
    def busy(self) -> int:
        """How many requests are being searched."""
        return sum(searcher.busy for some in list(self._searching.values()) for searcher in some)

    def prepare(self) -> None:
        """Compiles all programs, on each device."""
        for worker, device in enumerate(self._devices):
            if device not in self._devices[:worker]:
                with jax.default_device(device):
                    for searcher in self._searchers(worker):
                        searcher.prepare()

    def _work(self, worker: int) -> None:
        searchers = list[Searcher]()
        with jax.default_device(self._devices[worker]):
            while self._has_work(worker, searchers):
                try:
                    searchers = self._searching[worker] = searchers or list(self._searchers(worker))
                except BaseException as error:
                    for lane in range(self.queue.lanes):
                        for request in self.queue.take(lane, len(self.queue)):
                            request.fail(error)
                    continue
                for searcher in searchers:
                    if searcher.busy or self.queue.waiting(searcher.index):
                        try:
                            for request, result in searcher.turn():
                                request.deliver(result)
                        except BaseException as error:
                            lost = searcher.empty() or self.queue.take(searcher.index, len(self.queue))
                            for request in lost:
                                request.fail(error)

    def _has_work(self, worker: int, searchers: Sequence[Searcher]) -> bool:
        """Waits for requests. False: there are none any more, and the thread must end."""
        if any(searcher.busy for searcher in searchers):
            return True
        end = time.monotonic() + IDLE
        with self.queue.changed:
            while not len(self.queue):
                if time.monotonic() > end or not threading.main_thread().is_alive():
                    self._running.remove(worker)
                    self._searching.pop(worker, None)
                    return False
                self.queue.changed.wait(LOOK)
            return True
