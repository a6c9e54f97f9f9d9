"""Lanes: slots of one size, which the host fills from the queue and empties, and the compiled programs that
do so.

Most sentences need neither the longest input nor the longest output, so there are a few lanes, each with
inputs up to a length and rings of so many columns. What does not fit in the rings of one lane is searched
again in the next. A lane has as many slots as it can use at the moment: one, a few, or all.
"""

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from transformer.config.decoding import DecodingConfig
from transformer.data.sequences import Field, Fields, lengths_in_search, stacked
from transformer.decoding.calls import Inputs, as_variables, special_ids
from transformer.decoding.scores import SearchResult
from transformer.decoding.searches.search import (
    AutoregressiveSearch,
    RowOptions,
    noise_of,
    penalty_of,
    row_limits,
    strategy_inputs,
    strategy_of,
    unchanged,
)
from transformer.decoding.service.queue import Queue, Request
from transformer.decoding.slots import Finished, Slots, init_slots, results
from transformer.decoding.steps import run
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError

Job = Callable[[], object]
Stages = Sequence[Sequence[Job]]


@dataclass(frozen=True)
class Preparation:
    """What compiles the programs of a search: calls in stages, of which those of a stage share none."""

    first: Stages
    """What every request needs."""
    rest: Stages = ()
    """What makes the search faster, or is needed by some requests only."""

    @property
    def stages(self) -> Stages:
        """All of them."""
        return (*self.first, *self.rest)

    def beside(self, *others: "Preparation") -> "Preparation":
        """This one and others, stage by stage."""
        several = self, *others
        return Preparation(together(one.first for one in several), together(one.rest for one in several))


def together(several: Iterable[Stages]) -> Stages:
    """The stages of several preparations, side by side."""
    return [list(itertools.chain(*jobs)) for jobs in itertools.zip_longest(*several, fillvalue=())]


# The compiled programs that fill, step and resize the slots of a lane.


@dataclass(frozen=True)
class ProgramKey:
    """What the programs of a search depend on."""

    search: AutoregressiveSearch
    model: nn.Module
    options: DecodingConfig
    """The options that programs depend on (`DecodingConfig.static`)."""
    inputs: tuple[tuple[str, Field], ...]
    """The names and fields of what decoding reads."""

    @property
    def fields(self) -> Fields:
        """The fields of its inputs."""
        return dict(self.inputs)


@struct.dataclass
class LaneSnapshot:
    """What the host sees of slots."""

    done: Bool[Array, " b"]
    overflowed: Bool[Array, " b"]
    results: SearchResult


class Programs:
    """The compiled programs of a search.

    Args:
      key: what they depend on.
    """

    def __init__(self, key: ProgramKey) -> None:
        self.init_lane = jax.jit(functools.partial(_init_lane, key), static_argnums=(0, 1))
        """(length, columns, variables, inputs, row_options) -> slots for inputs before their first step. They
        are padded as if the inputs had this length."""
        self.insert = jax.jit(functools.partial(_insert), donate_argnums=0)
        """(slots, into, pool, rows) -> the slots, where these rows of the pool begin; those beyond the last
        are dropped."""
        self.advance = jax.jit(functools.partial(_advance, key), donate_argnums=1)
        """(variables, slots, running, steps) -> the slots after steps until no more than `running` are busy,
        and at most `steps` times; and what the host sees of them."""
        self.partial = jax.jit(functools.partial(_partial, key))
        """(slots) -> the unfinished outputs of all, as if they ended here."""
        self.resized = jax.jit(functools.partial(_resized))
        """(slots, rows, busy) -> a lane of these slots, of which only some are busy."""


@functools.lru_cache(maxsize=16)
def programs_of(key: ProgramKey) -> Programs:
    """The programs of a search, for all that search so. Those that were not asked for in a long time are
    dropped, with their memory."""
    return Programs(key)


def _init_lane(
    key: ProgramKey, length: int, columns: int, variables: Variables, inputs: Inputs, row_options: RowOptions
) -> Slots:
    hooks = key.search.hooks
    live = strategy_of(key.options, hooks).first()
    row_inputs = strategy_inputs(key.options, row_options)
    noise = noise_of(key.options, row_options)
    penalty = penalty_of(key.options, hooks, row_options)
    lengths = lengths_in_search(key.fields, length)

    def slots(inputs: Inputs) -> Slots:
        limits = row_limits(key.search, inputs, special_ids(key.model), key.options, row_options)
        return init_slots(
            key.model,
            as_variables(variables),
            inputs,
            limits,
            columns,
            live,
            penalty,
            hooks,
            row_inputs,
            noise,
        )

    def lengthened(name: str, x: Array) -> jax.ShapeDtypeStruct:
        axes = (x.shape[0], lengths[name], *x.shape[2:]) if name in lengths else x.shape
        return jax.ShapeDtypeStruct(axes, x.dtype)

    def pad(x: Array, like: jax.ShapeDtypeStruct) -> Array:
        widths = [(0, longer - size) for size, longer in zip(x.shape, like.shape, strict=True)]
        return jnp.pad(x, widths) if any(after for _, after in widths) else x

    longer = {name: lengthened(name, x) for name, x in inputs.items()}
    if all(longer[name].shape == x.shape for name, x in inputs.items()):
        return slots(inputs)
    return jax.tree.map(pad, slots(inputs), jax.eval_shape(slots, longer))


