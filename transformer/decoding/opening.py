"""Outputs that begin with given tokens, such as the code of their language: these cost nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.data.sequences import Field
from transformer.decoding.hooks import SearchHook, parts_of

TOKENS, COUNT = "steer_opening", "steer_opening_count"
FIELDS = {TOKENS: Field(fill=0), COUNT: Field(padded=False)}
"""What a search reads of each input: the first tokens of its output, and their number."""


@struct.dataclass
class OpeningState:
    """The first tokens of each beam, and how many tokens it has."""

    tokens: Int[Array, "b n s"]
    count: Int[Array, "b n"]
    length: Int[Array, "b n"]


@dataclass(frozen=True)
class Opening:
    """A hook that forces first tokens. Their log-probability is 0, as they are no choice of the model.

    Args:
      size: number of tokens.
      is_counted: whether length penalties count them.
    """

    size: int
    is_counted: bool = True

    penalises = True

    def init(self, inputs: Mapping[str, Array]) -> OpeningState:
        """Before the first token."""
        count = inputs[COUNT]
        return OpeningState(inputs[TOKENS], count, jnp.zeros_like(count))

    def is_free(self, state: OpeningState) -> Bool[Array, "b n"]:
        """Where one of the first tokens comes next."""
        return state.length < state.count

    def filter(
        self, logits: Float[Array, "b n v"], state: OpeningState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """Only the next of the first tokens, while there is one."""
        position = jnp.minimum(state.length, state.tokens.shape[-1] - 1)[..., None]
        token = jnp.take_along_axis(state.tokens, position, axis=-1)
        only = jnp.where(jnp.arange(logits.shape[-1]) == token, 0, -jnp.inf)
        return jnp.where(self.is_free(state)[..., None], only, logits)

    def advance(self, tokens: Int[Array, "b n"], state: OpeningState) -> OpeningState:
        """One token later."""
        return replace(state, length=state.length + 1)


def example(tokens: Sequence[int]) -> dict[str, Any]:
    """The arrays of one input."""
    return {TOKENS: list(tokens) or [0], COUNT: len(tokens)}


def opening_of(hook: SearchHook) -> Opening:
    """What a hook forces outputs to begin with."""
    openings = (part for part in parts_of(hook) if isinstance(part, Opening))
    return next(openings, Opening(0))
