"""Which keys each query may attend to, and the contract of attention mechanisms. Axes as in
`transformer.model.attention`."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.transformer import StackConfig
from transformer.model.parameters import Module


@struct.dataclass
class Mask:
    """A mask by its parts, so that a kernel can use those it knows; `dense` combines them."""

    keys: Bool[Array, "b k"] | None = None
    """False for padding."""
    segments: tuple[Int[Array, "b q"], Int[Array, "b k"]] | None = None
    """For packed rows, the sentence of each query and of each key, from 1: a query attends to its own."""
    pairs: Bool[Array, "b q k"] | None = None
    """Any other condition on a query and a key."""
    causal: bool = struct.field(default=False, pytree_node=False)
    """Whether a query attends to no later keys (section 3.2.3)."""
    window: int | None = struct.field(default=None, pytree_node=False)
    """Maximum distance of a query and a key (restricted self-attention, section 4)."""

    def dense(self, queries: int, keys: int) -> Bool[Array, "#b 1 #q k"]:
        """True where a query may attend to a key. For `causal` and `window`, the last query is where the last
        key is."""
        distance = jnp.arange(keys - queries, keys)[:, None] - jnp.arange(keys)[None, :]
        parts = []
        if self.keys is not None:
            parts.append(self.keys[:, None, :])
        if self.segments is not None:
            parts.append(self.segments[0][:, :, None] == self.segments[1][:, None, :])
        if self.pairs is not None:
            parts.append(self.pairs)
        if self.causal:
            parts.append((distance >= 0)[None])
        if self.window is not None:
            parts.append((jnp.abs(distance) <= self.window)[None])
        allowed = jnp.ones((1, 1, keys), bool) if not parts else parts[0]
        for part in parts[1:]:
            allowed &= part
        return allowed[:, None]


def masked_softmax(scores: Float[Array, "..."], allowed: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Weights of float32 scores, zero where attention is not allowed."""
    return jax.nn.softmax(jnp.where(allowed, scores, jnp.finfo(jnp.float32).min))


# The contract of attention mechanisms. Axes as in `transformer.model.attention`.


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
    """State of the last decoding step; None in training."""
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
