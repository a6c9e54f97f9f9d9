"""Regular expressions that are searched in a text."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent / "transformer"
SEARCHES = {"search", "sub", "subn", "findall", "finditer", "split"}
REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)


def is_slow(pattern: str) -> bool:
    """Whether a pattern begins with a repetition that something must follow: of a run of its characters
    without that, a search reads the rest from each of them. Begin it with (?<!...)."""
    try:
        return _is_slow(list(_parser.parse(pattern)))
    except re.error:  # one of the library regex
        return False


def _is_slow(items: list[Any]) -> bool:
    if not items:
        return False
    (kind, value), *others = items
    if kind is _constants.SUBPATTERN:
        return _is_slow([*value[-1], *others])
    if kind is _constants.BRANCH:
        return any(_is_slow([*branch, *others]) for branch in value[1])
    if kind not in REPEATS:
        return False
    least, most, _ = value
    endless = most is _constants.MAXREPEAT and any(map(_must_follow, others))
    return endless or (least == 0 and _is_slow(others))


def _must_follow(item: Any) -> bool:
    kind, value = item
    if kind is _constants.SUBPATTERN:
        return any(map(_must_follow, value[-1]))
    return kind not in REPEATS or value[0] > 0


def searched(path: Path) -> Iterator[tuple[int, str]]:
    """The patterns that a module searches, with the lines where it does."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    compiled = {
        ast.unparse(target): node.value.args[0]
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func) in ("re.compile", "regex.compile")
        for target in node.targets
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            name = ast.unparse(node.func.value)
            pattern = node.args[0] if name in ("re", "regex") else compiled.get(name)
            if isinstance(pattern, ast.Constant):
                yield node.lineno, str(pattern.value)


@pytest.mark.parametrize(
    ("pattern", "slow"),
    [
        (r"\s*[\r\n]\s*", True),
        (r"\s*[.!?]+$", True),
        (r"(\d+)$", True),
        (r"a|(?:[^\]|]+)x", True),
        (r"(?<!\d)\d+$", False),
        (r"[\r\n]+", False),
        (r"[^|/]+[|/]?|[|/]", False),
    ],
)
def test_what_is_slow(pattern: str, slow: bool) -> None:
    assert is_slow(pattern) is slow


def test_a_run_of_characters_is_read_once() -> None:
    patterns = [(path, *each) for path in sorted(ROOT.rglob("*.py")) for each in searched(path)]
    assert len(patterns) > 60
    assert [each for each in patterns if is_slow(each[2])] == []
