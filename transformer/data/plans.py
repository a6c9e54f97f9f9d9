"""Plans assign examples to batches, whose arrays are made here. A plan is a pure function of (lengths, seed,
step), so the position in the data is one integer, the step.

An example has one or more sequences, its sides, such as source and target, each with its own length.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from transformer.data.sequences import (
    Arrays,
    Example,
    Field,
    Fields,
    Sequences,
    arrays_of,
    ends_of,
    gathered,
    side_lengths,
)
from transformer.runtime.errors import UserError

Lengths = Int[np.ndarray, "examples sides"]  # of every side; 0 if it is empty
Bucket = tuple[int, ...]
"""The padded length of each side."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A planned batch."""

    chosen: Int[np.ndarray, " examples"]
    """The examples of all rows, row by row."""
    counts: Int[np.ndarray, " rows"]
    """The number of examples in each row."""
    lengths: Bucket
    size: int
    """Number of rows, with those that are padding."""
    examples: tuple[Arrays, Int[np.ndarray, " examples"]] | None = None
    """Arrays that have the chosen examples, and where they have them, if the plan makes them itself."""

    @classmethod
    def of(cls, members: Sequence[Sequence[int]], lengths: Bucket, size: int) -> "Rows":
        """From the examples of each row."""
        rows = Sequences.of(members, Field("int64"))
        return cls(rows.values, np.diff(rows.ends), lengths, size)

    @property
    def members(self) -> list[list[int]]:
        """The examples in each row."""
        return [row.tolist() for row in np.split(self.chosen, np.cumsum(self.counts)[:-1])]


class Plan(ABC):
    """The examples of every batch."""

    steps_per_epoch: int
    dropped: int
    """Number of dropped examples: a side is too long, or empty."""
    examined: int | None = None
    """Of how many `dropped` is known. None: of all."""
    outgrown: float = 0.0
    """Share of examples dropped for one epoch, because a sampled side is too long."""
    packed: bool = False
    """Whether rows have several examples, and batches their segments."""
    padding: float
    """Share of padding in the positions of the batches."""

    @abstractmethod
    def __call__(self, step: int) -> Rows:
        """The batch of a step (from 0), always the same for the same arguments."""

    def close(self) -> None:
        """Ends what prepares further examples; by default nothing does."""
        return


@dataclass(frozen=True)
class Batching:
    """How a plan makes batches."""

    buckets: tuple[Bucket, ...]
    """Ascending; each is one compiled program."""
    batch_tokens: int
    """Rows times the longest padded length."""
    packed: bool
    """Whether rows of the last bucket hold several examples."""
    seed: int

    def rows(self, bucket: Bucket) -> int:
        """The number of rows of a batch of that length. A row without sequences counts as one token."""
        return self.batch_tokens // max(bucket, default=1)

    def seeded(self, *numbers: int) -> "Batching":
        """With a seed that is drawn by this one and some numbers. A 0 at their end changes nothing."""
        return replace(self, seed=int(np.random.default_rng((self.seed, *numbers)).integers(2**31)))


def plan_of(lengths: Lengths, batching: Batching, sizes: Sequence[Int[np.ndarray, " _"]] = ()) -> Plan:
    """The plan for examples that are the same in every epoch. `sizes` say, a part of the rows at a time, how
    many examples each row has, if they are packed already, one after the other."""
    if batching.packed and lengths.shape[1]:
        return PackedPlan(lengths, batching, np.concatenate(sizes) if sizes else None)
    return BucketPlan(lengths, batching)


def bucket_of(lengths: Lengths, buckets: Sequence[Bucket]) -> Int[np.ndarray, " examples"]:
    """The first bucket that holds all sides of each example; len(buckets) if none does."""
    fits = np.array([(lengths <= bucket).all(axis=1) for bucket in buckets])
    return np.where(fits.any(axis=0), fits.argmax(axis=0), len(buckets))


def eligible_examples(lengths: Lengths, longest: Bucket) -> Int[np.ndarray, " eligible"]:
    """Indices of the examples whose sides are neither empty nor longer than these lengths."""
    return np.flatnonzero(((lengths > 0) & (lengths <= longest)).all(axis=1))


