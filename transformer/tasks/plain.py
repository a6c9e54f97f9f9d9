"""Outputs as values: equal if their fields are, and written as JSON."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from transformer.runtime.files import Json


class Plain:
    """What a dataclass of outputs inherits to be compared by value, arrays included, and to become a
    dictionary for `json.dumps`. It is declared with `eq=False`: the comparison of dataclasses fails on
    arrays."""

    computed: ClassVar[tuple[str, ...]] = ()
    """Properties that the dictionary has besides the fields."""
    written: ClassVar[tuple[str, ...]] = ()
    """The fields that `to_json` has. Empty: all."""
    written_if_true: ClassVar[tuple[str, ...]] = ()
    """Those that it has besides if they are true."""

    def to_dict(self) -> Json:
        """The fields by their names, as JSON values: arrays and tuples are lists, parts are dictionaries.
        What was not requested is omitted; a number that is not finite is None."""
        values = self.fields() | {name: getattr(self, name) for name in self.computed}
        return {name: _plain(value) for name, value in values.items() if value is not None}

    def to_json(self) -> Json:
        """What decode.py and a server write of it in JSON: values for `json.dumps`."""
        values = self.to_dict()
        exceptions = [name for name in self.written_if_true if values[name]]
        names = [*self.written, *exceptions] if self.written else values
        return {name: values[name] for name in names if name in values}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plain) or type(other) is not type(self):
            return NotImplemented
        other_fields = other.fields()
        return all(_equal(value, other_fields[name]) for name, value in self.fields().items())

    def __hash__(self) -> int:
        return hash(tuple(x for x in self.fields().values() if not isinstance(x, np.ndarray)))

    def fields(self) -> Json:
        """The fields by their names, as they are."""
        declared: Any = self
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(declared)}


def rounded(numbers: Sequence[float] | np.ndarray) -> list[float | None]:
    """Numbers with the four digits that JSON has; None: it is not finite."""
    return [round(float(number), 4) if math.isfinite(number) else None for number in numbers]


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    return bool(value == other)


def _plain(value: Any) -> Any:
    match value:
        case Plain():
            return value.to_dict()
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
