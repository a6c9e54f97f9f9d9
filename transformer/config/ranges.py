"""Types and limits of options."""

import dataclasses
import functools
import inspect
import math
import numbers
import reprlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from transformer.runtime.errors import UserError, nearest

LARGEST = 10_000_000  # limit of any size: a larger value is a mistake and would exhaust the memory
DEEPEST = 1_000  # layers: each of them is traced
LONGEST = 100_000  # tokens in a sentence
COUNTS = 2**31 - 1  # limit of counts and seeds
IDS = 10 * LARGEST  # limit of ids in a batch: 400 MB

F = TypeVar("F", bound=Callable[..., Any])
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
COUNT = Range(1, COUNTS)
NUMBER = Range(0, COUNTS)  # a count that may be 0, or a seed
SIZE = Range(1, LONGEST)
LENGTH = Range(0, LONGEST)
LENGTH_PENALTY = Range(-10, 10, note="0 for no penalty")
PROBABILITY = Range(1e-6, 1)
TEMPERATURE = Range(1e-3, 1000)
"""Logits are divided by it: beyond these, all probability is on one output, or shared equally."""


def _written(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.6f}".rstrip("0").rstrip(".")


@functools.cache
def ranges_of(owner: Hashable) -> dict[str, Range]:
    """The ranges of a dataclass's fields, or of a function's arguments, by name. A field that a subclass
    repeats without one keeps it."""
    return {
        name: limits
        for base in reversed(getattr(owner, "__mro__", (owner,)))
        for name, hint in get_type_hints(base, include_extras=True).items()
        for limits in _ranges_in(hint)
    }


def _ranges_in(hint: Any) -> Iterator[Range]:
    """The ranges of a hint and of its parts."""
    if isinstance(hint, Range):
        yield hint
    for part in get_args(hint):
        yield from _ranges_in(part)


class Section:
    """The options of a section: their names, types and numbers are checked when they are made.

    A section is a frozen dataclass. One that overrides `__post_init__` calls this one first. Numbers of NumPy
    become Python's, lists tuples, and texts paths where an option is one.

    Raises:
      UserError: there is no option of a name, or a value has another type, is none of those to choose from,
        or is out of range.
    """

    SECTION: ClassVar[str] = ""
    """What precedes the names of its options on a command line. Empty: they are those of a command itself."""

    def __new__(cls, *values: Option, **options: Option) -> Self:
        """Checks the names of the options."""
        known = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in options.keys() - set(known):
            from transformer.config.names import TRAINING

            here = TRAINING.get(name.replace("_", "-"))
            meant = f"; {here.keyword()}" if here else nearest(name, known)
            raise UserError(f"{cls.__name__} has no option {shown(name)}{meant}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_types(self.SECTION, self)
        check_ranges(self.SECTION, self)


def shown(value: object) -> str:
    """A value in a message, shortened."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number with thousands of digits"


def check_ranges(section: str, config: Any) -> None:
    """Raises UserError if a field of a config's section is outside its range, or a number that is not
    finite. The section of a command's own options is ""."""
    config_class: Any = type(config)
    ranges = ranges_of(config_class)
    for field in dataclasses.fields(config_class):
        value = getattr(config, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            _check_range(_option(section, field.name), number, ranges.get(field.name, Range()))


def _check_range(name: str, number: Any, limits: Range) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise UserError(f"{name} must be a finite number, not {number}")
    if isinstance(number, int | float) and number not in limits:
        raise UserError(f"{name} {limits}")


def _option(section: str, name: str) -> str:
    """The option of a field; those of a command itself are in no section."""
    return f"--{section}{'.' * bool(section)}{name.replace('_', '-')}"


@functools.cache
def _hints(config_class: Hashable) -> dict[str, Any]:
    return get_type_hints(config_class)


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    Callable: "a function",
    Mapping: "a dictionary",
    Path: "a path",
}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "phrases", Path: "paths", Any: "values"}