def _insert(slots: Slots, into: Int[Array, " r"], pool: Slots, rows: Int[Array, " r"]) -> Slots:
    return slots.put_rows(into, pool.take_rows(rows))


def _advance(
    key: ProgramKey, variables: Variables, slots: Slots, running: Int[Array, ""], steps: Int[Array, ""]
) -> tuple[Slots, LaneSnapshot]:
    strategy = strategy_of(key.options, key.search.hooks)
    slots = run(key.model, as_variables(variables), slots, strategy, key.search.hooks, running, steps)
    return slots, LaneSnapshot(slots.done, slots.overflowed, results(slots, special_ids(key.model)))


def _partial(key: ProgramKey, slots: Slots) -> SearchResult:
    rows, beams = slots.live.shape
    step = jnp.broadcast_to(slots.length[:, None], (rows, beams))
    beam = jnp.broadcast_to(jnp.arange(beams), (rows, beams))
    unfinished = replace(slots, finished=Finished(slots.live, step, beam), log_p=None)
    return results(unfinished, special_ids(key.model))


def _resized(slots: Slots, rows: Int[Array, " r"], busy: Bool[Array, " r"]) -> Slots:
    chosen = slots.take_rows(rows)
    return replace(chosen, done=chosen.done | ~busy)


SHORT = 24  # the shortest inputs that have a lane of their own
STEPS = 16  # after which the host checks whether requests have come or were cancelled
SEEN = 4  # the same, if someone wants to see unfinished outputs
TOGETHER = 8  # inputs encoded at once
FREED = 2  # slots that must be free before they are filled again


@dataclass(frozen=True)
class LaneShape:
    """The size of a lane."""

    inputs: int
    """The padded length of its inputs."""
    columns: int
    """Columns of the lane's rings: the longest output, in tokens."""
    slots: tuple[int, ...]
    """The numbers of slots that it may have, ascending."""
    beyond: int = 0
    """The padded length of the inputs of the lane before it."""


