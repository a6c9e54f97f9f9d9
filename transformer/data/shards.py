"""A large corpus in shards: each has the examples of a part of the text from everywhere, packed and stored
together, so that batches are planned with the memory of a few shards, however many there are.

The files of a shard: `<field>.<dtype>` has the values of its examples, one after the other;
`lengths.<dtype>` the length of each side of each; `lines.uint32` which pair of the text each is;
`rows.uint32`, if it is packed, how many examples each row has; `about.json` how many pairs it is made from,
and checksums of the others.
"""

import dataclasses
import functools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int

from transformer.data.plans import (
    Batching,
    Plan,
    Rows,
    bucket_of,
    eligible_examples,
    packed_rows,
    plan_of,
    steps_of,
)
from transformer.data.sequences import (
    Fields,
    Sequences,
    checksums,
    concatenated,
    ends_of,
    id_dtype,
    mapped,
    side_lengths,
    sides,
)
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief, folder_whole, parse_object, read_text

ABOUT = "about.json"
PART = 2**17  # examples that are packed at a time: enough to fill rows well, few enough for little memory


@dataclass(frozen=True)
class Shard:
    """The examples of a part of the text. All of their fields are sequences, none of which is empty."""

    examples: Mapping[str, Sequences]
    lines: Int[np.ndarray, " examples"]
    """Which pair of the text each is, from 0."""
    rows: Sequences | None
    """The examples of each row. None: they are not packed."""
    dropped: int
    """Pairs of its part that are no examples."""

    @property
    def size(self) -> int:
        """How many rows there are, or how many examples if they are not packed."""
        return len(self.lines if self.rows is None else self.rows)

    def counts(self, buckets: Sequence[tuple[int, ...]]) -> Int[np.ndarray, " buckets"]:
        """How many rows there are, or how many examples in each bucket if they are not packed."""
        if self.rows is not None:
            return np.array([len(self.rows)])
        return np.bincount(bucket_of(side_lengths(self.examples), buckets), minlength=len(buckets))


def write_shard(
    folder: Path,
    examples: Mapping[str, Sequences],
    lines: Int[np.ndarray, " pairs"],
    fields: Fields,
    batching: Batching,
) -> None:
    """Writes a shard, in an order that depends on nothing else.

    Args:
      folder: appears when it is complete.
      examples: of all pairs of a part of the text.
      lines: which pairs of the text they are, from 0.
      fields: of the examples.
      batching: its longest bucket decides which are dropped, and how rows are packed.

    Raises:
      OSError: it cannot be written.
    """
    longest = batching.buckets[-1]
    lengths = side_lengths(examples)
    order = np.random.default_rng(0).permutation(eligible_examples(lengths, longest))
    with folder_whole(folder) as partial:
        files = {name: (partial / f"{name}.{fields[name].dtype}").open("wb") for name in fields}
        files["lines"] = (partial / "lines.uint32").open("wb")
        files["lengths"] = (partial / f"lengths.{id_dtype(max(longest) + 1)}").open("wb")
        if batching.packed:
            files["rows"] = (partial / "rows.uint32").open("wb")
        for start in range(0, len(order), PART):
            part = order[start : start + PART]
            if batching.packed:
                rows = packed_rows(lengths, longest, part)
                part = rows.values
                np.diff(rows.ends).astype(np.uint32).tofile(files["rows"])
            for name in fields:
                examples[name].joined(part).tofile(files[name])
            lengths[part].astype(files["lengths"].name.rpartition(".")[2]).tofile(files["lengths"])
            lines[part].astype(np.uint32).tofile(files["lines"])
        for file in files.values():
            file.close()
        sums = checksums(partial, (file.name for file in files.values()))
        about = {"pairs": len(lengths), "checksums": sums}
        (partial / ABOUT).write_text(json.dumps(about), encoding="utf-8")


