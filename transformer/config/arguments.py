"""Arguments of Python functions: what each may be, beyond its type (`transformer.config.ranges.typed`)."""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from transformer.config.ranges import COUNTS, Range, shown
from transformer.runtime.errors import UserError


def any_number(name: str, value: Any, what: str) -> Iterable[Any]:
    """Any number of things. Raises UserError if it is no list (`is_list`), with this name."""
    if not is_list(value):
        description = "one string" if isinstance(value, str) else type(value).__name__
        raise UserError(f"{name} must be a list of {what}, not {description}")
    return value


def is_list(value: Any) -> TypeGuard[Iterable[Any]]:
    """Whether a value has items, as a list or a generator, and is no text and no mapping."""
    try:
        iter(value)  # which an array without dimensions is not, though it is an Iterable
    except TypeError:
        return False
    return not isinstance(value, str | bytes | Mapping)


def choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raises UserError if a value is none of these texts, with this name."""
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"{name} {shown(value)}: choose {' or '.join(choices)}")


def true_or_false(name: str, value: Any) -> bool:
    """A truth value. Raises UserError if it is none, with this name."""
    if isinstance(value, bool):
        return value
    raise UserError(f"{name} {shown(value)}: must be True or False")


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """A whole number of at least `least`.

    Raises:
      UserError: it is none, with this name.
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and least <= int(value) <= COUNTS:
        return int(value)
    raise UserError(f"{name} {shown(value)}: must be a whole number from {least} to {COUNTS:,}")


def texts_of(texts: object, what: str) -> list[str]:
    """A list of strings. Raises UserError if it is something else."""
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{what} must be a string or a list of strings, not {shown(texts)}")
    return list(texts)


def seconds(name: str, value: Any, least: float = 0) -> float:
    """A time of at least so many seconds. Raises UserError if it is none, with this name."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and value in Range(least, COUNTS):  # type: ignore[operator]
        return float(value)
    raise UserError(f"{name} {shown(value)}: must be a number of seconds, at least {least:g}")
