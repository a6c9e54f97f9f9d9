"""Converts parameters between the layout of a family of pretrained models and side, one at a time.

| | there | here |
|---|---|---|
| projections | a matrix, heads side by side | `[in, heads, depth]`, `[heads, depth, out]` |
| d_model axis, where sines come first | sines, then cosines | interleaved as in the paper |
| positions before the first one | rows of the table | none |
| words in another order, or missing | their rows | side |
"""

import contextlib
import functools
import hashlib
import logging
import math
import re
from collections.abc import Callable, Container, Iterable, Sequence

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.config.transformer import StackConfig, TransformerConfig
from transformer.interop.folders.family import (
    NEVER_GENERATED,
    Model,
    Names,
    Source,
    Storage,
    Tensor,
    interleaved_order,
)
from transformer.model.declarations import declarations
from transformer.model.parameters import Declarations, Declared, Params
from transformer.model.transformer import Transformer
from transformer.runs.checkpoints import Deferred
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json
from transformer.runtime.text import printable

log = logging.getLogger("transformer")
_NAMED = 3
"""How many names a message has."""
_OF_WORDS = ("source_embedding", "target_embedding", "output_embedding", "output_bias")
"""The parameters that have a row for each word."""


def imported_params(
    storage: Storage[Model],
    config: Json,
    model: Model,
    source: Source,
    declared: Declarations,
    initial: Callable[[], Params],
    examined: Container[str] = (),
) -> Params:
    """The parameters of a model, each of which is read when it is needed. The log names the tensors that none
    of them is made of.

    Args:
      storage: how the model's family stores them.
      config: the description that the folder has, such as the content of config.json.
      model: the model that it describes.
      source: the tensors. It must stay readable.
      declared: the model's parameters.
      initial: the parameters with which a training begins, for those that are not stored.
      examined: names of tensors that the model was described by.

    Raises:
      UserError: a tensor is missing, has another shape, differs from another one that stands for the same
        parameter, or is not supported.
    """
    checked: set[str] = set()

    def checking(name: str) -> np.ndarray | None:
        checked.add(name)
        return _finite(name, source(name))

    storage.check(config, model, checking)

    @functools.cache
    def new() -> dict[Names, np.ndarray]:
        parameters: dict[Names, np.ndarray] = flatten_dict(initial())
        return parameters

    def deferred(path: Names, parameter: Declared) -> Deferred:
        shape = parameter.value.shape
        tensor = storage.tensor(path, config, model)
        checked.update(tensor.names)
        name = _only(tensor.names, source)
        stored = source.shape(name)
        if stored is None and tensor.if_missing is None:
            raise UserError(f"there is no tensor {name}")
        if stored is None and tensor.if_missing == "new":
            return Deferred(shape, lambda: np.asarray(new()[path], np.float32))
        rows, *columns = _stored_shape(parameter, tensor)
        expected = (rows * tensor.part[1], *columns)
        accepted = (expected, expected[1:]) if tensor.layout == "row" else (expected,)
        if stored is not None and stored not in accepted:
            raise UserError(f"{name} has shape {list(stored)}; the description means {list(expected)}")

        def load() -> np.ndarray:
            x = np.full(expected, tensor.if_missing, np.float32) if stored is None else source(name)
            x = _finite(name, x)
            assert x is not None
            x = np.split(x[tensor.rows_before :], tensor.part[1])[tensor.part[0]]
            x = (x.T if tensor.layout in ("out-in", "convolution") else x).reshape(-1, *shape[1:])
            if tensor.order is not None:
                x = _rows(x, tensor.order, tensor.filler)
            if (axis := _sines_axis(storage, parameter)) is not None:
                x = np.take(x, interleaved_order(shape[axis]), axis)
            return storage.adjusted(path, x, model, source)

        return Deferred(shape, load)

    params = unflatten_dict({path: deferred(path, parameter) for path, parameter in declared.items()})
    if unread := sorted(
        name
        for name in source.names
        if name not in checked and name not in examined and not _is_like(name, storage.harmless)
    ):
        log.warning("Not imported: %s: the described model has no such parameters", _listed(unread))
    return params


def _finite(name: str, x: np.ndarray | None) -> np.ndarray | None:
    """A tensor, whose numbers are finite. Raises UserError if one is not."""
    if x is None or not x.size or (np.isfinite(x.min()) and np.isfinite(x.max())):  # no array as large as x
        return x
    raise UserError(
        f"tensor {name} has a value that is not a finite number of float32: the file is damaged, or was "
        "written by a training that diverged"
    )


def _only(names: Sequence[str], source: Source) -> str:
    """The first of the names of a tensor that a folder has; the first one if it has none. Raises UserError if
    it has several with different values."""
    first, *others = different(names, source) or names[:1]
    if others:
        raise UserError(f"{first} and {others[0]} differ, and the described model has one for both")
    return first


def different(names: Iterable[str], source: Source) -> list[str]:
    """Those of some names that a folder has, without the names of tensors that repeat an earlier one."""
    stored = [name for name in names if source.shape(name) is not None]
    if len(stored) < 2:
        return stored
    by_content = {_digest(source, name): name for name in reversed(stored)}
    return [name for name in stored if name in by_content.values()]


