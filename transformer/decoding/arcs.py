"""Tables of arcs in sorted arrays: what leaves a state is consecutive, sorted by token.

Each of many states has the arcs [first, last) of arrays of any size. They are read a few at a time, so the
cost of a step follows the arcs of the states that it reads, not the size of the table.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

AT_ONCE = 64
"""Arcs of a state that are read together."""


def with_arcs(
    values: Float[Array, "b n v"],
    first: Int[Array, "b n"],
    last: Int[Array, "b n"],
    tokens: Int[Array, " a"],
    of_arcs: Float[Array, " a"],
) -> Float[Array, "b n v"]:
    """Values of all tokens, replaced for those of a state's arcs.

    Args:
      values: of each token.
      first: where the arcs of each state begin.
      last: where they end.
      tokens: of the arcs.
      of_arcs: their values.
    """
    rows, beams = first.shape
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[None, :, None]
    begin, end = first[..., None], last[..., None]

    def some(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        offset, values = carry
        at = begin + offset + jnp.arange(AT_ONCE)
        inside = at < end
        at = jnp.minimum(at, len(of_arcs) - 1)
        token = jnp.where(inside, tokens[at], values.shape[-1])
        return offset + AT_ONCE, values.at[row, beam, token].set(of_arcs[at], mode="drop")

    def is_left(carry: tuple[Array, Array]) -> Array:
        return (begin + carry[0] < end).any()

    return jax.lax.while_loop(is_left, some, (jnp.zeros((), jnp.int32), values))[1]


def arc_of(
    first: Int[Array, "b n"],
    last: Int[Array, "b n"],
    tokens: Int[Array, " a"],
    token: Int[Array, "b n"],
    most: int,
) -> tuple[Int[Array, "b n"], Bool[Array, "b n"]]:
    """Where the arc of a token is among those of a state, and whether there is one.

    Args:
      first: where the arcs of each state begin.
      last: where they end.
      tokens: of the arcs.
      token: the token of each state.
      most: arcs of a state.
    """
    low, high, end = first, last, last

    def halved(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        is_later = (low < high) & (tokens[jnp.minimum(middle, len(tokens) - 1)] < token)
        return jnp.where(is_later, middle + 1, low), jnp.where(is_later, high, middle)

    low, _ = jax.lax.fori_loop(0, most.bit_length(), halved, (low, high))
    return low, (low < end) & (tokens[jnp.minimum(low, len(tokens) - 1)] == token)
