"""A search as a service: requests of all threads go in, and threads search them, one for each device."""

import contextlib
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.config.decoding import DecodingConfig
from transformer.config.ranges import LONGEST
from transformer.data.sequences import Fields
from transformer.decoding.calls import Inputs
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.service.lanes import (
    TOGETHER,
    Job,
    Lane,
    LaneShape,
    Preparation,
    ProgramKey,
    Stages,
    batch,
    enough_memory,
    lane_shapes,
)
from transformer.decoding.service.queue import Queue, Request, SearchThread
from transformer.model.parameters import Variables
from transformer.runtime.hosts import on_one_cpu
from transformer.runtime.machine import cores, release_memory

# Threads that search what waits in a queue: one for each device, or on a CPU one or two.


IDLE = 2.0  # seconds without requests after which a thread ends and its memory is freed
FEW = 8  # requests that one worker searches alone: each device that joins compiles its own programs
LOOK = 0.05  # seconds between checks whether the program is ending


@runtime_checkable
class Searcher(Protocol):
    """What a worker drives: a `Lane` of slots, or a `BatchSearch`."""

    index: int
    """Index of the worker's lane in the queue."""

    @property
    def busy(self) -> int:
        """How many requests it holds."""

    def preparation(self) -> Preparation:
        """What compiles all of its programs."""

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


NICE = 5  # the priority of threads that compile while requests are answered


