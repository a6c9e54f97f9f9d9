"""Epochs in another order: sets of labels reordered in each, and small groups, such as directions of
translation, that come more often than large ones."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped

from transformer.data.plans import Plan, Rows
from transformer.data.sequences import Arrays, Sequences, spans

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
    def padding(self) -> float:
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
