"""The contract of attention mechanisms. Axes as in `transformer.model.attention`."""

from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float

from transformer.config import StackConfig
from transformer.model.masks import Mask
from transformer.model.parameters import Module

State = Any
"""What a mechanism passes from each decoding step to the next; None if that is nothing."""
Attended = tuple[Float[Array, "b h q d_v"], Float[Array, "b h q k"] | None, State]
"""Context, attention weights if they were asked for, and the mechanism's new state."""


@struct.dataclass
class AttentionInputs:
    """The inputs of a mechanism, of which each reads what it needs. While decoding, the queries are beams."""

    query: Float[Array, "b h q d_k"]
    """Projected, as keys and values are."""
    keys: Float[Array, "b h k d_k"]
    values: Float[Array, "b h k d_v"]
    mask: Mask
    """Which keys each query may attend to."""
    bias: Float[Array, "#b h #q k"] | None = None
    """The position scheme's term of the scores."""
    state: State = None
    """Of the last decoding step; None in training."""
    deterministic: bool = struct.field(default=True, pytree_node=False)
    """Whether to disable dropout."""
    needs_weights: bool = struct.field(default=False, pytree_node=False)
    """Whether to return the attention weights, which not every kernel can."""

    def allowed(self) -> Bool[Array, "#b 1 #q k"]:
        """The mask as one array: True where a query may attend to a key."""
        return self.mask.dense(self.query.shape[2], self.keys.shape[2])


class Mechanism(Module):
    """Maps queries, keys and values to contexts. Its state, if it has one, passes from each decoding step to
    the next and follows its beam."""

    config: StackConfig
    keeps_past: ClassVar[bool] = True
    """Whether queries read the keys and values of all earlier tokens. Otherwise decoding passes only those of
    the new token, and all that remains of the others is its state."""

    def init_state(self, rows: int, beams: int, keys: int) -> State:
        """The state before the first step of decoding, arrays `[rows, beams, ...]`. None: it has none.

        Args:
          rows: number of rows, b.
          beams: number of beams of each, n.
          keys: number of keys; 0 for self-attention, where each step adds one.
        """
        return None

    def __call__(self, inputs: AttentionInputs) -> Attended:
        """The context of each query."""
        raise NotImplementedError