def at_once(jobs: Iterable[Job], is_behind: bool = False) -> None:
    """Calls functions that compile, as many at a time as there are cores.

    Args:
      jobs: the functions.
      is_behind: whether other threads shall have the cores first, where the system can do so.
    """

    def begin() -> None:
        if is_behind and sys.platform == "linux":  # elsewhere it would be the priority of the process
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)

    with ThreadPoolExecutor(max(1, round(cores() or 1)), "compile", begin) as threads:
        futures = [threads.submit(job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def prepare(preparation: Preparation) -> None:
    """Compiles all of its programs."""
    for stage in preparation.stages:
        at_once(stage)


def _all_on(device: jax.Device | None, stages: Stages) -> Stages:
    """The same calls on a device."""

    def call(job: Job) -> None:
        with jax.default_device(device):
            job()

    return [[functools.partial(call, job) for job in stage] for stage in stages]


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

    def preparation(self) -> Preparation:
        """What compiles all programs, on each device. Until it is done, searches use those of its first part,
        and results are delivered by other threads: what is compiled for one delays no other."""

        def end() -> None:
            self.queue.is_starting = False

        self.queue.is_starting = True
        several = list[Preparation]()
        for worker, device in enumerate(self._devices):
            if device not in self._devices[:worker]:
                for searcher in self._searchers(worker):
                    one = searcher.preparation()
                    several.append(Preparation(_all_on(device, one.first), _all_on(device, one.rest)))
        all_devices = several[0].beside(*several[1:])
        return Preparation(all_devices.first, (*all_devices.rest, [end]))

    def _work(self, worker: int) -> None:
        with jax.default_device(self._devices[worker]):
            self._search(worker)
        if not self._running and threading.main_thread().is_alive():
            release_memory(cycles=False)  # of lanes and of their programs' results

    def _search(self, worker: int) -> None:
        searchers = list[Searcher]()
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
                            if self.queue.is_starting:
                                SearchThread(target=request.deliver, args=(result,)).start()
                            else:
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


# Batches of similar length: the search of systems that bring one of their own, instead of lanes.


class BatchSearch:
    """Searches batches of requests from a queue.

    Args:
      search: `System.search`, given model and variables.
      options: of the search.
      fields: that decoding reads.
      queue: where requests come from.
      rows: of a batch.
    """

    def __init__(
        self,
        search: Callable[[Inputs, Int[Array, " b"], DecodingConfig], Any],
        options: DecodingConfig,
        fields: Fields,
        queue: Queue,
        rows: int,
    ) -> None:
        self.search = search
        self.options = options
        self.fields = fields
        self.queue = queue
        self.rows = rows
        self.index = 0
        self._taken = list[Request]()

    @property
    def busy(self) -> int:
        """It holds nothing between two turns."""
        return 0

    def preparation(self) -> Preparation:
        """What compiles the program of each bucket, for one row and for a whole batch."""

        def prepare(length: int, rows: int) -> None:
            inputs = batch([], self.fields, length, rows)
            jax.block_until_ready(self._results(inputs, np.ones(rows, np.int32), self.options))

        sizes = itertools.product(self.options.buckets, {1, self.rows})
        return Preparation([[functools.partial(prepare, *size) for size in sizes]])

    def empty(self) -> list[Request]:
        """The requests of a batch that has failed."""
        return [request for request in self._taken if not request.future.done()]

    def turn(self) -> Iterator[tuple[Request, Any]]:
        """Searches a batch, and yields its requests with their results. A few are searched one by one."""
        few = self.queue.waiting(0) <= self.rows // TOGETHER
        self._taken = self.queue.take(0, 1 if few else self.rows)
        groups: dict[DecodingConfig, list[Request]] = {}
        for request in self._taken:
            groups.setdefault(request.options, []).append(request)
        for options, requests in groups.items():
            rows = 1 if few else self.rows
            longest = max(request.length for request in requests)
            length = next(length for length in self.options.buckets if length >= longest)
            inputs = batch([request.example for request in requests], self.fields, length, rows)
            lines = np.resize([request.line for request in requests], rows).astype(np.int32)
            results = jax.tree.map(np.asarray, self._results(inputs, lines, options))
            for row, request in enumerate(requests):
                yield request, jax.tree.map(lambda x, row=row: x[row], results)

    @enough_memory()
    def _results(self, inputs: Any, lines: np.ndarray, options: DecodingConfig) -> Any:
        return self.search(jax.tree.map(jnp.asarray, inputs), jnp.asarray(lines), options)


@functools.lru_cache(maxsize=256)
def programs_for(search: Any, options: DecodingConfig) -> DecodingConfig:
    """The options on which programs depend, without the limits of outputs, for which they have room."""
    if not isinstance(search, AutoregressiveSearch):
        return options.static()
    return replace(options.shared(), extra_length=0, max_length=None)


def has_room(program: DecodingConfig, options: DecodingConfig) -> bool:
    """Whether programs for some options have room for the outputs of others."""
    longest = program.max_length or LONGEST
    return options.extra_length <= program.extra_length and (options.max_length or LONGEST) <= longest


def with_room(program: DecodingConfig, options: DecodingConfig) -> DecodingConfig:
    """Options with room for their outputs, and for twice as long ones as the programs have that lack it: so
    few programs are made."""
    extra = max(options.extra_length, min(2 * program.extra_length, LONGEST))
    bounded = program.max_length and options.max_length
    longest = max(options.max_length or 0, min(2 * (program.max_length or 0), LONGEST)) if bounded else None
    return replace(options, extra_length=extra, max_length=longest)


class SearchService:
    """A queue, and workers that search what waits in it: in lanes, or in batches if a system has a search of
    its own. They run for as long as there are requests.

    Args:
      search: of the system, with all hooks.
      model: of the system.
      variables: on all devices of this process, which search side by side; or sharded over them.
      options: of the search. Requests may have others where programs do not depend on them.
      fields: what the search reads.
    """

    def __init__(
        self, search: Any, model: nn.Module, variables: Variables, options: DecodingConfig, fields: Fields
    ) -> None:
        self.options = options
        self.shapes: list[LaneShape] = []
        """The shapes of the service's lanes, if it has some."""
        is_replicated = all(x.is_fully_replicated for x in jax.tree.leaves(variables))
        devices = worker_devices() if is_replicated else [None]  # a model may be too large for one device
        copies = [_on_device(variables, device) for device in devices]
        rows = -(-options.rows // len(devices))
        if isinstance(search, AutoregressiveSearch):
            key = ProgramKey(search, model, options.shared(), tuple(fields.items()))
            shapes = self.shapes = lane_shapes(key, rows)
            self._lengths = [shape.inputs for shape in shapes]
            queue = Queue(len(shapes))

            def searchers(worker: int) -> list[Searcher]:
                return [
                    Lane(index, key, shape, copies[worker], queue, len(devices))
                    for index, shape in enumerate(shapes)
                ]
        else:
            self._lengths = [options.buckets[-1]]
            queue = Queue(1)

            def searchers(worker: int) -> list[Searcher]:
                bound = functools.partial(search, model, copies[worker])
                return [BatchSearch(bound, options, fields, queue, rows)]

        self._queue, self._workers = queue, Workers(queue, searchers, devices)

    def submit(self, requests: Collection[Request]) -> None:
        """Adds requests to the queue, each for the first lane that is long enough."""
        for request in requests:
            request.lane = next(i for i, length in enumerate(self._lengths) if length >= request.length)
        self._workers.submit(requests)

    @property
    def waiting(self) -> int:
        """How many requests wait to be searched."""
        return len(self._queue)

    @property
    def busy(self) -> int:
        """How many are being searched."""
        return self._workers.busy

    def preparation(self) -> Preparation:
        """What compiles all programs (`Workers.preparation`)."""
        return self._workers.preparation()


def _on_device(variables: Variables, device: jax.Device | None) -> Variables:
    """The variables on one of the devices that have them all; None: as they are."""
    if device is None:
        return variables

    def part_of(x: jax.Array) -> jax.Array:
        return next(part.data for part in x.addressable_shards if part.device == device)

    return jax.tree.map(part_of, variables)
