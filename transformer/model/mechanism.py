"""The contract of attention mechanisms. Axes as in `transformer.model.attention`."""

from typing import Any, ClassVar

from jaxtyping import Array, Float

from transformer.config import StackConfig
from transformer.model.cache import KeysValues
from transformer.model.masks import Mask
from transformer.model.parameters import Module
from transformer.model.positions import Positions

State = Any
"""What a mechanism passes from each decoding step to the next; None if that is nothing."""
Attended = tuple[Float[Array, "b h q d_v"], Float[Array, "b h q k"] | None, State]
"""Context, attention weights if they were asked for, and the mechanism's new state."""


class Mechanism(Module):
    """Maps queries, keys and values to contexts. Its state, if it has one, passes from each decoding step to
    the next and follows its beam."""

    config: StackConfig
    keeps_past: ClassVar[bool] = True
    """Whether queries read the keys and values of all earlier tokens. Otherwise decoding gives only those of
    the new token, and its state is all that it keeps of the others."""

    def init_state(self, rows: int, beams: int, keys: int) -> State:
        """The state before the first step of decoding, arrays `[rows, beams, ...]`. None: it has none.

        Args:
          rows: number of rows, b.
          beams: number of beams of each, n.
          keys: number of keys; 0 for self-attention, where each step adds one.
        """
        return None

    def __call__(
        self,
        query: Float[Array, "b h q d_k"],
        keys_values: KeysValues,
        mask: Mask,
        positions: tuple[Positions, Positions] | None,
        bias: Float[Array, "#b h #q k"] | None,
        state: State,
        *,
        deterministic: bool,
        weights: bool,
    ) -> Attended:
        """The context of each query.

        Args:
          query: projected queries.
          keys_values: projected keys and values.
          mask: which keys each query may attend to.
          positions: of queries and keys; None for cross-attention.
          bias: the position scheme's term of the scores.
          state: of the last decoding step; None in training.
          deterministic: whether to leave out dropout.
          weights: whether to return the attention weights, which not every kernel can.
        """
        raise NotImplementedError
