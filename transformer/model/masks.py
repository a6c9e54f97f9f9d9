"""Which keys each query may attend to, and the contract of attention mechanisms. Axes as in
`transformer.model.attention`."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.transformer import StackConfig
from transformer.model.parameters import Module, platform

Part = tuple[Int[Array, ""], int]
"""Some of the queries: the first of them, and their number."""
Bias = Float[Array, "#b h #q k"] | Callable[..., Any]
"""A term of the scores; or a function that returns it for a part of the queries (None: for all)."""


def taken(x: Array, part: Part | None, axis: int) -> Array:
    """The part of x along the axis of queries, if it has one for each."""
    return x if part is None or x.shape[axis] == 1 else jax.lax.dynamic_slice_in_dim(x, *part, axis)


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

    def dense(self, queries: int, keys: int, part: Part | None = None) -> Bool[Array, "#b 1 #q k"]:
        """True where a query, of all or of a part, may attend to a key. For `causal` and `window`, the last
        query is where the last key is."""
        first, count = part or (0, queries)
        distance = (keys - queries + first + jnp.arange(count))[:, None] - jnp.arange(keys)[None, :]
        parts = []
        if self.keys is not None:
            parts.append(self.keys[:, None, :])
        if self.segments is not None:
            parts.append(taken(self.segments[0], part, 1)[:, :, None] == self.segments[1][:, None, :])
        if self.pairs is not None:
            parts.append(taken(self.pairs, part, 1))
        if self.causal:
            parts.append((distance >= 0)[None])
        if self.window is not None:
            parts.append((jnp.abs(distance) <= self.window)[None])
        allowed = jnp.ones((1, 1, keys), bool) if not parts else parts[0]
        for condition in parts[1:]:
            allowed &= condition
        return allowed[:, None]


MOST_PAIRS = {"gpu": 2**22}  # of a query and a key for an array of all; elsewhere 2^20, 4 MB for each head


def is_long(queries: int, keys: int) -> bool:
    """Whether they have too many pairs for an array of all."""
    return queries * keys > MOST_PAIRS.get(platform(), 2**20)


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
    bias: Bias | None = None
    """The position scheme's term of the scores."""
    state: State = None
    """State of the last decoding step; None in training."""
    deterministic: bool = struct.field(default=True, pytree_node=False)
    """Whether to disable dropout."""
    needs_weights: bool = struct.field(default=False, pytree_node=False)
    """Whether to return the attention weights, which not every kernel can."""

    def allowed(self, part: Part | None = None) -> Bool[Array, "#b 1 #q k"]:
        """The mask as one array: True where a query may attend to a key."""
        return self.mask.dense(self.query.shape[2], self.keys.shape[2], part)

    def dense_bias(self, part: Part | None = None) -> Float[Array, "#b h #q k"] | None:
        """The bias as one array."""
        if self.bias is None or isinstance(self.bias, jax.Array):
            return self.bias if self.bias is None else taken(self.bias, part, 2)
        return self.bias(part)  # type: ignore[no-any-return]

    @property
    def is_long(self) -> bool:
        """Whether there are too many pairs for an array of all."""
        return is_long(self.query.shape[2], self.keys.shape[2])


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
