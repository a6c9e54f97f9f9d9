"""Types and limits of options."""

import dataclasses
import functools
import math
import numbers
import reprlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from transformer.runtime.errors import UserError
from transformer.runtime.files import abbreviated

LARGEST = 10_000_000  # limit of any size: a larger value is a mistake and would exhaust the memory
DEEPEST = 1_000  # layers: each of them is traced
LONGEST = 100_000  # tokens in a sentence
COUNTS = 2**31 - 1  # limit of counts and seeds
IDS = 10 * LARGEST  # limit of ids in a batch: 400 MB

Option = Any
"""A value of an option."""


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that an option may be, as in `Annotated[int, Range(1, 100)]`. None is always valid."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    """Whether `least` itself is too small."""
    below: bool = False
    """Whether `most` itself is too large."""
    note: str = ""
    """What to give for something that is out of range."""

    def __contains__(self, number: float) -> bool:
        return (self.least < number if self.above else self.least <= number) and (
            number < self.most if self.below else number <= self.most
        )

    @property
    def bounds(self) -> str:
        """The two numbers, for people."""
        least, most = map(_written, (self.least, self.most))
        if self.above or self.below or (self.least, self.most) == (0, 1):
            return f"in {'(' if self.above else '['}{least}, {most}{')' if self.below else ']'}"
        return f"from {least} to {most}"

    def __str__(self) -> str:
        text = f"must be {self.bounds}"
        if math.isinf(self.most):
            text = "must be positive" if self.above else "must not be negative"
        return f"{text}; {self.note}" if self.note else text


SHARE = Range(0, 1)
RATE = Range(0, 1, below=True)
POSITIVE = Range(0, above=True)
NOT_NEGATIVE = Range(0)


def _written(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.6f}".rstrip("0").rstrip(".")


@functools.cache
def ranges_of(kind: Hashable) -> dict[str, Range]:
    """The ranges of a dataclass's fields, by name. A field that a subclass repeats without one keeps it."""
    classes: Any = kind
    return {
        name: limits
        for base in reversed(classes.__mro__)
        for name, hint in get_type_hints(base, include_extras=True).items()
        for limits in _ranges_in(hint)
    }


def _ranges_in(hint: Any) -> Iterator[Range]:
    """The ranges of a hint and of its parts."""
    if isinstance(hint, Range):
        yield hint
    for part in get_args(hint):
        yield from _ranges_in(part)


def check_ranges(section: str, config: Any) -> None:
    """Raises UserError if a field of a config's section is outside its range. The section of a command's own
    options is ""."""
    kind: Any = type(config)
    for name, limits in ranges_of(kind).items():
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is None:
                continue
            is_number = isinstance(number, numbers.Real)
            if not is_number:
                raise UserError(f"{_option(section, name)} must be a number, not {reprlib.repr(number)}")
            if number not in limits:
                whole = math.isfinite(number) or math.isfinite(limits.most)
                text = limits if whole else f"must be a finite number, not {number}"
                raise UserError(f"{_option(section, name)} {text}")


def _option(section: str, name: str) -> str:
    """The option of a field; those of a command itself are in no section."""
    return f"--{section}{'.' * bool(section)}{name.replace('_', '-')}"


@functools.cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "phrases"}


def check_types(section: str, config: Any) -> None:
    """Gives every field the type that it is declared with: numbers of NumPy become Python's, lists tuples.

    Raises:
      UserError: a value has another type, with the name of its option.
    """
    kind: Any = type(config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        hint = _hints(kind)[field.name]
        try:
            typed = _typed(value, hint)
        except TypeError as error:
            raise UserError(f"{_option(section, field.name)} {reprlib.repr(value)}: {error}") from error
        object.__setattr__(config, field.name, typed)


def _typed(value: Any, hint: Any) -> Any:
    """A value as the type of a hint. Raises TypeError if it has another."""
    kinds = get_args(hint) or (hint,)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if get_origin(hint) is Literal:
        if not isinstance(value, str) or value not in kinds:
            raise TypeError(f"choose {' or '.join(kinds)}")
    elif get_origin(hint) is tuple:
        if not isinstance(value, list | tuple | set | frozenset):
            raise TypeError(f"must be a list of {_SEVERAL[kinds[0]]}")
        try:
            return tuple(_typed(item, kinds[0]) for item in value)
        except TypeError as error:
            raise TypeError(f"must be a list of {_SEVERAL[kinds[0]]}") from error
    elif value is None and type(None) in kinds:
        return None
    elif int in kinds and is_number and isinstance(value, numbers.Integral):
        return int(value)
    elif float in kinds and is_number:
        try:
            return float(value)
        except OverflowError as error:
            raise TypeError("is too large") from error
    elif {int, float, str, bool} & set(kinds) and type(value) not in kinds:
        raise TypeError(f"must be {' or '.join(_NAMES[kind] for kind in kinds if kind in _NAMES)}")
    return value


def any_number(name: str, value: Any, what: str) -> Iterable[Any]:
    """Any number of things. Raises UserError if it is one text, a mapping or no iterable, with this name."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        kind = "one string" if isinstance(value, str) else type(value).__name__
        raise UserError(f"{name} must be a list of {what}, not {kind}")
    return value


def true_or_false(name: str, value: Any) -> bool:
    """A truth value. Raises UserError if it is none, with this name."""
    if isinstance(value, bool):
        return value
    raise UserError(f"{name} {reprlib.repr(value)}: must be True or False")


def whole_number(name: str, value: Any) -> int:
    """A whole number that is not negative.

    Raises:
      UserError: it is none, with this name.
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and 0 <= int(value) <= COUNTS:
        return int(value)
    raise UserError(f"{name} {reprlib.repr(value)}: must be a whole number from 0 to {COUNTS:,}")


def texts_of(texts: object, what: str) -> list[str]:
    """A list of strings. Raises UserError if it is something else."""
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{what} must be a string or a list of strings, not {abbreviated(repr(texts))}")
    return list(texts)


def seconds(name: str, value: Any, least: float = 0) -> float:
    """A time of at least so many seconds. Raises UserError if it is none, with this name."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and least <= float(value) < math.inf:
        return float(value)
    raise UserError(f"{name} {reprlib.repr(value)}: must be a number of seconds, at least {least:g}")
