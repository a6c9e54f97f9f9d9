"""Matrix products of 8-bit integers, for decoding where time counts more than the last digit.

Both factors are rounded to 255 levels: a matrix ahead of time, with a size of level for each of its outputs;
what it is multiplied with as it comes, with one for each position. Sums are exact, of 32 bits. (Bhandare et
al. 2019 showed that this model bears it; they choose the ranges beforehand, from examples.)
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
INT8 = "int8"  # the collection that holds rounded matrices, at the places they would have in "params"
INPUTS = (  # by the end of a parameter's name, which of its axes are summed over
    (r"_attention/(query|key|value)", (0,)),
    (r"_attention/out", (0, 1)),
    (r"feed_forward/(inner|outer)/kernel", (0,)),
    (r"_embedding/table", (1,)),
)


@struct.dataclass
class QuantizedKernel:
    """A matrix, near to levels * size; every row is one of its outputs, as integer units read it."""

    levels: Int8[Array, "outputs inputs"]
    size: Float[Array, " outputs"]

    def __getitem__(self, rows: Int[Array, "..."]) -> Float[Array, "... inputs"]:
        return self.levels[rows] * self.size[rows][..., None]

    def product(self, x: Float[Array, "b t inputs"]) -> Float[Array, "b t outputs"]:
        """x times the matrix, in float32."""
        positions = x.astype(jnp.float32).reshape(-1, x.shape[-1])
        if len(positions) == 1:  # CPUs multiply several rows sooner than one
            positions = jnp.concatenate([positions, jnp.zeros_like(positions)])
        given = quantized(positions)
        sums = jax.lax.dot_general(
            given.levels, self.levels, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32
        )
        products = sums.astype(jnp.float32) * (given.size[:, None] * self.size)
        return products[: x.shape[0] * x.shape[1]].reshape(*x.shape[:2], -1)


def quantized(rows: Float[Array, "outputs inputs"]) -> QuantizedKernel:
    """Every row to its own levels; its largest element keeps its value."""
    size = jnp.maximum(jnp.abs(rows).max(axis=1), jnp.finfo(jnp.float32).tiny) / LEVELS
    return QuantizedKernel(jnp.round(rows / size[:, None]).astype(jnp.int8), size)


def in_int8(variables: Any) -> Any:
    """The variables of a model with its large matrices rounded: those of attention, feed-forward and
    embeddings leave "params" for "int8"."""
    params, matrices = traverse_util.flatten_dict(variables["params"], sep="/"), {}
    for name in list(params):
        axes = next((axes for end, axes in INPUTS if re.search(f"{end}$", name)), None)
        if axes:
            kernel = np.moveaxis(params.pop(name), axes, range(-len(axes), 0))
            inputs = math.prod(kernel.shape[-len(axes) :])
            matrices[name] = jax.jit(quantized)(kernel.reshape(-1, inputs))
    unflatten = traverse_util.unflatten_dict
    return {**variables, "params": unflatten(params, sep="/"), INT8: unflatten(matrices, sep="/")}


def kernel_of(module: nn.Module, name: str, initial: Callable[..., Array], shape: tuple[int, ...]) -> Any:
    """The parameter, or where it was rounded, that. (Flax compares the shape of a parameter with what its
    initialiser would make, and traces that to see: a fifth of the time that a search takes to be traced.)"""
    if module.has_variable(INT8, name):
        return module.get_variable(INT8, name)
    if not module.has_variable("params", name):
        return module.param(name, initial, shape)
    kept: Any = module.get_variable("params", name)
    if kept.shape != shape:
        raise ScopeParamShapeError(name, "/".join(module.path), kept.shape, shape)
    return kept