def lane_shapes(key: ProgramKey, rows: int) -> list[LaneShape]:
    """The sizes of the lanes, from short to long.

    Args:
      key: gives the limits.
      rows: the most slots of the first lane; each longer one has half as many.
    """
    lengths = [key.options.buckets[-1]]
    for length in reversed(key.options.buckets):
        if SHORT <= length <= lengths[0] / 2.5:
            lengths.insert(0, length)
    shapes = list[LaneShape]()
    for index, length in enumerate(lengths):
        inputs: Inputs = batch([], key.fields, length, 1)
        limits = jax.eval_shape(lambda x: key.search.limits(x, special_ids(key.model), key.options), inputs)
        columns = limits.longest if length == lengths[-1] else min(limits.longest, length * 3 // 2)
        slots = [max(1, rows >> index)]
        while slots[0] > 1:
            slots.insert(0, -(-slots[0] // 4))
        shapes.append(LaneShape(length, columns, tuple(slots), shapes[-1].inputs if shapes else 0))
    return shapes


def batch(examples: Sequence[Any], fields: Fields, length: int, rows: int) -> Any:
    """Exactly `rows` rows of inputs, padded to a bucket. Additional rows are empty; a search skips them."""
    return stacked(examples, fields, [*lengths_in_search(fields, length).values()], rows)


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Raises UserError if a device has not enough memory for what is done within."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory")):
            options = "--decoding.rows, --decoding.buckets, or the number of outputs of each"
            raise UserError(f"a device is out of memory: lower {options}") from error
        raise


class Lane:
    """The slots of a worker of one size.

    Args:
      index: of the lane in the queue.
      key: what it searches.
      shape: of the lane.
      variables: of the model, on the worker's device.
      queue: where requests come from. Those that overflow go back to it, for the next lane.
      workers: how many share the queue.
    """

    def __init__(
        self,
        index: int,
        key: ProgramKey,
        shape: LaneShape,
        variables: Variables,
        queue: Queue,
        workers: int = 1,
    ) -> None:
        self.index = index
        self.key = key
        self.programs = programs_of(key)
        self.shape = shape
        self.variables = variables
        self.queue = queue
        self.workers = workers
        lengths = [length for length in key.options.buckets if length < shape.inputs]
        self._lengths = (*(length for length in lengths[-1:] if 2 * length >= shape.inputs), shape.inputs)
        self.empty()

    def empty(self) -> list[Request]:
        """Drops its slots, and returns their requests."""
        dropped = [request for request in getattr(self, "owners", []) if request]
        dropped += [request for _, request in getattr(self, "_pool", ())]
        self.slots: Slots | None = None
        self.owners: list[Request | None] = []
        self._encoded: Slots | None = None
        self._pool: deque[tuple[int, Request]] = deque()  # encoded requests: rows of `_encoded`
        return dropped

    @property
    def busy(self) -> int:
        """How many requests it holds."""
        return sum(request is not None for request in self.owners) + len(self._pool)

    def turn(self) -> Iterator[tuple[Request, SearchResult]]:
        """Fills free slots, steps until some are done, and yields these requests with their results."""
        with enough_memory():
            self._resize()
            self._fill()
            busy = sum(request is not None for request in self.owners)
            if not busy:
                return
            smaller = [size for size in self.shape.slots if 1 < size < busy]
            running = max(0, busy - FREED) if self.queue.waiting(self.index) else max(smaller, default=0)
            assert self.slots is not None
            self.slots, snapshot = self.programs.advance(
                self.variables, self.slots, np.int32(running), np.int32(SEEN if self._is_seen else STEPS)
            )
            yield from self._done(jax.tree.map(np.array, snapshot))  # copies: the slots' buffers are reused
            if self._is_seen:
                self._show()
            if not self.busy:
                self.slots = None
                self.owners = []

    def preparation(self) -> Preparation:
        """What compiles its programs. At first there are inputs of one length, encoded together, and one slot
        or all, which are not resized."""
        counts = self.shape.slots

        def pool(length: int, rows: int) -> Slots:
            return self._init_slots([], length, 1, rows)

        def slots(count: int) -> Slots:
            return self._init_slots([], self.shape.inputs, self.shape.columns, count)

        def insert(length: int, rows: int, count: int) -> None:
            nowhere = np.full(rows, counts[-1], np.int32)
            self.programs.insert(slots(count), nowhere, pool(length, rows), np.zeros(rows, np.int32))

        def stepped(count: int) -> tuple[Slots, LaneSnapshot]:
            return self.programs.advance(self.variables, slots(count), np.int32(0), np.int32(STEPS))

        def resize(count: int, other: int) -> None:
            self.programs.resized(stepped(count)[0], np.zeros(other, np.int32), np.zeros(other, bool))

        def advance(count: int) -> None:
            after, snapshot = stepped(count)
            jax.block_until_ready((snapshot, self.programs.partial(after)))
            if count == counts[-1] and self.key.search.named is not unchanged:
                result = jax.tree.map(lambda x: jnp.asarray(np.array(x[:1])), snapshot.results)
                inputs = jax.tree.map(jnp.asarray, batch([], self.key.fields, self.shape.inputs, 1))
                self.key.search.named(self.key.model, result, inputs)

        def stages(
            pools: Iterable[tuple[int, int]],
            few: Sequence[int],
            inserts: Iterable[tuple[tuple[int, int], int]],
        ) -> list[list[Job]]:
            begun: list[Job] = [functools.partial(pool, *sizes) for sizes in pools]
            begun += [functools.partial(slots, count) for count in few]
            used: list[Job] = [functools.partial(advance, count) for count in few]
            used += [functools.partial(insert, length, rows, count) for (length, rows), count in inserts]
            return [begun, used]

        longest = self.shape.inputs, TOGETHER
        pools = [sizes for sizes in itertools.product(self._lengths, (1, TOGETHER)) if sizes != longest]
        first = dict.fromkeys((counts[-1], counts[0]))
        inserts = [(sizes, count) for sizes in pools for count in counts]
        inserts += [(longest, count) for count in counts[:-1]]
        begun, used = stages(pools, [count for count in counts if count not in first], inserts)
        used += [functools.partial(resize, n, other) for n in counts for other in counts[n > 1 :]]
        return Preparation(stages([longest], [*first], [(longest, counts[-1])]), [begun, used])

    def _resize(self) -> None:
        """As many slots as are needed now, without those of cancelled requests."""
        if self.slots is None or self.queue.is_starting:
            return
        is_live = [request and not request.future.cancelled() for request in self.owners]
        live = [slot for slot, live in enumerate(is_live) if live]
        has_cancelled = any(request and not is_live[slot] for slot, request in enumerate(self.owners))
        requests = len(live) + len(self._pool) + self._share
        count = self._count(max(requests, min(len(self.owners), 2)))  # narrowing to one slot gains nothing
        if count != len(self.owners) or has_cancelled:
            rows = np.resize(np.array(live or [0], np.int32), count)
            self.slots = self.programs.resized(self.slots, rows, np.arange(count) < len(live))
            self.owners = [self.owners[slot] for slot in live] + [None] * (count - len(live))

    def _count(self, requests: int) -> int:
        """The number of slots for so many requests."""
        counts = self.shape.slots
        counts = (counts[0], counts[-1]) if self.queue.is_starting else counts
        return next((size for size in counts if size >= requests), counts[-1])

    def _fill(self) -> None:
        """Free slots take in requests."""
        if self.slots is None:
            count = self._count(self._share)
            requests = self.queue.take(self.index, min(count, self._share))
            self.slots = self._slots_for(requests, self.shape.inputs, self.shape.columns, count)
            self.owners = [*requests, *[None] * (count - len(requests))] if self.slots else []
            return
        free = [slot for slot, request in enumerate(self.owners) if request is None]
        while free:
            if not self._pool:
                self._encode(self.queue.take(self.index, min(TOGETHER, self._share)))
            if not self._pool:
                return
            assert self.slots is not None
            assert self._encoded is not None
            capacity = len(self._encoded.done)
            into = np.full(capacity, len(self.owners), np.int32)
            rows = np.zeros(capacity, np.int32)
            for index in range(min(len(free), len(self._pool))):
                rows[index], request = self._pool.popleft()
                into[index] = slot = free.pop(0)
                self.owners[slot] = request
            self.slots = self.programs.insert(self.slots, into, self._encoded, rows)

    def _encode(self, requests: list[Request]) -> None:
        """Encodes requests, which then wait for slots."""
        longest = self.shape.inputs
        if not self.queue.is_starting:
            longest = max((request.length for request in requests), default=0)
        length = next(length for length in self._lengths if length >= longest)
        is_alone = len(requests) == 1 and not self.queue.is_starting
        self._encoded = self._slots_for(requests, length, 1, 1 if is_alone else TOGETHER)
        self._pool = deque(enumerate(requests) if self._encoded else ())

    def _slots_for(self, requests: list[Request], length: int, columns: int, rows: int) -> Slots | None:
        """Slots where requests begin. None: there are no requests, or they have failed."""
        if not requests:
            return None
        try:
            return self._init_slots(requests, length, columns, rows)
        except BaseException as error:  # only these fail
            for request in requests:
                request.fail(error)
            return None

    @enough_memory()
    def _init_slots(self, requests: list[Request], length: int, columns: int, rows: int) -> Slots:
        inputs = batch([request.example for request in requests], self.key.fields, length, rows)
        options = [request.options for request in requests] or [self.key.options]
        lines = [request.line for request in requests] or [0]
        certain = [request.certain for request in requests] or [None]
        row_options = RowOptions.of(options, lines, rows, certain)
        return self.programs.init_lane(self.shape.inputs, columns, self.variables, inputs, row_options)

    @property
    def _share(self) -> int:
        """The number of waiting requests that this worker should take. A few are not divided."""
        waiting = self.queue.waiting(self.index)
        return min(waiting, max(TOGETHER, -(-waiting // self.workers)))

    def _done(self, snapshot: LaneSnapshot) -> Iterator[tuple[Request, SearchResult]]:
        """Empties the slots that are done. What has overflowed waits for the next lane."""
        for slot, request in enumerate(self.owners):
            if request is None or not snapshot.done[slot]:
                continue
            if snapshot.overflowed[slot]:
                request.lane += 1
                self.queue.put([request])
            else:
                request.beyond = self.shape.beyond
                yield request, self._row(snapshot.results, slot, request)
            self.owners[slot] = None

    def _row(self, results: SearchResult, slot: int, request: Request) -> SearchResult:
        """The result of a slot, with the ids that the task reads."""
        result: SearchResult = jax.tree.map(lambda x: x[slot : slot + 1], results)
        if self.key.search.named is not unchanged:
            inputs = batch([request.example], self.key.fields, self.shape.inputs, 1)
            result = self.key.search.named(self.key.model, *jax.tree.map(jnp.asarray, (result, inputs)))
        row: SearchResult = jax.tree.map(lambda x: np.asarray(x)[0], result)
        return row

    @property
    def _is_seen(self) -> bool:
        """Whether someone wants to see the unfinished output of a slot."""
        return any(request is not None and request.partial for request in self.owners)

    def _show(self) -> None:
        """Shows unfinished outputs to those who want to see them."""
        assert self.slots is not None
        results = jax.tree.map(np.asarray, self.programs.partial(self.slots))
        for slot, request in enumerate(self.owners):
            if request and request.partial and not request.future.done():
                request.show(self._row(results, slot, request))
