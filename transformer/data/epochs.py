"""Epochs that differ: sets of labels reordered in each, small groups, such as directions of translation, that
come more often than large ones, and sampled examples, such as other segmentations."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int, Shaped

from transformer.data.plans import Batching, Lengths, Plan, Rows, eligible_examples, plan_of
from transformer.data.sequences import Arrays, Sequences, concatenated, side_lengths, spans
from transformer.data.store import Progress, silent
from transformer.runtime.errors import UserError

# Sets of labels in another order in every epoch.


Keys = Callable[[np.random.Generator, Shaped[np.ndarray, " labels"]], Float[np.ndarray, " labels"]]
"""(random, the first id of each label) -> a number for each label. Those of a set are sorted by it."""


def shuffled(
    random: np.random.Generator, first_ids: Shaped[np.ndarray, " labels"]
) -> Float[np.ndarray, " labels"]:
    """Keys with which all orders of a set are equally likely."""
    return random.random(len(first_ids))


def sampled_by(counts: Int[np.ndarray, " vocabulary"]) -> Keys:
    """Keys with which each next label is drawn from the remaining ones in proportion to their counts
    (Plackett 1975): exponential variables with these rates, the smallest first.

    Args:
      counts: how often each id is a label. 0 counts as 1.
    """

    def keys(
        random: np.random.Generator, first_ids: Shaped[np.ndarray, " labels"]
    ) -> Float[np.ndarray, " labels"]:
        return random.exponential(size=len(first_ids)) / np.maximum(counts[first_ids], 1)

    return keys


def reordered(sequences: Sequences, separator: int, keys: Keys, random: np.random.Generator) -> Sequences:
    """Sequences with their labels in another order.

    Args:
      sequences: ids of labels with the separator between them, and one more id at the end. None is empty.
      separator: its id, which no label has.
      keys: give the order.
      random: for the keys.
    """
    values, ends = sequences.values, sequences.ends
    is_stop = values == separator
    is_stop[ends[1:] - 1] = True
    stops = np.flatnonzero(is_stop)  # of each label: the separator or the end after it
    starts = np.concatenate([[0], stops[:-1] + 1])
    sequence = np.searchsorted(ends, stops, side="right")
    order = np.lexsort((keys(random, values[starts]), sequence))
    sizes = (stops - starts)[order]
    new_stops = np.cumsum(sizes + 1) - 1
    new_values = np.empty_like(values)
    new_values[new_stops] = values[stops]
    new_values[spans(new_stops - sizes, sizes)] = values[spans(starts[order], sizes)]
    return Sequences(new_values, ends)


class LabelOrderPlan(Plan):
    """A plan whose batches have the labels of each target in a drawn order. It is a pure function of (seed,
    step) and the plan, so an example has another order in every epoch.

    Args:
      plan: chooses the examples.
      examples: what it chooses from, unless it makes them itself; all are sequences.
      separator: see `reordered`.
      keys: see `reordered`.
      seed: of the orders.
    """

    def __init__(self, plan: Plan, examples: Arrays, separator: int, keys: Keys, seed: int) -> None:
        self._plan, self._examples = plan, examples
        self._separator, self._keys, self._seed = separator, keys, seed
        self.steps_per_epoch, self.dropped = plan.steps_per_epoch, plan.dropped
        self.outgrown, self.packed = plan.outgrown, plan.packed

    def __call__(self, step: int) -> Rows:
        rows = self._plan(step)
        arrays, indices = rows.examples or (self._examples, rows.chosen)
        chosen = {name: array.take(indices) for name, array in arrays.items() if isinstance(array, Sequences)}
        # from 1: a 0 at the end of a seed changes nothing
        random = np.random.default_rng((self._seed, step + 1))
        chosen["target"] = reordered(chosen["target"], self._separator, self._keys, random)
        return dataclasses.replace(rows, examples=(chosen, np.arange(len(indices))))

    @property
    def padding(self) -> float:  # type: ignore[override]
        return self._plan.padding


Indices = Int[np.ndarray, " examples"]


def shares(counts: Sequence[int], temperature: float) -> Float[np.ndarray, " groups"]:
    """The share of groups with these numbers of examples in an epoch: proportional to the number to the power
    1 / temperature (Arivazhagan et al. 2019, section 4.2)."""
    weights = (np.array(counts) / max(counts)) ** (1 / temperature)
    normalised: np.ndarray = weights / weights.sum()
    return normalised


def by_first_ids(examples: Arrays, chosen: Indices) -> list[Indices]:
    """The chosen examples in groups that begin with the same ids, such as the codes of their languages.

    Args:
      examples: all of their fields are sequences.
      chosen: some of them, of which no sequence is empty.
    """
    sides = [array for array in examples.values() if isinstance(array, Sequences)]
    firsts = np.stack([side.values[side.ends[chosen]] for side in sides], axis=1)
    _, numbers = np.unique(firsts, axis=0, return_inverse=True)
    return [chosen[numbers.ravel() == number] for number in range(numbers.max(initial=-1) + 1)]


class TemperatureOrder:
    """As many examples as the groups have together, of each group its share, in random order. It is a pure
    function of (seed, epoch).

    A group's examples come in rounds: each round has all of them once, and an epoch continues where the one
    before has ended. So examples of a group are drawn equally often, up to one.

    Args:
      groups: indices of examples; none is empty.
      temperature: see `shares`.
      seed: of the order.
    """

    def __init__(self, groups: Sequence[Indices], temperature: float, seed: int) -> None:
        self._groups, self._seed = groups, seed
        sizes = [len(group) for group in groups]
        self.counts = [max(1, round(sum(sizes) * share)) for share in shares(sizes, temperature)]

    def __call__(self, epoch: int) -> Indices:
        parts = [self._part(number, epoch) for number in range(len(self._groups))]
        return np.random.default_rng((self._seed, epoch)).permutation(np.concatenate(parts))

    def _part(self, number: int, epoch: int) -> Indices:
        group, count = self._groups[number], self.counts[number]
        first, skipped = divmod(epoch * count, len(group))
        rounds = [
            # from 1: a 0 at the end of a seed changes nothing
            np.random.default_rng((self._seed, index, number + 1)).permutation(group)
            for index in range(first, first + -(-(skipped + count) // len(group)))
        ]
        return np.concatenate(rounds)[skipped : skipped + count]


# Sampled examples: other segmentations in every epoch, or other examples (a temperature over directions).


class Draw(Protocol):
    """Samples examples."""

    part: int
    """How many at a time."""

    def __call__(
        self, epoch: int, window: int, indices: Int[np.ndarray, " examples"]
    ) -> Iterator[Mapping[str, Sequences]]:
        """The examples of a window of an epoch, a part at a time; the same for the same arguments."""
        ...


Order = Callable[[int], Int[np.ndarray, " examples"]]
"""The examples of an epoch; the same for the same epoch."""


@dataclasses.dataclass(frozen=True)
class _Window:
    """A part of an epoch, planned like a separate corpus."""

    indices: Int[np.ndarray, " examples"]
    examples: Arrays | None
    """The sampled examples. None: the examples as they are stored."""
    plan: Plan
    """It refers to positions in `indices`."""


class SampledPlan(Plan):
    """Plans batches by the lengths of the samples, so that no sample is preferred for its length.

    The examples of an epoch, in random order, are divided into windows. A window's examples are drawn, then
    planned. All windows have as many batches as the first one, so that every epoch has the same number of
    steps: a window with more drops random batches, and one with fewer starts again. All its examples are
    equally likely to be dropped or repeated.

    An example is dropped from all epochs if it is too long without sampling (`dropped`), and from one epoch
    if its sample is (`outgrown`).

    Args:
      lengths: without sampling.
      batching: how to make batches.
      draw: samples examples. None: they are as they are stored.
      progress: shows that of the first window.
      order: the examples of an epoch; each has as many. None: all, in random order.

    Raises:
      UserError: every sample is too long.
    """

    BATCHES = 128  # in a window: enough to fill buckets and rows well, few enough to sample in seconds

    def __init__(
        self,
        lengths: Lengths,
        batching: Batching,
        draw: Draw | None,
        progress: Progress,
        order: Order | None = None,
    ) -> None:
        self._lengths, self._batching, self._draw, self.packed = lengths, batching, draw, batching.packed
        self._eligible = eligible_examples(lengths, batching.buckets[-1])
        self._order = functools.lru_cache(maxsize=2)(order or self._shuffled)
        self.dropped = len(lengths) - len(self._eligible)
        self.steps_per_epoch = 0
        if not len(self._eligible):
            return
        num_positions = lengths.shape[1] * batching.batch_tokens * self.BATCHES
        self._windows = max(1, round(int(lengths[self._order(0)].sum()) / num_positions))
        first = self._make_window(0, progress)
        self._steps, self.padding = first.plan.steps_per_epoch, first.plan.padding
        self.outgrown = first.plan.dropped / len(first.indices)
        self.steps_per_epoch = self._windows * self._steps
        self._lock = threading.Lock()
        self._drawn = {0: Future[_Window]()}
        self._drawn[0].set_result(first)

    def __call__(self, step: int) -> Rows:
        number, index = divmod(step, self._steps)
        window = self._window(number)
        rows = window.plan(index)
        chosen = window.indices[rows.chosen]
        examples = None if window.examples is None else (window.examples, rows.chosen)
        return dataclasses.replace(rows, chosen=chosen, examples=examples)

    def _window(self, number: int) -> _Window:
        """A window, numbered across epochs. The next one is made while this one is used."""
        with self._lock:
            for needed in (number, number + 1):
                if needed not in self._drawn:
                    self._drawn[needed] = Future()
                    arguments = (needed, self._drawn[needed])
                    threading.Thread(target=self._fulfil, args=arguments, daemon=True).start()
            window = self._drawn[number]
            while len(self._drawn) > 3:  # another thread may still be one window behind
                del self._drawn[next(iter(self._drawn))]
        return window.result()

    def _fulfil(self, number: int, window: Future[_Window]) -> None:
        try:
            window.set_result(self._make_window(number))
        except BaseException as error:
            window.set_exception(error)

    def _shuffled(self, epoch: int) -> Int[np.ndarray, " examples"]:
        return np.random.default_rng((self._batching.seed, epoch)).permutation(self._eligible)

    def _make_window(self, number: int, progress: Progress = silent) -> _Window:
        epoch, index = divmod(number, self._windows)
        indices = np.array_split(self._order(epoch), self._windows)[index]
        examples, lengths = None, self._lengths[indices]
        if self._draw:
            parts = self._draw(epoch, index, indices)
            count = -(-len(indices) // self._draw.part)
            shown = progress(f"sampled segmentations, in parts of {self._draw.part:,} pairs", parts, count)
            examples = concatenated(list(shown))
            lengths = side_lengths(examples)
        plan = plan_of(lengths, self._batching.seeded(epoch, index))
        if not plan.steps_per_epoch:
            raise UserError(
                "every segmentation that --data.subword-sampling draws is longer than --data.max-length "
                f"{max(self._batching.buckets[-1])}: raise it"
            )
        return _Window(indices, examples, plan)
