"""A hook for sets of labels: none is output twice."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.decoding.hooks import EqualByContent


class EachOnce(EqualByContent):
    """Forbids tokens of a set that were output before. All others, such as separators and <eos>, are free.
    Labels must be single tokens, as they are with --data.tokenizer word or whitespace.

    Args:
      tokens: the ids of the set.
      size: of the vocabulary.
    """

    def __init__(self, tokens: Sequence[int], size: int) -> None:
        super().__init__(tuple(tokens), size)
        self._number = len(set(tokens))
        self._column = np.full(size, self._number, np.int32)
        self._column[sorted(set(tokens))] = np.arange(self._number)

    def init(self, inputs: Mapping[str, Array]) -> Bool[Array, "b tokens"]:
        """Which tokens of the set were output: none; a last column stands for all others."""
        rows = len(next(iter(inputs.values())))
        return jnp.zeros((rows, self._number + 1), bool)

    def filter(
        self, logits: Float[Array, "b n v"], state: Bool[Array, "b n tokens"], steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The logits without those of the set that were output."""
        return jnp.where(state[..., self._column], -jnp.inf, logits)

    def advance(
        self, tokens: Int[Array, "b n"], state: Bool[Array, "b n tokens"]
    ) -> Bool[Array, "b n tokens"]:
        """The set after these tokens."""
        column = jnp.asarray(self._column)[tokens][..., None]
        is_chosen = (jnp.arange(self._number + 1) == column) & (column < self._number)
        return state | is_chosen
