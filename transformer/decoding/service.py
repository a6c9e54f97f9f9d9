"""A search as a service: requests of all threads go in, and every device searches them."""

import functools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax

from transformer.config import LONGEST, DecodingConfig
from transformer.data.sequences import Fields
from transformer.decoding.batch_search import BatchSearch
from transformer.decoding.lane_programs import ProgramKey
from transformer.decoding.lanes import Lane, LaneShape, sizes
from transformer.decoding.queue import Queue, Request
from transformer.decoding.search import AutoregressiveSearch
from transformer.decoding.workers import Searcher, Workers, worker_devices
from transformer.model.parameters import Variables


@functools.lru_cache(maxsize=256)
def programs_for(search: Any, options: DecodingConfig) -> DecodingConfig:
    """The options on which programs depend, without the limits of outputs, for which they have room."""
    if not isinstance(search, AutoregressiveSearch):
        return options.static()
    return replace(options.shared(), extra_length=0, max_length=None)


def has_room(program: DecodingConfig, options: DecodingConfig) -> bool:
    """Whether programs for some options have room for the outputs of others."""
    most = program.max_length or LONGEST
    return options.extra_length <= program.extra_length and (options.max_length or LONGEST) <= most


def with_room(program: DecodingConfig, options: DecodingConfig) -> DecodingConfig:
    """Options with room for their outputs, and for twice as long ones as the programs have that lack it: so
    few programs are made."""
    extra = max(options.extra_length, min(2 * program.extra_length, LONGEST))
    bounded = program.max_length and options.max_length
    most = max(options.max_length or 0, min(2 * (program.max_length or 0), LONGEST)) if bounded else None
    return replace(options, extra_length=extra, max_length=most)


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
        """Of its lanes, if it has some."""
        is_replicated = all(x.is_fully_replicated for x in jax.tree.leaves(variables))
        devices = worker_devices() if is_replicated else [None]  # a model may be too large for one device
        copies = [_on_device(variables, device) for device in devices]
        rows = -(-options.rows // len(devices))
        if isinstance(search, AutoregressiveSearch):
            job = ProgramKey(search, model, options.shared(), tuple(fields.items()))
            shapes = self.shapes = sizes(job, rows)
            self._lengths = [shape.inputs for shape in shapes]
            queue = Queue(len(shapes))

            def searchers(worker: int) -> list[Searcher]:
                return [
                    Lane(index, job, shape, copies[worker], queue, len(devices))
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

    def prepare(self) -> None:
        """Compiles all programs, on each device."""
        self._workers.prepare()


def _on_device(variables: Variables, device: jax.Device | None) -> Variables:
    """The variables on one of the devices that have them all; None: as they are."""
    if device is None:
        return variables

    def part_of(x: jax.Array) -> jax.Array:
        return next(part.data for part in x.addressable_shards if part.device == device)

    return jax.tree.map(part_of, variables)
