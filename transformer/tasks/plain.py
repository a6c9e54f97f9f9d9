"""Outputs as values of JSON."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from transformer.files import Json


class Plain:
    """What a dataclass of outputs inherits to become a dictionary for `json.dumps`."""

    computed: ClassVar[tuple[str, ...]] = ()
    """Properties that the dictionary has besides the fields."""

    def to_dict(self) -> Json:
        """The fields by their names, as JSON values: arrays and tuples are lists, parts are dictionaries.
        What was not requested is left out; a number that is not finite is None."""
        fields: Any = self
        names = [*(field.name for field in dataclasses.fields(fields)), *self.computed]
        values = {name: getattr(self, name) for name in names}
        return {name: _plain(value) for name, value in values.items() if value is not None}


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