def open_shard(folder: Path, fields: Fields, batching: Batching) -> Shard:
    """A shard that `write_shard` wrote with the same fields and batching.

    Raises:
      UserError: a file is missing or damaged.
    """
    try:
        names = sides(fields)
        lengths = mapped(folder / f"lengths.{id_dtype(max(batching.buckets[-1]) + 1)}").reshape(
            -1, len(names)
        )
        examples = {
            name: Sequences(mapped(folder / f"{name}.{fields[name].dtype}"), ends_of(lengths[:, side]))
            for side, name in enumerate(names)
        }
        rows = None
        if batching.packed:
            ends = ends_of(mapped(folder / "rows.uint32"))
            rows = Sequences(np.arange(len(lengths), dtype=np.int32), ends)
        lines = mapped(folder / "lines.uint32")
        about = parse_object(read_text(folder / ABOUT))
        pairs = about["pairs"]
        if type(pairs) is not int or pairs < len(lengths):
            raise ValueError(f"pairs cannot be {brief(str(pairs))}")
        ends_and_sizes = [(x.ends[-1], len(x.values)) for x in (*examples.values(), rows) if x is not None]
        if any(end != size for end, size in ends_and_sizes) or len(lines) != len(lengths):
            raise ValueError("it is not complete")
        if about["checksums"] != checksums(folder, about["checksums"]):
            raise ValueError("its numbers are others than were written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it to prepare it again") from error
    return Shard(examples, lines, rows, pairs - len(lengths))


class Shards(Protocol):
    """Shards by number."""

    def __len__(self) -> int: ...

    def __call__(self, number: int) -> Shard:
        """A shard, once it is there."""
        ...

    def all_there(self) -> bool:
        """Whether all are there."""
        ...

    def close(self) -> None:
        """Stops preparing further ones."""
        ...