def _digest(source: Source, name: str) -> tuple[tuple[int, ...] | None, bytes]:
    """What equal tensors have in common, so that memory has one of them at a time."""
    content = np.ascontiguousarray(source(name))
    return source.shape(name), hashlib.blake2b(content.data).digest()


def _is_like(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    first = ", ".join(printable(name, but="") for name in names[:_NAMED])
    return first + (f" and {counted(more, 'more tensor')}" if more > 0 else "")


def exported_tensors(
    storage: Storage[TransformerConfig],
    params: Params,
    model: TransformerConfig,
    described: Json,
    stored: TransformerConfig,
    words: tuple[Sequence[int], Sequence[int]],
    declared: Declarations | None = None,
) -> dict[str, np.ndarray]:
    """The tensors of a model as its family stores them.

    Args:
      storage: how that is done.
      params: the parameters here. A bias that is missing is zero there.
      model: the model here.
      described: the description there, such as the content of config.json.
      stored: the model that it describes.
      words: for source and target, our id for each id there; -1: none.
      declared: the parameters of the stored model. None: those of `Transformer(stored)`.
    """
    arrays = flatten_dict(params)

    def converted(path: Names, parameter: Declared, tensor: Tensor) -> np.ndarray:
        shape = parameter.value.shape
        rows = words[path[0] != "source_embedding"] if path[0] in _OF_WORDS else ()
        if path in arrays:
            x = np.asarray(arrays[path], np.float32)
        else:
            x = np.zeros(max(rows) + 1 if rows else shape, np.float32)
        if rows:
            x = _rows(x, rows, NEVER_GENERATED if path[0] == "output_bias" else 0)
        if (axis := _sines_axis(storage, parameter)) is not None:
            x = np.take(x, np.argsort(interleaved_order(shape[axis])), axis)
        if path[-1] in ("query", "query_bias"):
            x = x * np.float32(_query_factor(model, stored, path))
        if tensor.rows_before:
            x = np.pad(x, [(tensor.rows_before, 0), (0, 0)])
        expected = _stored_shape(parameter, tensor)
        is_transposed = tensor.layout in ("out-in", "convolution")
        return x.reshape(expected[::-1]).T if is_transposed else x.reshape(expected)

    tensors = {}
    for path, parameter in (_declared(stored) if declared is None else declared).items():
        tensor = storage.tensor(path, described, stored)
        tensors[tensor.names[0]] = converted(path, parameter, tensor)
    return tensors | storage.more_tensors(params, model)


def stored_names(
    storage: Storage[Model], described: Json, model: Model, declared: Declarations | None = None
) -> set[str]:
    """The names of the tensors of a model, as far as the family has them. Its parameters: as of
    `exported_tensors`."""
    names: set[str] = set()
    for path in _declared(model) if declared is None else declared:
        with contextlib.suppress(LookupError):
            names.update(storage.tensor(path, described, model).names[:1])
    return names


def stored_shapes(
    storage: Storage[TransformerConfig], config: Json, model: TransformerConfig
) -> dict[str, tuple[int, ...]]:
    """The shapes of the stored parameters by their names.

    Args:
      storage: how the family stores them.
      config: the description that a folder would have.
      model: the model that it describes.
    """
    tensors = ((storage.tensor(path, config, model), x) for path, x in _declared(model).items())
    return {tensor.names[0]: _stored_shape(parameter, tensor) for tensor, parameter in tensors}


def _declared(model: StackConfig) -> Declarations:
    assert isinstance(model, TransformerConfig)
    ids = jax.ShapeDtypeStruct((1, 2), "int32")
    return declarations(Transformer(model), (ids, ids))


def _stored_shape(parameter: Declared, tensor: Tensor) -> tuple[int, ...]:
    """The shape of a stored tensor."""
    first, *others = parameter.value.shape
    shape = (first if tensor.order is None else max(tensor.order) + 1, *others)
    size = math.prod(shape)
    inputs = math.prod(shape[axis] for axis in parameter.summed)
    match tensor.layout:
        case "in-out":
            return inputs, size // inputs
        case "out-in":
            return size // inputs, inputs
        case "convolution":
            return shape[::-1]
        case "row":
            return 1, size
    return (shape[0] + tensor.rows_before, *others) if len(shape) == 2 else (size,)


def _query_factor(model: TransformerConfig, stored: TransformerConfig, path: Names) -> float:
    """What queries are multiplied with where scores are divided by sqrt(d_k) on one side only."""
    side, stored_side = (x.of_encoder if path[0].startswith("encoder") else x for x in (model, stored))
    if side.scale_scores == stored_side.scale_scores:
        return 1.0
    return side.key_width**-0.5 if side.scale_scores else side.key_width**0.5


def _sines_axis(storage: Storage[Model], parameter: Declared) -> int | None:
    """The axis of d_model, if the family stores its sines before its cosines. None: the order is that of this
    package."""
    if not storage.sines_first or "model" not in parameter.names:
        return None
    return parameter.names.index("model")


def _rows(x: np.ndarray, rows: Sequence[int], missing: float) -> np.ndarray:
    """The rows of `x` in this order, with `missing` in the row of each -1."""
    order = np.asarray(rows)
    reordered = x[np.maximum(order, 0)]
    reordered[order < 0] = missing
    return reordered
