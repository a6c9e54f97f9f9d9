"""Matrix products with int8 weights, for faster decoding.

Both factors are quantised to 255 values: weights ahead of time, with a scale per output, and activations
dynamically, with a scale per position. Sums are exact, in 32 bits. (Bhandare et al. 2019 quantise the
Transformer with activation ranges that are calibrated on examples.)
"""

import math
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct, traverse_util
from flax.errors import ScopeParamShapeError
from jaxtyping import Array, Float, Int, Int8

LEVELS = 127  # on either side of 0
INT8 = "int8"  # the collection of quantised matrices, under the names they have in "params"
INPUTS = (  # by the end of a parameter's name, which of its axes are summed over
    (r"_attention/(query|key|value)", (0,)),
    (r"_attention/out", (0, 1)),
    (r"feed_forward/(inner|outer)/kernel", (0,)),
    (r"_embedding/table", (1,)),
)


@struct.dataclass
class QuantizedMatrix:
    """A matrix that is approximately values * scale, a row per output: the layout that integer units read."""

    values: Int8[Array, "outputs inputs"]
    scale: Float[Array, " outputs"]

    def __getitem__(self, rows: Int[Array, "..."]) -> Float[Array, "... inputs"]:
        return self.values[rows] * self.scale[rows][..., None]

    def product(self, x: Float[Array, "b t inputs"]) -> Float[Array, "b t outputs"]:
        """x times the matrix, in float32."""
        positions = x.astype(jnp.float32).reshape(-1, x.shape[-1])
        if len(positions) == 1:  # CPUs multiply several rows faster than one
            positions = jnp.concatenate([positions, jnp.zeros_like(positions)])
        given = quantized(positions)
        sums = jax.lax.dot_general(
            given.values, self.values, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32
        )
        products = sums.astype(jnp.float32) * (given.scale[:, None] * self.scale)
        return products[: x.shape[0] * x.shape[1]].reshape(*x.shape[:2], -1)


def quantized(rows: Float[Array, "outputs inputs"]) -> QuantizedMatrix:
    """Quantises rows, each with its own scale, at which its largest element is exact."""
    scale = jnp.maximum(jnp.abs(rows).max(axis=1), jnp.finfo(jnp.float32).tiny) / LEVELS
    return QuantizedMatrix(jnp.round(rows / scale[:, None]).astype(jnp.int8), scale)


def in_int8(variables: Any) -> Any:
    """The variables of a model with int8 weights: the matrices of attention, feed-forward layers and
    embeddings move from "params" to "int8"."""
    params, matrices = traverse_util.flatten_dict(variables["params"], sep="/"), {}
    for name in list(params):
        axes = next((axes for end, axes in INPUTS if re.search(f"{end}$", name)), None)
        if axes:
            kernel = np.moveaxis(params.pop(name), axes, range(-len(axes), 0))
            inputs = math.prod(kernel.shape[-len(axes) :])
            matrices[name] = jax.jit(quantized)(kernel.reshape(-1, inputs))
    unflatten = traverse_util.unflatten_dict
    return {**variables, "params": unflatten(params, sep="/"), INT8: unflatten(matrices, sep="/")}


def param_or_quantized(
    module: nn.Module, name: str, initial: Callable[..., Array], shape: tuple[int, ...]
) -> Any:
    """The parameter, or its quantised matrix if there is one.

    Flax checks the shape of a parameter by tracing its initialiser, which is a fifth of the time to trace a
    search. So the shape is checked here."""
    if module.has_variable(INT8, name):
        return module.get_variable(INT8, name)
    if not module.has_variable("params", name):
        return module.param(name, initial, shape)
    kept: Any = module.get_variable("params", name)
    if kept.shape != shape:
        raise ScopeParamShapeError(name, "/".join(module.path), kept.shape, shape)
    return kept
