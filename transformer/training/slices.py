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


Compared = Callable[..., tuple[dict[str, Array], tuple[Array, ...]]]
"""From logits `[b, t, v]`, one for each state, and other arrays `[b, t, ...]`: sums over the tokens, by name,
with `loss` among them, and the gradients of `loss` with respect to the logits."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sums_in_slices(
    compared: Compared,
    table: Float[Array, "v m"],
    states: tuple[Float[Array, "b t m"], ...],
    *arrays: Array,
) -> dict[str, Float[Array, ""]]:
    """The sums over slices of the time axis of `compared(logits, *arrays)`.

    The gradient of a slice is computed together with its logits, so nothing is computed twice. Only `loss`
    has a gradient, with respect to the table and the states.

    Args:
      compared: of the logits and arrays of a slice. Tokens that fill up the last slice are zeros.
      table: the output embeddings.
      states: hidden states whose products with the table are logits.
      arrays: `[b, t, ...]`, without gradients.
    """
    return _sums_and_gradients(compared, table, states, *arrays)[0]


def _sums_and_gradients(
    compared: Compared, table: Array, states: tuple[Array, ...], *arrays: Array
) -> tuple[dict[str, Array], tuple[Any, ...]]:
    exact = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    near = table.astype(states[0].dtype)

    def add(before: Array, given: tuple[Array, ...]) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        states_, arrays_ = given[: len(states)], given[len(states) :]
        sums, found = compared(tuple(exact("btm,vm->btv", x, near) for x in states_), *arrays_)
        gradients = [gradient.astype(near.dtype) for gradient in found]
        # the longer axis last, so that a CPU has to transpose the smaller operand
        of_table = [exact("btm,btv->mv", *both) for both in zip(states_, gradients, strict=True)]
        return sum(of_table, before), (tuple(exact("btv,vm->btm", x, near) for x in gradients), sums)

    # gradients take as much memory as their logits
    slices = _cut((*states, *arrays), 2 * len(states) * len(table))
    of_table, (of_states, sums) = jax.lax.scan(add, jnp.zeros(table.T.shape, jnp.float32), slices)
    time = states[0].shape[1]
    gradients = of_table.T, tuple(_join(x)[:, :time] for x in of_states)
    return jax.tree.map(jnp.sum, sums), (*gradients, len(arrays))


def _scaled(compared: Compared, found: tuple[Any, ...], cotangents: dict[str, Array]) -> tuple[Any, ...]:
    of_table, of_states, others = found
    scale = cotangents["loss"]
    return of_table * scale, tuple(x * scale for x in of_states), *(None,) * others


sums_in_slices.defvjp(_sums_and_gradients, _scaled)