def _single(examples: Int[np.ndarray, " rows"], bucket: Bucket, size: int) -> Rows:
    return Rows(examples, np.ones_like(examples), bucket, size)


def steps_of(counts: Sequence[int], batching: Batching) -> int:
    """The batches of an epoch with so many examples in each bucket. Those that do not fill a batch move to
    the next longer bucket."""
    steps = carried = 0
    for count, bucket in zip(counts, batching.buckets, strict=True):
        full, carried = divmod(carried + count, batching.rows(bucket))
        steps += full
    return steps + (carried > 0)


class BucketPlan(Plan):
    """Examples of similar length share a batch of about batch_tokens = rows x length.

    Every epoch shuffles the examples in each bucket and then the batches. Examples that do not fill a batch
    move to the next longer bucket, so an epoch has at most one partial batch, and always the same number of
    steps.
    """

    def __init__(self, lengths: Lengths, batching: Batching) -> None:
        self._buckets = batching.buckets
        self._seed = batching.seed
        eligible = eligible_examples(lengths, self._buckets[-1])
        bucket = bucket_of(lengths[eligible], self._buckets)
        self._members = [eligible[bucket == index] for index in range(len(self._buckets))]
        self._rows = [batching.rows(bucket) for bucket in self._buckets]
        self.dropped = len(lengths) - len(eligible)
        self.steps_per_epoch = steps_of([len(members) for members in self._members], batching)
        self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)
        self._tokens = int(lengths[eligible].sum())

    def _make_epoch(self, epoch: int) -> list[Rows]:
        random = np.random.default_rng((self._seed, epoch))
        batches: list[Rows] = []
        carried = np.zeros(0, np.int64)
        for members, rows, bucket in zip(self._members, self._rows, self._buckets, strict=True):
            examples = np.concatenate([carried, random.permutation(members)])
            full = len(examples) // rows * rows
            batches += [_single(row, bucket, rows) for row in examples[:full].reshape(-1, rows)]
            carried = examples[full:]
        if len(carried):
            batches.append(_single(carried, self._buckets[-1], self._rows[-1]))
        return [batches[index] for index in random.permutation(len(batches))]

    def __call__(self, step: int) -> Rows:
        epoch, index = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch)[index]

    @property
    def padding(self) -> float:  # type: ignore[override]
        positions = sum(batch.size * sum(batch.lengths) for batch in self._epoch(0))
        return 1 - self._tokens / positions if positions else 0.0


OPEN_ROWS = 64  # rows being filled at a time: enough to fill them well, few enough to be quick


def packed_rows(lengths: Lengths, bucket: Bucket, order: Int[np.ndarray, " eligible"]) -> Sequences:
    """Examples in rows. Each goes into the oldest open row that has room.

    The room of a row is one number: the room of each side in its bits, below a bit that a subtraction clears
    if the side has too little. So one subtraction compares all sides.

    Args:
      lengths: of all examples.
      bucket: the length of each side of a row.
      order: the examples that are packed, none of which is longer.
    """
    width = max(bucket).bit_length() + 1
    shifts = np.arange(len(bucket)) * width
    guards = sum(1 << (int(shift) + width - 1) for shift in shifts)
    whole = guards + sum(size << int(shift) for size, shift in zip(bucket, shifts, strict=True))
    needed = (lengths[order].astype(object) << shifts.astype(object)).sum(axis=1).tolist()
    closed: list[list[int]] = []
    rows: list[list[int]] = []
    rooms: list[int] = []
    totals: list[int] = []  # the room of all sides
    for example, sizes, total in zip(
        order.tolist(), needed, lengths[order].sum(axis=1).tolist(), strict=True
    ):
        for index, room in enumerate(rooms):
            rest = room - sizes
            if rest & guards == guards:
                rows[index].append(example)
                rooms[index] = rest
                totals[index] = totals[index] - total
                break
        else:
            rows.append([example])
            rooms.append(whole - sizes)
            totals.append(sum(bucket) - total)
            if len(rows) > OPEN_ROWS:
                fullest = totals.index(min(totals))
                closed.append(rows.pop(fullest))
                del rooms[fullest], totals[fullest]
    return Sequences.of(closed + rows, Field("int64"))


