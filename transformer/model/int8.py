"""Matrix products with int8 weights, for faster decoding.

Both factors are quantised to 255 values: weights ahead of time, with a scale per output, and activations
dynamically, with a scale per position. Sums are exact, in 32 bits. (Bhandare et al. 2019 quantise the
Transformer with activation ranges that are calibrated on examples.)
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct, traverse_util
from jaxtyping import Array, Float, Int, Int8

LEVELS = 127  # on either side of 0
INT8 = "int8"  # the collection of quantised matrices, under the names they have in "params"


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
        activations = quantized(positions)
        sums = jax.lax.dot_general(
            activations.values, self.values, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32
        )
        products = sums.astype(jnp.float32) * (activations.scale[:, None] * self.scale)
        return products[: x.shape[0] * x.shape[1]].reshape(*x.shape[:2], -1)


def quantized(rows: Float[Array, "outputs inputs"]) -> QuantizedMatrix:
    """Quantises rows, each with its own scale, at which its largest element is exact."""
    scale = jnp.maximum(jnp.abs(rows).max(axis=1), jnp.finfo(jnp.float32).tiny) / LEVELS
    return QuantizedMatrix(jnp.round(rows / scale[:, None]).astype(jnp.int8), scale)


def in_int8(
    variables: Mapping[str, Any], summed: Mapping[tuple[str, ...], tuple[int, ...]]
) -> dict[str, Any]:
    """The variables of a model with int8 weights: the matrices of attention, feed-forward layers and
    embeddings move from "params" to "int8".

    Args:
      variables: of a model.
      summed: the axes that products with each parameter sum over, by its path; none for one that stays.
    """
    params = traverse_util.flatten_dict(variables["params"])
    matrices = {}
    for path, axes in summed.items():
        if axes:
            kernel = np.moveaxis(params.pop(path), axes, range(-len(axes), 0))
            inputs = math.prod(kernel.shape[-len(axes) :])
            matrices[path] = jax.jit(quantized)(kernel.reshape(-1, inputs))
    unflatten = traverse_util.unflatten_dict
    return {**variables, "params": unflatten(params), INT8: unflatten(matrices)}
