"""Which keys each query may attend to."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


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