class PackedPlan(Plan):
    """Several examples share a row of the longest bucket, separated by segment masks: little padding and one
    shape. Rows are packed once; every epoch shuffles them."""

    packed = True

    def __init__(
        self, lengths: Lengths, batching: Batching, sizes: Int[np.ndarray, " rows"] | None = None
    ) -> None:
        """`sizes` says how many examples each row has, if they are packed already, one after the other."""
        self._bucket = batching.buckets[-1]
        self._seed = batching.seed
        eligible = eligible_examples(lengths, self._bucket)
        self._rows = batching.rows(self._bucket)
        if sizes is None:
            order = np.random.default_rng(batching.seed).permutation(eligible)
            self._packed = packed_rows(lengths, self._bucket, order)
        else:
            self._packed = Sequences(np.arange(len(lengths), dtype=np.int32), ends_of(sizes))
        self.dropped = len(lengths) - len(eligible)
        self.steps_per_epoch = -(-len(self._packed) // self._rows)
        self._tokens = int(lengths[eligible].sum())
        self._epoch = functools.lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng((self._seed, epoch)).permutation(len(self._packed))
        )

    def __call__(self, step: int) -> Rows:
        epoch, index = divmod(step, self.steps_per_epoch)
        chosen = self._epoch(epoch)[index * self._rows : (index + 1) * self._rows]
        counts = self._packed.sizes(chosen)
        return Rows(self._packed.joined(chosen), counts, self._bucket, self._rows)

    @property
    def padding(self) -> float:  # type: ignore[override]
        return 1 - self._tokens / (self.steps_per_epoch * self._rows * sum(self._bucket))


# Makes batches of arrays from examples, by a plan.


@dataclass(frozen=True)
class Batcher:
    """Makes the batches of a plan: this process's share of the rows. `batcher(step)` has an array for each
    field; packed rows add segments. The number of rows depends only on the padded lengths, so there is one
    shape for each bucket."""

    examples: Arrays
    fields: Fields
    plan: Plan
    host: int = 0
    hosts: int = 1

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        rows = self.plan(step)
        share = -(-rows.size // self.hosts)
        before, counts = np.split(rows.counts, [self.host * share])
        counts = counts[:share]
        local = slice(before.sum(), before.sum() + counts.sum())
        examples, chosen = rows.examples or (self.examples, rows.chosen)
        return gathered(examples, chosen[local], counts, self.fields, rows.lengths, share, self.plan.packed)

    def stream(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps [start, stop), prepared ahead by Grain's threads."""
        import grain

        steps = grain.MapDataset.range(start, stop).map(self)
        options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
        return iter(steps.to_iter_dataset(options))


def fixed_batches(
    examples: Sequence[Example],
    fields: Fields,
    buckets: Sequence[tuple[int, ...]],
    batch_tokens: int,
    host: int = 0,
    hosts: int = 1,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of all examples, shortest first, in the buckets of training: for the validation loss.

    Args:
      examples: each no longer than the last bucket.
      fields: of the examples.
      buckets: ascending padded lengths of the sequences.
      batch_tokens: rows times the longest length of a batch.
      host: index of this process, which gets its share of the rows.
      hosts: number of processes.

    Raises:
      UserError: one is longer.
    """
    arrays = arrays_of(examples, fields)
    lengths = side_lengths(arrays)
    order = np.argsort(lengths.max(axis=1, initial=0), kind="stable")
    bucket_index = bucket_of(lengths[order], buckets)
    if (bucket_index == len(buckets)).any():
        raise UserError(
            f"an example is longer than the longest bucket, {buckets[-1]}: a task must shorten it"
        )
    for index, bucket in enumerate(buckets):
        members = order[bucket_index == index]
        rows = batch_tokens // max(bucket, default=1)
        share = math.ceil(rows / hosts)
        for start in range(0, len(members), rows):
            local = members[start : start + rows][host * share :][:share]
            yield gathered(arrays, local, np.ones_like(local), fields, bucket, share)