def check_types(section: str, config: Any) -> None:
    """Gives every field the type that it is declared with: numbers of NumPy become Python's, lists tuples.

    Raises:
      UserError: a value has another type, with the name of its option.
    """
    config_class: Any = type(config)
    hints = _hints(config_class)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        try:
            converted = _typed(value, hints[field.name])
        except TypeError as error:
            raise UserError(f"{_option(section, field.name)} {shown(value)}: {error}") from error
        if converted is not value:
            object.__setattr__(config, field.name, converted)


def _typed(value: Any, hint: Any) -> Any:
    """A value as the type of a hint. Raises TypeError if it has another."""
    if type(value) is hint:
        return value
    kinds = _classes(hint)
    choices = _choices(hint)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if value is None and type(None) in (hint, *get_args(hint)):
        return None
    if choices and not (isinstance(value, str) and value in choices):
        raise TypeError(f"choose {' or '.join(choices)}")
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        several = _SEVERAL.get(kinds[0], f"{kinds[0].__name__}s")
        is_list = isinstance(value, list | tuple | set | frozenset)
        if not (is_list and (Ellipsis in kinds or len(value) in (0, len(kinds)))):
            raise TypeError(f"must be a list of {several}")
        try:
            return tuple(_typed(item, kinds[0]) for item in value)
        except TypeError as error:
            raise TypeError(f"must be a list of {several}") from error
    if int in kinds and is_number and isinstance(value, numbers.Integral):
        return int(value)
    if float in kinds and is_number:
        try:
            return float(value)
        except OverflowError as error:
            raise TypeError("is too large") from error
    if Path in kinds and isinstance(value, str) and value:
        return Path(value)
    if get_origin(hint) is type and kinds:
        kinds = get_args(hint)
        if isinstance(value, type) and issubclass(value, kinds):
            return value
        raise TypeError(f"must be a subclass of {kinds[0].__name__}")
    if not kinds or (isinstance(value, bool) <= (bool in kinds) and isinstance(value, kinds)):
        return value
    named = [_NAMES.get(cls, f"a {cls.__name__}") for cls in kinds if cls is not type(None)]
    raise TypeError(f"must be {' or '.join(named)}".replace("a O", "an O"))


@functools.cache
def _classes(hint: Any) -> tuple[type, ...]:
    """The classes of the values of a hint. Empty: it is none that can be checked, as those of arrays."""
    hint = getattr(hint, "__bound__", hint)
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds: list[Any] = [get_origin(part) or part for part in parts]
    checkable = all(isinstance(x, type) and x.__module__ not in ("jaxtyping", "typing") for x in kinds)
    return tuple(Mapping if cls is dict else cls for cls in kinds) if checkable else ()


@functools.cache
def _choices(hint: Hashable) -> tuple[str, ...]:
    """The values of a literal type, also of one that may be None."""
    literals = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    return get_args(literals[0]) if literals else ()


def instance(name: str, value: Any, hint: Any) -> Any:
    """The value of an argument of this name, as the type of a hint.

    Raises:
      UserError: it has another type.
    """
    try:
        return _typed(value, hint)
    except TypeError as error:
        is_choice = str(error).startswith("choose")
        text = f"{name} {shown(value)}: {error}" if is_choice else f"{name} {error}, not {shown(value)}"
        raise UserError(text) from error


def typed(function: F) -> F:
    """Decorates a function or a class: an argument of another type than annotated, or a number outside its
    range, is a UserError."""
    if isinstance(function, type):
        cls: Any = function
        constructor = "__init__" if "__init__" in vars(cls) else "__new__"  # of a named tuple
        setattr(cls, constructor, typed(getattr(cls, constructor)))
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        hints, ranges = _hints(function), ranges_of(function)
        for name, argument in signature.bind(*arguments, **options).arguments.items():
            is_several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for value in argument if is_several else (argument,):
                typed_value = instance(name, value, hints.get(name, Any))
                if name in ranges:
                    _check_range(name, typed_value, ranges[name])
        return function(*arguments, **options)

    return call  # type: ignore[return-value]  # of the same signature
