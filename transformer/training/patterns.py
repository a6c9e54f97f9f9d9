"""Patterns for names of parameters, such as `encoder` or `*attention.query`."""

import difflib
import re
from collections.abc import Iterable, Sequence

from transformer.runtime.errors import UserError

Path = tuple[str, ...]
"""Where a parameter is: the names of modules, and its own."""


def name_of(path: Path) -> str:
    """The name of a parameter: its path, joined by points."""
    return ".".join(path)


def matches(pattern: str, path: Path) -> bool:
    """Whether a parameter's name begins with a pattern, in which `*` stands for any letters. The rest of the
    name follows a point or an underscore, so `decoder_1` is no part of `decoder_10`."""
    letters = ".*".join(map(re.escape, pattern.split("*")))
    return re.match(f"{letters}(?:[._]|$)", name_of(path)) is not None


def chosen(option: str, patterns: Sequence[str], paths: Iterable[Path]) -> frozenset[Path]:
    """The parameters that match any of the patterns.

    Args:
      option: for messages.
      patterns: of names.
      paths: of all parameters.

    Raises:
      UserError: a pattern matches none; it names the closest ones.
    """
    paths = list(paths)
    for pattern in patterns:
        if not any(matches(pattern, path) for path in paths):
            raise UserError(f"{option} {pattern}: no parameter has such a name; {_closest(pattern, paths)}")
    return frozenset(path for path in paths if any(matches(pattern, path) for pattern in patterns))


def _closest(pattern: str, paths: Sequence[Path]) -> str:
    """What could have been meant."""
    beginnings = {name_of(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    parts = {name for path in paths for name in path}
    alike = difflib.get_close_matches(pattern.strip("*."), sorted(beginnings | parts), n=3, cutoff=0.5)
    shown = [name if name in beginnings else f"*{name}" for name in alike]
    return f"closest: {', '.join(shown or sorted({path[0] for path in paths})[:6])}"
