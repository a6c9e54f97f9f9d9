"""The order of an epoch in which small groups of examples, such as directions of translation, come more often
than large ones."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from transformer.data.sequences import Arrays, Sequences

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
