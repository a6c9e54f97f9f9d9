"""Converts parameters between the layout of a family of pretrained models and ours, one at a time.

| | there | here |
|---|---|---|
| projections | `[out, in]`, heads side by side | `[in, heads, depth]`, `[heads, depth, out]` |
| d_model axis, where sines come first | sines, then cosines | interleaved as in the paper |
| positions before the first one | rows of the table | none |
"""

import contextlib
import functools
import math
from collections.abc import Sequence, Set
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.config import TransformerConfig
from transformer.interop.architectures.architecture import (
    Architecture,
    Names,
    Tensor,
    VocabularyFiles,
    described_model,
)
from transformer.interop.architectures.sines import interleaved_order
from transformer.model.parameters import Declarations, Declared, Params, declarations
from transformer.model.transformer import Transformer
from transformer.runs.deferred import Deferred
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

NEVER_GENERATED = -1e4
"""The logit of ids that are never generated: no probability after a softmax, and within float16."""
_OF_WORDS = ("source_embedding", "target_embedding", "output_embedding", "output_bias")
"""The parameters that have a row for each word."""


class Source(Protocol):
    """The tensors of a folder."""

    @property
    def names(self) -> Set[str]:
        """The names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, or None if there is none."""

    def __call__(self, name: str) -> np.ndarray | None:
        """A tensor in float32, or None if there is none."""


def imported_params(
    architecture: Architecture,
    config: Json,
    model: TransformerConfig,
    source: Source,
    declared: Declarations | None = None,
) -> Params:
    """The parameters of a model, each of which is read when it is needed.

    Args:
      architecture: of the model's `model_type`.
      config: the content of config.json.
      model: what `described_model` made of it.
      source: the tensors. It must stay readable.
      declared: the model's parameters. None: those of `Transformer(model)`.

    Raises:
      UserError: a tensor is missing, or has another shape.
    """

    @functools.cache
    def new() -> dict[Names, np.ndarray]:
        """The parameters with which a training begins."""
        ids = jnp.zeros((1, 2), jnp.int32)
        variables = Transformer(model).init(jax.random.key(0), ids, ids)
        initial: dict[Names, np.ndarray] = flatten_dict(variables["params"])
        return initial

    def deferred(path: Names, parameter: Declared) -> Deferred:
        tensor = architecture.tensor(path, config, model)
        if tensor.is_new:
            return Deferred(parameter.value.shape, lambda: np.asarray(new()[path], np.float32))
        name = next((name for name in tensor.names if source.shape(name) is not None), tensor.names[0])
        stored = source.shape(name)
        shape = parameter.value.shape
        if stored is None and tensor.if_missing is not None:
            value = tensor.if_missing
            return Deferred(shape, lambda: np.full(shape, value, np.float32))
        if stored is None:
            raise UserError(f"there is no tensor {name}")
        rows, *columns = _stored_shape(parameter, tensor)
        expected = (rows * tensor.part[1], *columns)
        if stored != expected:
            raise UserError(f"{name} has shape {list(stored)}, by config.json it should be {list(expected)}")

        def load() -> np.ndarray:
            x = source(name)
            assert x is not None
            x = np.split(x[tensor.rows_before :], tensor.part[1])[tensor.part[0]]
            x = (x.T if tensor.is_linear or tensor.is_convolution else x).reshape(shape)
            if tensor.factor != 1:
                x = x * np.float32(tensor.factor)
            if (axis := _sines_axis(architecture, parameter)) is not None:
                x = np.take(x, interleaved_order(shape[axis]), axis)
            return architecture.adjusted(path, x, model, source)

        return Deferred(shape, load)

    several = (_declared(model) if declared is None else declared).items()
    return unflatten_dict({path: deferred(path, parameter) for path, parameter in several})


def exported_tensors(
    architecture: Architecture,
    params: Params,
    described: Json,
    model: TransformerConfig,
    words: VocabularyFiles,
) -> dict[str, np.ndarray]:
    """The tensors of model.safetensors.

    Args:
      architecture: the family.
      params: the parameters here. A bias that is missing is zero there.
      described: the content of config.json there.
      model: the model here.
      words: the vocabulary there.
    """
    arrays = flatten_dict(params)
    stored = described_model(architecture, described, stored_names(architecture, model), model.special.unk)

    def converted(path: Names, parameter: Declared, tensor: Tensor) -> np.ndarray:
        shape = parameter.value.shape
        rows = words.rows[path[0] != "source_embedding"] if path[0] in _OF_WORDS else ()
        if path in arrays:
            x = np.asarray(arrays[path], np.float32)
        else:
            x = np.zeros(max(rows) + 1 if rows else shape, np.float32)
        if rows:
            x = _rows(x, rows, NEVER_GENERATED if path[0] == "output_bias" else 0)
        if (axis := _sines_axis(architecture, parameter)) is not None:
            x = np.take(x, np.argsort(interleaved_order(shape[axis])), axis)
        if tensor.factor != 1:
            x = x / np.float32(tensor.factor)
        stored = _stored_shape(parameter, tensor)
        if tensor.is_linear:
            return x.reshape(stored[::-1]).T
        if tensor.rows_before:
            x = np.pad(x, [(tensor.rows_before, 0), (0, 0)])
        return x.reshape(stored)

    tensors = {}
    for path, parameter in _declared(stored).items():
        tensor = architecture.tensor(path, described, stored)
        tensors[tensor.names[0]] = converted(path, parameter, tensor)
    return tensors | architecture.more_tensors(params, model)


def stored_names(architecture: Architecture, model: TransformerConfig) -> set[str]:
    """The names of the tensors of a model, as far as the family has them."""
    names = set()
    for path in _declared(model):
        with contextlib.suppress(KeyError):
            names.add(architecture.tensor(path, {}, model).names[0])
    return names


def stored_shapes(
    architecture: Architecture, config: Json, model: TransformerConfig
) -> dict[str, tuple[int, ...]]:
    """The shapes of the stored parameters by their names.

    Args:
      architecture: the family.
      config: the content of config.json.
      model: what `described_model` made of it.
    """
    tensors = ((architecture.tensor(path, config, model), x) for path, x in _declared(model).items())
    return {tensor.names[0]: _stored_shape(parameter, tensor) for tensor, parameter in tensors}


def _declared(model: TransformerConfig) -> Declarations:
    ids = jax.ShapeDtypeStruct((1, 2), "int32")
    return declarations(Transformer(model), (ids, ids))


def _stored_shape(parameter: Declared, tensor: Tensor) -> tuple[int, ...]:
    """The shape of a stored tensor: heads are side by side, and the matrices of linear layers transposed."""
    shape = parameter.value.shape
    size = math.prod(shape)
    if tensor.is_convolution:
        return shape[::-1]
    if tensor.is_linear:
        inputs = math.prod(shape[axis] for axis in parameter.summed)
        return size // inputs, inputs
    if tensor.has_row_axis:
        return 1, size
    return (shape[0] + tensor.rows_before, *shape[1:]) if len(shape) == 2 else (size,)


def _sines_axis(architecture: Architecture, parameter: Declared) -> int | None:
    """The axis of d_model, if it has another order there."""
    if not architecture.sines_first or "model" not in parameter.names:
        return None
    return parameter.names.index("model")


def _rows(x: np.ndarray, rows: Sequence[int], missing: float) -> np.ndarray:
    """The rows of our ids; `missing` for -1."""
    order = np.asarray(rows)
    reordered = x[np.maximum(order, 0)]
    reordered[order < 0] = missing
    return reordered