def shard_order(count: int, seed: int, epoch: int) -> Int[np.ndarray, " shards"]:
    """The order of so many shards in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


WINDOW = 2  # shards whose rows are shuffled together: each has text from everywhere already


@dataclass(frozen=True)
class _Window:
    """Some shards, whose batches are planned together, with the numbers that their first examples have in
    it."""

    shards: Sequence[Shard]
    starts: Int[np.ndarray, " shards"]
    plan: Plan

    @classmethod
    def of(cls, shards: Sequence[Shard], batching: Batching) -> "_Window":
        """With a plan that shuffles them by the seed of the batching."""
        lengths = np.concatenate([side_lengths(shard.examples) for shard in shards])
        starts = ends_of([len(shard.lines) for shard in shards])[:-1]
        sizes = [np.diff(shard.rows.ends) for shard in shards if shard.rows is not None]
        return cls(shards, starts, plan_of(lengths, batching, sizes))

    def __call__(self, step: int) -> Rows:
        rows = self.plan(step)
        shard = np.searchsorted(self.starts, rows.chosen, side="right") - 1
        order = np.argsort(shard, kind="stable")
        parts, numbers = [], []
        for number, several in enumerate(self.shards):
            chosen = rows.chosen[shard == number] - self.starts[number]
            numbers.append(several.lines[chosen])
            parts.append({name: array.take(chosen) for name, array in several.examples.items()})
        where = np.empty_like(order)
        where[order] = np.arange(len(order))
        lines = np.empty_like(order)
        lines[order] = np.concatenate(numbers)
        return dataclasses.replace(rows, chosen=lines, examples=(concatenated(parts), where))


class ShardPlan(Plan):
    """A plan over shards: each epoch takes them in another order, two at a time, and shuffles the rows of
    these. It is a pure function of (seed, step), with the memory of two shards. The examples that it chooses
    are numbered as the pairs of the text.

    It begins when the shards of its first window are there, and waits for others when it comes to them. Each
    window has at most one batch that is not full.

    Args:
      shards: by number, as they are prepared.
      batching: how to make batches.
    """

    def __init__(self, shards: Shards, batching: Batching) -> None:
        self.shards, self._batching, self.packed = shards, batching, batching.packed
        self._windows = -(-len(shards) // WINDOW)
        self._counts: dict[int, np.ndarray] = {}
        self._starts = [0]
        self._lock = threading.Lock()
        self._window = functools.lru_cache(maxsize=2)(self._make_window)
        first = self._window(0)
        self.dropped = sum(shard.dropped for shard in first.shards)
        self.examined = self.dropped + sum(len(shard.lines) for shard in first.shards)

    def __call__(self, step: int) -> Rows:
        with self._lock:
            while self._starts[-1] <= step:
                self._starts.append(self._starts[-1] + self._steps(len(self._starts) - 1))
            number = int(np.searchsorted(self._starts, step, side="right")) - 1
            window = self._window(number)
        return window(step - self._starts[number])

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        """Of the first epoch. While shards are missing, an estimate by the first window."""
        if self.shards.all_there():
            return sum(map(self._steps, range(self._windows)))
        return round(self._steps(0) * len(self.shards) / len(self._members(0)))

    @property
    def padding(self) -> float:  # type: ignore[override]
        return self._window(0).plan.padding

    def close(self) -> None:
        self.shards.close()

    def _members(self, number: int) -> Int[np.ndarray, " shards"]:
        """The shards of a window, numbered across epochs."""
        epoch, index = divmod(number, self._windows)
        return np.array_split(shard_order(len(self.shards), self._batching.seed, epoch), self._windows)[index]

    def _steps(self, number: int) -> int:
        for shard in self._members(number).tolist():
            if shard not in self._counts:
                self._counts[shard] = self.shards(shard).counts(self._batching.buckets)
        counts = np.sum([self._counts[shard] for shard in self._members(number).tolist()], axis=0)
        if self.packed:
            return -(-int(counts[0]) // self._batching.rows(self._batching.buckets[-1]))
        return steps_of(counts.tolist(), self._batching)

    def _make_window(self, number: int) -> _Window:
        shards = [self.shards(shard) for shard in self._members(number).tolist()]
        return _Window.of(shards, self._batching.seeded(number + 1))


# Mixtures: groups of shards, such as those of a corpus or a direction, each with its share.


class Stage(NamedTuple):
    """What is drawn from an update on."""

    start: int
    """The update, from 0."""
    shares: Float[np.ndarray, " groups"]
    """Of each group in the examples; their sum is 1."""


def mixed_order(
    groups: Sequence[Sequence[int]], shares: Float[np.ndarray, " groups"], seed: int
) -> list[int]:
    """The shards in about the order in which a mixture needs them first.

    Args:
      groups: the numbers of the shards of each.
      shares: of the groups.
      seed: of the plan.
    """
    needed = list[tuple[float, int]]()
    for numbers, share in zip(groups, shares.tolist(), strict=True):
        order = shard_order(len(numbers), seed, epoch=0)
        needed += [(index / max(share, 1e-9), numbers[shard]) for index, shard in enumerate(order.tolist())]
    return [number for _, number in sorted(needed)]


class _Stream:
    """The examples of a group, in rows if they are packed: one shard after the other, in another order in
    each epoch, and each shuffled.

    Args:
      shards: by number.
      numbers: of the group's.
      seed: of the orders.
      group: its number.
      name: of the group, for messages.
    """

    def __init__(self, shards: Shards, numbers: Sequence[int], seed: int, group: int, name: str) -> None:
        self._shards, self._numbers, self._seed, self._group = shards, numbers, seed, group
        self._name = name
        self._ends = [0]  # of the shards in the stream, in rows or examples

    def shard(self, index: int) -> Shard:
        """A shard of the stream, numbered across epochs."""
        epoch, index = divmod(index, len(self._numbers))
        return self._shards(self._numbers[shard_order(len(self._numbers), self._seed, epoch)[index]])

    @functools.cached_property
    def first(self) -> Shard:
        """The first shard that has examples. Raises UserError if none has."""
        for index in range(len(self._numbers)):
            if (shard := self.shard(index)).size:
                return shard
        raise UserError(
            f"all training pairs of {self._name} are empty, left out by --data.filter, or longer than "
            "--data.max-length: give it no weight"
        )

    def __call__(self, start: int, stop: int) -> Iterator[tuple[Shard, Int[np.ndarray, " chosen"]]]:
        """What the stream has from one position to another: shards, and which rows or examples of each."""
        while self._ends[-1] < stop:
            self._ends.append(self._ends[-1] + self.shard(len(self._ends) - 1).size)
        index = int(np.searchsorted(self._ends, start, side="right")) - 1
        while start < stop:
            first, end = self._ends[index : index + 2]
            shard = self.shard(index)
            random = np.random.default_rng((self._seed, self._group, index + 1))
            yield shard, random.permutation(shard.size)[start - first : stop - first]
            start, index = min(stop, end), index + 1


class MixedPlan(Plan):
    """A plan over groups of shards, of which each has its share of the examples, from a stage to the next.
    It is a pure function of (seed, step): it takes what each group's stream has next, some batches' worth at
    a time, and plans that like a corpus.

    Packed rows have examples of one group; a group's share is of examples nonetheless.

    Args:
      shards: by number, as they are prepared.
      groups: the numbers of the shards of each group.
      names: of the groups, for messages.
      stages: in order; the first one from update 0.
      batching: how to make batches.

    Raises:
      UserError: a group has no example.
    """

    STEPS = 128  # of a window: enough to fill buckets well and to mix, few enough for little memory

    def __init__(
        self,
        shards: Shards,
        groups: Sequence[Sequence[int]],
        names: Sequence[str],
        stages: Sequence[Stage],
        batching: Batching,
    ) -> None:
        self.shards, self._stages, self._batching, self.packed = shards, stages, batching, batching.packed
        self._streams = [
            _Stream(shards, numbers, batching.seed, group, name)
            for group, (numbers, name) in enumerate(zip(groups, names, strict=True))
        ]
        self._lock = threading.Lock()
        self._per_window = functools.cache(self._count_per_window)
        self._window = functools.lru_cache(maxsize=2)(self._make_window)
        firsts = [self._streams[group].first for group in np.flatnonzero(stages[0].shares)]
        self.dropped = sum(shard.dropped for shard in firsts)
        self.examined = self.dropped + sum(len(shard.lines) for shard in firsts)
        examples, _, plan = self._window(0, 0)
        self.padding = plan.padding
        total = self.examined / len(firsts) * len(shards)
        self.steps_per_epoch = max(1, round(self.STEPS * total / len(next(iter(examples.values())))))

    def __call__(self, step: int) -> Rows:
        stage = max(number for number, stage in enumerate(self._stages) if stage.start <= step)
        window, index = divmod(step - self._stages[stage].start, self.STEPS)
        with self._lock:
            examples, lines, plan = self._window(stage, window)
        rows = plan(index)
        return dataclasses.replace(rows, chosen=lines[rows.chosen], examples=(examples, rows.chosen))

    def close(self) -> None:
        self.shards.close()

    def drawn(self, step: int) -> Float[np.ndarray, " groups"]:
        """About how many examples of each group come before a step."""
        counts = np.zeros(len(self._streams))
        for stage, updates in enumerate(self._updates(step)):
            counts += self._per_window(stage) * updates / self.STEPS if updates else 0
        for group in np.flatnonzero(counts):
            shard = self._streams[group].first
            counts[group] *= len(shard.lines) / shard.size
        return counts

    def planned(self, steps: int) -> Float[np.ndarray, " groups"]:
        """The share of each group in the examples of so many steps."""
        of_stages = zip(self._stages, self._updates(steps), strict=True)
        planned: np.ndarray = np.sum([stage.shares * updates / steps for stage, updates in of_stages], axis=0)
        return planned

    def _updates(self, step: int) -> list[int]:
        """How many updates of each stage come before a step."""
        ends = [*(stage.start for stage in self._stages[1:]), step]
        of_stages = zip(self._stages, ends, strict=True)
        return [max(0, min(end, step) - stage.start) for stage, end in of_stages]

    def _count_per_window(self, stage: int) -> Float[np.ndarray, " groups"]:
        """How many rows or examples of each group a window has."""
        batching, weights = self._batching, self._stages[stage].shares.copy()
        steps = np.zeros(len(weights))  # of a row or an example
        for group in np.flatnonzero(weights):
            shard = self._streams[group].first
            weights[group] *= shard.size / len(shard.lines)
            steps[group] = 1 / batching.rows(batching.buckets[-1])
            if not self.packed:
                steps[group] = steps_of(shard.counts(batching.buckets).tolist(), batching) / shard.size
        counts: np.ndarray = weights * self.STEPS / float(weights @ steps)
        return counts

    def _position(self, stage: int, window: int) -> Int[np.ndarray, " groups"]:
        """Where each group's stream is at the beginning of a window."""
        before = np.zeros(len(self._streams), np.int64)
        for earlier in range(stage):
            steps = self._stages[earlier + 1].start - self._stages[earlier].start
            before += (self._per_window(earlier) * -(-steps // self.STEPS)).astype(np.int64)
        return before + (self._per_window(stage) * window).astype(np.int64)

    def _make_window(self, stage: int, window: int) -> tuple[dict[str, Sequences], np.ndarray, Plan]:
        """The examples of a window, which pair of the text each is, and its plan."""
        parts, lines, sizes = list[dict[str, Sequences]](), list[np.ndarray](), list[np.ndarray]()
        starts, stops = self._position(stage, window), self._position(stage, window + 1)
        for stream, start, stop in zip(self._streams, starts.tolist(), stops.tolist(), strict=True):
            for shard, chosen in stream(start, stop):
                if shard.rows is not None:
                    sizes.append(shard.rows.sizes(chosen))
                    chosen = shard.rows.joined(chosen)
                parts.append({name: array.take(chosen) for name, array in shard.examples.items()})
                lines.append(shard.lines[chosen])
        examples = concatenated(parts)
        plan = plan_of(side_lengths(examples), self._batching.seeded(stage, window + 1), sizes)
        return examples, np.concatenate(lines), plan
