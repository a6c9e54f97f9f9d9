"""Arrays that are computed when a checkpoint is written, one at a time: a model may be larger than memory."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orbax.checkpoint as ocp


@dataclasses.dataclass(frozen=True)
class Deferred:
    """An array that is not there yet."""

    shape: tuple[int, ...]
    """Its shape."""
    load: Callable[[], np.ndarray]
    """Returns it."""
    dtype: Any = np.float32
    """Its dtype."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it will need."""
        return self.size * np.dtype(self.dtype).itemsize


def deferred(x: Any) -> Deferred:
    """An array, or a `Deferred` one, as a `Deferred` one."""
    return x if isinstance(x, Deferred) else Deferred(x.shape, lambda: np.asarray(x), x.dtype)


class _OneAtATime(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]  # Orbax is untyped
    """Writes each array before it loads the next one."""

    async def serialize(
        self, values: Sequence[Deferred], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        for value, info, arg in zip(values, infos, args or [ocp.SaveArgs()] * len(values), strict=True):
            for writing in await super().serialize([value.load()], [info], [arg]):
                writing.result()
        return []


def deferred_checkpointer() -> ocp.Checkpointer:
    """An Orbax checkpointer for trees of `Deferred`. The files are those of arrays of NumPy."""
    handler = Deferred, _OneAtATime(deepcopy_host_arrays=False)
    registry = ocp.type_handlers.create_type_handler_registry(handler)
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry))
