"""Plans assign sentence pairs to batches. A plan is a pure function of (lengths, seed, step), so the position
in the data is one integer, the step."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from transformer.config import DataConfig

Lengths = Int[np.ndarray, "pairs 2"]  # tokens in source and target, including <eos>
Sentences = tuple[list[int], list[int]]
"""The ids of a pair's source and of its target, each closed by <eos>."""


@dataclass(frozen=True)
class Rows:
    """A planned batch: the pairs in each row, and the padded length of the rows."""

    pairs: list[list[int]]
    length: int
    sentences: Mapping[int, Sentences] | None = None
    """The ids of each pair, if its segmentation is sampled."""


class Plan(ABC):
    """The pairs of every batch."""

    steps_per_epoch: int
    dropped: int
    """Number of dropped pairs: a side is too long, or empty."""
    outgrown: float = 0.0
    """Share of pairs dropped for one epoch, because a sampled segmentation is too long."""

    @abstractmethod
    def __call__(self, step: int) -> Rows:
        """The batch of a step (from 0), always the same for the same arguments."""

    @property
    @abstractmethod
    def padding(self) -> float:
        """Share of padding in the positions of the batches."""


def plan_of(lengths: Lengths, data: DataConfig) -> Plan:
    """The plan for fixed segmentations."""
    return (PackedPlan if data.batching == "packed" else BucketPlan)(lengths, data)


def _single(pairs: Int[np.ndarray, " rows"], length: int) -> Rows:
    return Rows([[int(pair)] for pair in pairs], length)


def kept_pairs(lengths: Lengths, longest: int) -> Int[np.ndarray, " kept"]:
    """Indices of the pairs with two sides of 1 to `longest` tokens."""
    return np.flatnonzero((lengths.min(axis=1) > 0) & (lengths.max(axis=1) <= longest))


class BucketPlan(Plan):
    """Pairs of similar length share a batch of about batch_tokens = rows x length.

    Every epoch shuffles the pairs in each bucket and then the batches. Pairs that do not fill a batch move
    to the next longer bucket, so an epoch has at most one partial batch, and always the same number of steps.
    """

    def __init__(self, lengths: Lengths, data: DataConfig) -> None:
        kept = kept_pairs(lengths, data.max_length)
        longest = lengths[kept].max(axis=1)
        bucket = np.searchsorted(data.lengths, longest)
        self._members = [kept[bucket == index] for index in range(len(data.lengths))]
        self._lengths, self._seed = data.lengths, data.seed
        self._rows = [data.batch_tokens // length for length in data.lengths]
        self.dropped = len(lengths) - len(kept)
        self.steps_per_epoch, carried = 0, 0
        for members, rows in zip(self._members, self._rows, strict=True):
            full, carried = divmod(carried + len(members), rows)
            self.steps_per_epoch += full
        self.steps_per_epoch += carried > 0
        self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)
        self._tokens = int(lengths[kept].sum())

    def _make_epoch(self, epoch: int) -> list[Rows]:
        random = np.random.default_rng((self._seed, epoch))
        batches: list[Rows] = []
        carried = np.zeros(0, np.int64)
        for members, rows, length in zip(self._members, self._rows, self._lengths, strict=True):
            pairs = np.concatenate([carried, random.permutation(members)])
            full = len(pairs) // rows * rows
            batches += [_single(row, length) for row in pairs[:full].reshape(-1, rows)]
            carried = pairs[full:]
        if len(carried):
            batches.append(_single(carried, self._lengths[-1]))
        return [batches[index] for index in random.permutation(len(batches))]

    def __call__(self, step: int) -> Rows:
        epoch, index = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch)[index]

    @property
    def padding(self) -> float:
        rows = dict(zip(self._lengths, self._rows, strict=True))
        places = sum(2 * rows[batch.length] * batch.length for batch in self._epoch(0))
        return 1 - self._tokens / places


class PackedPlan(Plan):
    """Several pairs share a row of max_length, separated by segment masks: little padding and one shape. Rows
    are packed once; every epoch shuffles them."""

    OPEN_ROWS = 64  # rows being filled at a time: enough to fill them well, few enough to be quick

    def __init__(self, lengths: Lengths, data: DataConfig) -> None:
        kept = kept_pairs(lengths, data.max_length)
        self._length, self._seed = data.max_length, data.seed
        self._rows = data.batch_tokens // data.max_length
        self._packed = self._pack(lengths, np.random.default_rng(data.seed).permutation(kept))
        self.dropped = len(lengths) - len(kept)
        self.steps_per_epoch = -(-len(self._packed) // self._rows)
        self._tokens = int(lengths[kept].sum())
        self._epoch = functools.lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng((self._seed, epoch)).permutation(len(self._packed))
        )

    def _pack(self, lengths: Lengths, order: Int[np.ndarray, " kept"]) -> list[list[int]]:
        """First fit, into the oldest open row that has room."""
        closed: list[list[int]] = []
        open_rows: list[tuple[list[int], int, int]] = []
        for pair in order:
            source, target = (int(length) for length in lengths[pair])
            for place, (row, source_room, target_room) in enumerate(open_rows):
                if source <= source_room and target <= target_room:
                    row.append(int(pair))
                    open_rows[place] = (row, source_room - source, target_room - target)
                    break
            else:
                open_rows.append(([int(pair)], self._length - source, self._length - target))
                if len(open_rows) > self.OPEN_ROWS:
                    fullest = min(open_rows, key=lambda row: row[1] + row[2])
                    open_rows.remove(fullest)
                    closed.append(fullest[0])
        return closed + [row for row, _, _ in open_rows]

    def __call__(self, step: int) -> Rows:
        epoch, index = divmod(step, self.steps_per_epoch)
        chosen = self._epoch(epoch)[index * self._rows : (index + 1) * self._rows]
        return Rows([self._packed[row] for row in chosen], self._length)

    @property
    def padding(self) -> float:
        return 1 - self._tokens / (2 * self.steps_per_epoch * self._rows * self._length)
