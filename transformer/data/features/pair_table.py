"""A function of two numbers as a sorted table, which is asked for many pairs at once."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int


class PairTable:
    """What a mapping gives for pairs of numbers.

    Args:
      values: of each pair, not negative.
      size: one more than the largest second number.
    """

    def __init__(self, values: Mapping[tuple[int, int], int], size: int) -> None:
        pairs = np.array([*values], np.int64).reshape(-1, 2)
        keys = pairs[:, 0] * size + pairs[:, 1]
        order = np.argsort(keys)
        # the last one is found for pairs behind all others
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._values = np.append(np.fromiter(values.values(), np.int32, len(values))[order], np.int32(-1))
        self._size = size

    def __call__(self, left: Int[np.ndarray, " n"], right: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The value of each pair; -1 if it has none."""
        keys = left.astype(np.int64) * self._size + right
        index = np.searchsorted(self._keys, keys)
        return np.where(self._keys[index] == keys, self._values[index], np.int32(-1))
