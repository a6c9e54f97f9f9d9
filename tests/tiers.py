"""Which tests and combinations of parameters belong to which tier: default, thorough or slow."""

from collections.abc import Sequence
from pathlib import Path
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases that `by_default` and `thorough` mean, so that each test is in one tier.

    `@pytest.mark.by_default("beam", "greedy")`: the cases of this test with other ids are slow.
    `@pytest.mark.thorough("beam")`: cases with these ids are thorough; without ids, all but slow ones.

    Raises:
      pytest.UsageError: a test has no case of a name.
    """
    for marker in ("by_default", "thorough"):
        cases: dict[tuple[Path, str], list[pytest.Function]] = {}
        for item in items:
            if isinstance(item, pytest.Function) and (mark := item.get_closest_marker(marker)) and mark.args:
                cases.setdefault((item.path, item.originalname), []).append(item)
        for (path, name), functions in cases.items():
            ids = functions[0].get_closest_marker(marker).args
            others = [item for item in functions if item.callspec.id not in ids]
            is_selected = any("[" in argument for argument in config.args)  # by the name of a case
            if not is_selected and len(functions) - len(others) != len(ids):
                raise pytest.UsageError(f"{path.name}: {name} lacks some of the cases {ids}")
            for item in others:
                if marker == "by_default":
                    item.add_marker("slow")
                else:
                    _remove_thorough(item)
    for item in items:
        if item.get_closest_marker("slow"):
            _remove_thorough(item)


def _remove_thorough(item: pytest.Item) -> None:
    item.own_markers = [marker for marker in item.own_markers if marker.name != "thorough"]
