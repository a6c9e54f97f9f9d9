"""Functions of the logits of a batch, which never exist as a whole."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
    time = arrays[0].shape[1]
    each = jax.lax.map(jax.checkpoint(lambda given: function(*given)), _cut(arrays, vocabulary))
    return jax.tree.map(lambda x: _join(x)[:, :time], each)


def _cut(arrays: tuple[Array, ...], vocabulary: int) -> tuple[Array, ...]:
    """The slices `[slices, b, width, ...]` of arrays `[b, t, ...]`, the last one filled up with zeros."""
    rows, time = arrays[0].shape[:2]
    slices = math.ceil(time / max(1, SLICE // (rows * vocabulary)))
    width = math.ceil(time / slices)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, slices * width - time), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(rows, slices, width, *x.shape[2:]), 1, 0)

    return tuple(map(cut, arrays))


def _join(x: Array) -> Array:
    """The array `[b, t, ...]` of slices."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(len(x), -1, *x.shape[3:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sums_in_slices(
    function: Callable[..., dict[str, Array]],
    table: Float[Array, "v m"],
    states: tuple[Float[Array, "b t m"], ...],
    *arrays: Array,
) -> dict[str, Float[Array, ""]]:
    """The sums over slices of the time axis of `function(table, states, *arrays)`.

    The gradient of a slice is computed together with its logits, so nothing is computed twice. Only `loss`
    has a gradient, with respect to the table and the states.

    Args:
      function: returns sums over the tokens of a slice, by name, with `loss` among them. Tokens that fill up
        the last slice are zeros.
      table: the output embeddings.
      states: hidden states whose products with the table are logits.
      arrays: `[b, t, ...]`, without gradients.
    """
    slices = _cut((*states, *arrays), len(table))

    def sums(given: tuple[Array, ...]) -> dict[str, Array]:
        return function(table, given[: len(states)], *given[len(states) :])

    return jax.tree.map(jnp.sum, jax.lax.map(sums, slices))


def _sums_and_gradients(
    function: Callable[..., dict[str, Array]], table: Array, states: tuple[Array, ...], *arrays: Array
) -> tuple[dict[str, Array], tuple[Any, ...]]:
    def loss(table: Array, states: tuple[Array, ...], *arrays: Array) -> tuple[Array, dict[str, Array]]:
        sums = function(table, states, *arrays)
        return sums["loss"], sums

    def add(before: Array, given: tuple[Array, ...]) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        slices = given[: len(states)], *given[len(states) :]
        (of_table, of_states), sums = jax.grad(loss, argnums=(0, 1), has_aux=True)(table, *slices)
        return before + of_table, (of_states, sums)

    slices = _cut((*states, *arrays), len(table))
    of_table, (of_states, sums) = jax.lax.scan(add, jnp.zeros_like(table), slices)
    time = states[0].shape[1]
    gradients = of_table, tuple(_join(x)[:, :time] for x in of_states)
    return jax.tree.map(jnp.sum, sums), (*gradients, len(arrays))


def _scaled(
    function: Callable[..., dict[str, Array]], found: tuple[Any, ...], cotangents: dict[str, Array]
) -> tuple[Any, ...]:
    *gradients, others = found
    scale = cotangents["loss"]
    return (*jax.tree.map(lambda x: (x * scale).astype(x.dtype), tuple(gradients)), *(None,) * others)


sums_in_slices.defvjp(_sums_and_gradients, _scaled)
