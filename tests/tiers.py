"""Which combinations of parameters belong to the default tier."""

from collections.abc import Sequence
from typing import Any

import pytest


def combinations(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """All pairs. The default tier has each value once or more; the other pairs are slow tests."""
    longest = max(len(first), len(second))
    default = {(i % len(first), i % len(second)) for i in range(longest)}
    return [
        pytest.param(a, b, marks=() if (i, j) in default else pytest.mark.slow)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]


def mostly_slow(values: Sequence[Any], default: Sequence[Any]) -> list[Any]:
    """All values, of which only some belong to the default tier."""
    assert all(value in values for value in default)
    return [pytest.param(value, marks=() if value in default else pytest.mark.slow) for value in values]
