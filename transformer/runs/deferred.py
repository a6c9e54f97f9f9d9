"""Arrays that are computed when a checkpoint is written, a few at a time: a model may exceed memory."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orbax.checkpoint as ocp


@dataclasses.dataclass(frozen=True)
class Deferred:
    """An array that is not there yet."""

    shape: tuple[int, ...]
    """Shape of the array."""
    load: Callable[[], np.ndarray]
    """Reads the array and returns it."""
    dtype: Any = np.float32
    """Type of the array's elements."""

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


_TOGETHER = 2**24
"""Bytes of arrays that are written together; a larger array is written alone."""


class _FewAtATime(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]  # Orbax is untyped
    """Writes some arrays before it loads the next ones."""

    async def serialize(
        self, values: Sequence[Deferred], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        args = args or [ocp.SaveArgs()] * len(values)
        for group in _groups([value.nbytes for value in values]):
            arrays = [values[i].load() for i in group]
            for writing in await super().serialize(
                arrays, [infos[i] for i in group], [args[i] for i in group]
            ):
                writing.result()
        return []


def _groups(sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields the numbers of neighbours that have at most `_TOGETHER` bytes, and of each larger array."""
    group: list[int] = []
    for number, size in enumerate(sizes):
        if group and sum(sizes[i] for i in group) + size > _TOGETHER:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def deferred_checkpointer() -> ocp.Checkpointer:
    """An Orbax checkpointer for trees of `Deferred`. The files are those of arrays of NumPy."""
    handler = Deferred, _FewAtATime(deepcopy_host_arrays=False)
    registry = ocp.type_handlers.create_type_handler_registry(handler)
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry))
