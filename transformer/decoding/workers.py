"""Threads that search what waits in a queue: one for each device, or on a CPU one or two."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import jax

from transformer.decoding.queue import Queue, Request, SearchThread
from transformer.runtime.arrays import on_one_cpu

IDLE = 2.0  # seconds without requests after which a thread ends and its memory is freed
FEW = 8  # requests that one worker searches alone: each device that joins compiles its own programs
LOOK = 0.05  # seconds between two looks whether the program is ending


@runtime_checkable
class Worker(Protocol):
    """Where a worker searches requests: a `Lane` of slots, or `BatchSearch`."""

    index: int
    """Of its lane in the queue."""

    @property
    def busy(self) -> int:
        """How many requests it holds."""
        ...

    def prepare(self) -> None:
        """Compiles all of its programs."""
        ...

    def turn(self) -> None:
        """Takes requests from the queue, and goes on with those that it holds."""
        ...

    def empty(self) -> list[Request]:
        """Drops everything, and returns the requests that it held."""
        ...


def places() -> list[jax.Device]:
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
      stations: (number of the worker) -> where it searches.
      devices: of each worker.
    """

    def __init__(
        self, queue: Queue, stations: Callable[[int], Sequence[Worker]], devices: Sequence[jax.Device]
    ) -> None:
        self.queue, self._stations, self._devices = queue, stations, devices
        self._running: set[int] = set()

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

    def prepare(self) -> None:
        """Compiles all programs, on each device."""
        for worker, device in enumerate(self._devices):
            if device not in self._devices[:worker]:
                with jax.default_device(device):
                    for station in self._stations(worker):
                        station.prepare()

    def _work(self, worker: int) -> None:
        stations = list[Worker]()
        with jax.default_device(self._devices[worker]):
            while self._has_work(worker, stations):
                try:
                    stations = stations or list(self._stations(worker))
                except BaseException as error:
                    self._fail_all(error)
                    continue
                for station in stations:
                    if station.busy or self.queue.waiting(station.index):
                        try:
                            station.turn()
                        except BaseException as error:
                            held = station.empty() or self.queue.take(station.index, len(self.queue))
                            for request in held:
                                request.fail(error)

    def _has_work(self, worker: int, stations: Sequence[Worker]) -> bool:
        """Waits for requests. False: there are none any more, and the thread must end."""
        if any(station.busy for station in stations):
            return True
        until = time.monotonic() + IDLE
        with self.queue.changed:
            while not len(self.queue):
                if time.monotonic() > until or not threading.main_thread().is_alive():
                    self._running.remove(worker)
                    return False
                self.queue.changed.wait(LOOK)
            return True

    def _fail_all(self, error: BaseException) -> None:
        for lane in range(self.queue.lanes):
            for request in self.queue.take(lane, len(self.queue)):
                request.fail(error)
