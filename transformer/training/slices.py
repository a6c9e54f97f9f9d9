"""Functions of the logits of a batch, which never exist as a whole."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

SLICE = 2**22
"""Number of logits in memory at a time."""


def in_slices(function: Callable[..., Any], vocabulary: int, *arrays: Array) -> Any:
    """`function` of arrays `[b, t, ...]`, computed on slices of the time axis one after the other, and again
    for their gradients.

    Args:
      function: of slices of the arrays; returns a pytree of arrays `[b, t, ...]`.
      vocabulary: logits of each token.
      arrays: to cut.
    """
    rows, time = arrays[0].shape[:2]
    slices = math.ceil(time / max(1, SLICE // (rows * vocabulary)))
    width = math.ceil(time / slices)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, slices * width - time), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(rows, slices, width, *x.shape[2:]), 1, 0)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(rows, slices * width, *x.shape[3:])[:, :time]

    each = jax.lax.map(jax.checkpoint(lambda given: function(*given)), tuple(map(cut, arrays)))
    return jax.tree.map(join, each)
