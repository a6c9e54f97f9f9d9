"""From sentence pairs to batches of ids: what goes into each is a plan, a pure function of
(lengths, seed, step); where training stands in the data is one integer, the step."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transformer.config import DataConfig
from transformer.data.store import PairSource
from transformer.data.tokenizer import Tokenizer
from transformer.errors import UserError
from transformer.files import open_whole

Lengths = Int[np.ndarray, "pairs 2"]  # tokens in source and target, <eos> counted
Tokenizers = tuple[Tokenizer, Tokenizer]
SAMPLING_ROOM = 1.25  # a sampled segmentation is longer than the best one: room for it


def token_lengths(
    pairs: PairSource,
    tokenizers: Tokenizers,
    kept: Path,
    progress: Callable[[Iterable, int], Iterable] = lambda items, total: items,
) -> Lengths:
    """Tokens of every source and target, <eos> counted; computed once, then read from `kept`.

    A pair with an empty side has length 0 there.
    """
    if kept.exists():
        return np.load(kept, allow_pickle=False)
    lengths = np.zeros((len(pairs), 2), np.int32)
    for index, pair in enumerate(progress(pairs, len(pairs))):
        for side, (text, tokenizer) in enumerate(zip(pair, tokenizers, strict=True)):
            lengths[index, side] = len(tokenizer.encode(text)) + 1 if text.strip() else 0
    try:
        with open_whole(kept) as file:
            np.save(file, lengths)
    except OSError as error:
        raise UserError(f"cannot write {kept}: {error.strerror}; see --data.cache-dir") from error
    return lengths


@dataclass(frozen=True)
class Rows:
    """One batch on paper: which pairs stand in each row, and the padded length of the rows."""

    pairs: list[list[int]]
    length: int


class Plan(ABC):
    """What every batch holds."""

    steps_per_epoch: int
    dropped: int
    """Pairs left out: a side too long, or empty."""

    @abstractmethod
    def __call__(self, step: int) -> Rows:
        """The batch of a step (from 0), always the same one for the same arguments."""

    @property
    @abstractmethod
    def padding(self) -> float:
        """Share of the batches' places that hold no token."""


def make_plan(lengths: Lengths, data: DataConfig) -> "Plan":
    """The plan the config asks for.

    Raises:
      UserError: no pair is short enough to keep.
    """
    if data.subword_sampling:
        lengths = np.ceil(lengths * SAMPLING_ROOM).astype(lengths.dtype)
    plan: Plan = (PackedPlan if data.batching == "packed" else BucketPlan)(lengths, data)
    if plan.dropped == len(lengths):
        raise UserError(
            f"all {plan.dropped} training pairs are empty or longer than --data.max-length "
            f"{data.max_length}: raise it"
        )
    return plan


def _single(pairs: Int[np.ndarray, " rows"], length: int) -> Rows:
    return Rows([[int(pair)] for pair in pairs], length)


def _kept(lengths: Lengths, longest: int) -> Int[np.ndarray, " kept"]:
    return np.flatnonzero((lengths.min(axis=1) > 0) & (lengths.max(axis=1) <= longest))


class BucketPlan(Plan):
    """Pairs of like length share a batch; a batch is rows x length tokens, whatever the length.

    Every epoch shuffles the pairs within each bucket and then the batches. What does not fill a
    bucket's last batch moves up to the next longer one, so an epoch has one partial batch at most
    and always the same number of steps.
    """

    def __init__(self, lengths: Lengths, data: DataConfig) -> None:
        kept = _kept(lengths, data.max_length)
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
    """Several pairs share a row of max_length, kept apart by segment masks: hardly any padding and
    one shape. Who shares a row is settled once; every epoch shuffles the rows."""

    OPEN_ROWS = 64  # rows being filled at a time: enough to fill them well, few enough to be quick

    def __init__(self, lengths: Lengths, data: DataConfig) -> None:
        kept = _kept(lengths, data.max_length)
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
        """First fit, into the open row that has been waiting longest."""
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


@dataclass(frozen=True)
class Batcher:
    """Makes the batches that a plan names: this host's share of the rows, as padded ids.

    `batcher(step)` is `{"source": [rows, length], "target": [rows, length]}`, each sentence closed
    by <eos>; packed rows add `source_segments` and `target_segments`. The number of rows depends on
    the length alone, so there are no more shapes than lengths.
    """

    pairs: PairSource
    tokenizers: Tokenizers
    plan: Plan
    data: DataConfig
    host: int = 0
    hosts: int = 1

    def __call__(self, step: int) -> dict[str, Int[np.ndarray, "rows length"]]:
        rows = self.plan(step)
        total = self.data.batch_tokens // rows.length
        share = -(-total // self.hosts)
        mine = rows.pairs[self.host * share : (self.host + 1) * share]
        epoch = step // self.plan.steps_per_epoch
        chosen = [pair for row in mine for pair in row]
        encoded = iter(
            self._encode(pair, index, epoch, rows.length)
            for pair, index in zip(self.pairs.__getitems__(chosen), chosen, strict=True)
        )
        pad = self.tokenizers[0].special.pad
        shape = (share, rows.length)
        ids = {side: np.full(shape, pad, np.int32) for side in ("source", "target")}
        segments = {side: np.zeros(shape, np.int32) for side in ("source", "target")}
        for row, members in enumerate(mine):
            filled = {"source": 0, "target": 0}
            for segment, sides in enumerate((next(encoded) for _ in members), start=1):
                for side, sentence in sides.items():
                    place = slice(filled[side], filled[side] + len(sentence))
                    ids[side][row, place] = sentence
                    segments[side][row, place] = segment
                    filled[side] += len(sentence)
        if self.data.batching == "packed":
            ids |= {f"{side}_segments": values for side, values in segments.items()}
        return ids

    def _encode(self, pair: tuple[str, str], index: int, epoch: int, length: int) -> dict[str, list[int]]:
        """Ids of both sides. A sampled segmentation that outgrows its place, the whole row or its
        planned share of a packed one, gives way to the best one."""
        strength, sides = self.data.subword_sampling, {}
        for side, (text, tokenizer) in enumerate(zip(pair, self.tokenizers, strict=True)):
            ids = tokenizer.encode(text)
            if strength:
                place = length
                if self.data.batching == "packed":
                    place = min(length, math.ceil((len(ids) + 1) * SAMPLING_ROOM))
                random = np.random.default_rng((self.data.seed, epoch, index, side))
                sampled = tokenizer.sample(text, random, strength)
                ids = sampled if len(sampled) < place else ids
            sides[("source", "target")[side]] = [*ids, tokenizer.special.eos]
        return sides

    def stream(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps [start, stop), prepared ahead by Grain's threads."""
        import grain

        steps = grain.MapDataset.range(start, stop).map(self)
        options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
        return iter(steps.to_iter_dataset(options))


def fixed_batches(
    pairs: Iterable[tuple[str, str]], tokenizers: Tokenizers, data: DataConfig
) -> Iterator[dict[str, Int[np.ndarray, "rows length"]]]:
    """Every pair once, in order of length, in the buckets of training: for validation loss.

    Pairs longer than max_length are cut to it.
    """
    special = tokenizers[0].special
    encoded = []
    for pair in pairs:
        sides = [
            [*t.encode(x)[: data.max_length - 1], special.eos] for x, t in zip(pair, tokenizers, strict=True)
        ]
        encoded.append(sides)
    encoded.sort(key=lambda sides: max(map(len, sides)))
    while encoded:
        length = next(size for size in data.lengths if size >= max(map(len, encoded[0])))
        rows = data.batch_tokens // length
        fitting = [sides for sides in encoded[:rows] if max(map(len, sides)) <= length]
        del encoded[: len(fitting)]
        batch = np.full((2, rows, length), special.pad, np.int32)
        for row, sides in enumerate(fitting):
            for side, ids in enumerate(sides):
                batch[side, row, : len(ids)] = ids
        yield {"source": batch[0], "target": batch[1]}
