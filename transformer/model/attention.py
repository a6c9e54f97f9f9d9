"""Scaled dot-product and multi-head attention (section 3.2), its masks, and the decoding cache.

Axes: `b` batch, `h` heads, `q`/`k` query and key time, `d` depth, `n` beam, `m` d_model.
Heads come before time, `[b, h, time, d]`, which CPUs multiply several times faster.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config import TransformerConfig
from transformer.model.int8 import QuantizedMatrix, param_or_quantized
from transformer.model.layers import Dropout, linear

KeysValues = tuple[Float[Array, "b h k d_k"], Float[Array, "b h k d_v"]]
Kept = tuple[Float[Array, "b h columns d_k"], Float[Array, "b h columns d_v"]]  # cached
SMALLEST_BLOCK = 16  # in restricted attention: smaller products are no faster
Mask = Bool[Array, "#b #h #q k"]  # True: the query may attend to the key


def padding_mask(ids: Int[Array, "b k"], pad: int) -> Bool[Array, "b 1 1 k"]:
    """True for keys that are not padding."""
    return (ids != pad)[:, None, None, :]


def segment_mask(
    query_segments: Int[Array, "b q"], key_segments: Int[Array, "b k"]
) -> Bool[Array, "b 1 q k"]:
    """True for keys in the query's own sentence of a packed row (segments count from 1)."""
    return (query_segments[:, :, None] == key_segments[:, None, :])[:, None]


def causal_mask(time: int) -> Bool[Array, "1 1 q k"]:
    """True for keys no later than the query (section 3.2.3)."""
    return jnp.tril(jnp.ones((time, time), bool))[None, None]


def window_mask(time: int, window: int | None) -> Bool[Array, "1 1 q k"]:
    """True for keys at most `window` positions away (restricted self-attention, section 4)."""
    distance = jnp.abs(jnp.arange(time)[:, None] - jnp.arange(time)[None, :])
    return (distance <= (time if window is None else window))[None, None]


def attention_weights(
    query: Float[Array, "*heads q d_k"], key: Float[Array, "*heads k d_k"], mask: Bool[Array, "..."]
) -> Float[Array, "*heads q k"]:
    """softmax(Q K^T / sqrt(d_k)), the first half of Eq. 1, in float32."""
    scores = jnp.einsum("...qd,...kd->...qk", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores / math.sqrt(query.shape[-1]), jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores)


def local_blocks(x: Float[Array, "b h k d"], block: int) -> Float[Array, "b h _ _ d"]:
    """For each block of positions, those of the previous block, of itself and of the next block."""
    padded = jnp.pad(x, ((0, 0), (0, 0), (block, block + -x.shape[2] % block), (0, 0)))
    blocks = padded.reshape(*x.shape[:2], -1, block, x.shape[3])
    return jnp.concatenate([blocks[:, :, :-2], blocks[:, :, 1:-1], blocks[:, :, 2:]], axis=3)


def local_mask(mask: Mask, block: int) -> Bool[Array, "#b #h _ _ _"]:
    """The part of a `[q, k]` mask for the queries of each block and the keys of `local_blocks`."""
    padding = -mask.shape[2] % block
    padded = jnp.pad(mask, ((0, 0), (0, 0), (0, padding), (block, block + padding)))
    rows = jnp.arange(mask.shape[2] + padding).reshape(-1, block, 1)
    columns = jnp.arange(0, len(rows) * block, block)[:, None, None] + jnp.arange(3 * block)
    return padded[:, :, rows, columns]


def _fused_attention(
    query: Array, keys: Array, values: Array, mask: Array, implementation: str | None
) -> Array:
    def time_first(x: Array) -> Array:
        return jnp.swapaxes(x, 1, 2)

    full = (*mask.shape[:2], query.shape[2], keys.shape[2])
    context = jax.nn.dot_product_attention(
        time_first(query),
        time_first(keys),
        time_first(values),
        mask=jnp.broadcast_to(mask, full),
        implementation=implementation,  # type: ignore[arg-type]
    )
    return time_first(context)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V), section 3.2.2. Keys and values are projected separately from the query, so that
    decoding can cache them."""

    config: TransformerConfig

    def setup(self) -> None:
        c = self.config
        per_head = nn.initializers.glorot_uniform(in_axis=0, out_axis=(1, 2))
        merged = nn.initializers.glorot_uniform(in_axis=(0, 1), out_axis=2)
        self.query = param_or_quantized(self, "query", per_head, (c.d_model, c.num_heads, c.key_width))
        self.key = param_or_quantized(self, "key", per_head, (c.d_model, c.num_heads, c.key_width))
        self.value = param_or_quantized(self, "value", per_head, (c.d_model, c.num_heads, c.value_width))
        self.out = param_or_quantized(self, "out", merged, (c.num_heads, c.value_width, c.d_model))
        if c.attention_bias:
            zeros = nn.initializers.zeros_init()
            self.query_bias = self.param("query_bias", zeros, (c.num_heads, 1, c.key_width))
            self.key_bias = self.param("key_bias", zeros, (c.num_heads, 1, c.key_width))
            self.value_bias = self.param("value_bias", zeros, (c.num_heads, 1, c.value_width))
            self.out_bias = self.param("out_bias", zeros, (c.d_model,))
        self.dropout = Dropout(c.attention_dropout)

    def _project(self, x: Array, kernel: Array | QuantizedMatrix, bias: str) -> Array:
        # multiply in memory order, then move heads before time: a product directly to "bhtd" is strided
        projected = linear(x, kernel).reshape(*x.shape[:2], self.config.num_heads, -1).swapaxes(1, 2)
        return projected + getattr(self, bias).astype(x.dtype) if self.config.attention_bias else projected

    def keys_values(self, x: Float[Array, "b k m"]) -> KeysValues:
        """The keys and values of the positions of `x`."""
        return self._project(x, self.key, "key_bias"), self._project(x, self.value, "value_bias")

    def __call__(
        self,
        x: Float[Array, "b q m"],
        keys_values: KeysValues,
        mask: Mask,
        deterministic: bool = True,
        window: int | None = None,
    ) -> Float[Array, "b q m"]:
        """The attention output of the positions of `x`. The weights are sown as `intermediates/weights`.

        A `window` states that the mask does not allow larger distances. Then these are not computed either,
        and the cost is linear in the length.
        """
        query, (keys, values) = self._project(x, self.query, "query_bias"), keys_values
        block = max(window or query.shape[2], SMALLEST_BLOCK)
        if 4 * block <= query.shape[2] and not self.is_mutable_collection("intermediates"):
            context = self._local(query, keys, values, local_mask(mask, block), block, deterministic)
        elif self._fused(query.shape[2], deterministic):
            implementation = "cudnn" if _cudnn_runs(self.config) else None
            context = _fused_attention(query, keys, values, mask, implementation)
        else:
            weights = attention_weights(query, keys, mask)
            self.sow("intermediates", "weights", weights)
            weights = self.dropout(weights, deterministic).astype(x.dtype)
            context = jnp.einsum("bhqk,bhkd->bhqd", weights, values)
        concatenated = context.swapaxes(1, 2).reshape(*x.shape[:2], -1)
        merged = linear(concatenated, self.out)
        return merged + self.out_bias.astype(x.dtype) if self.config.attention_bias else merged

    def _local(
        self, query: Array, keys: Array, values: Array, mask: Array, block: int, deterministic: bool
    ) -> Array:
        """Restricted self-attention (section 4), block by block."""
        time = query.shape[2]
        query = jnp.pad(query, ((0, 0), (0, 0), (0, -time % block), (0, 0)))
        query = query.reshape(*query.shape[:2], -1, block, query.shape[3])
        weights = attention_weights(query, local_blocks(keys, block), mask)
        weights = self.dropout(weights, deterministic).astype(query.dtype)
        context = jnp.einsum("...qk,...kd->...qd", weights, local_blocks(values, block))
        return context.reshape(*context.shape[:2], -1, context.shape[4])[:, :, :time]

    def _fused(self, queries: int, deterministic: bool) -> bool:
        """Whether to use the fused kernel. It has no attention dropout, does not return the weights, requires
        d_v = d_k, and is no faster for the few queries of a decoding step."""
        c = self.config
        possible = (
            c.key_width == c.value_width
            and (deterministic or c.attention_dropout == 0)
            and not self.is_mutable_collection("intermediates")
        )
        if c.attention == "fused":
            return possible
        return c.attention == "auto" and possible and queries >= 16 and _cudnn_runs(c)


def _cudnn_runs(config: TransformerConfig) -> bool:
    shapes_fit = config.key_width % 8 == 0 and config.key_width <= 128
    return shapes_fit and config.dtype == "bfloat16" and jax.default_backend() == "gpu"


@struct.dataclass
class Cache:
    """The decoder cache of `n` beams in each of `b` sentences.

    Self-attention keys and values are only appended: step t of beam i is in column t * n + i. `ancestors`
    marks the columns of each beam's own past, so selecting parents reorders this small mask and never the
    cache. The source is projected once and shared by all beams, which are n queries of ordinary attention.
    """

    step: Int[Array, ""]
    ancestors: Bool[Array, "b n columns"]
    keys: tuple[Float[Array, "b h columns d_k"], ...]  # one of each per layer
    values: tuple[Float[Array, "b h columns d_v"], ...]
    source: tuple[KeysValues, ...]
    source_mask: Bool[Array, "b 1 1 s"]

    @property
    def beams(self) -> int:
        """Number of beams, n."""
        return self.ancestors.shape[1]

    def select(self, parents: Int[Array, "b n"]) -> "Cache":
        """The cache in which beam i continues beam parents[:, i]."""
        chosen = jnp.take_along_axis(self.ancestors, parents[:, :, None], axis=1)
        return self.replace(ancestors=chosen)  # type: ignore[attr-defined]

    def grow(self, length: int) -> "Cache":
        """The same cache with room for `length` steps."""
        more = length * self.beams - self.ancestors.shape[2]

        def pad(x: Array, axis: int) -> Array:
            return jnp.pad(x, [(0, more if a == axis else 0) for a in range(x.ndim)])

        return self.replace(  # type: ignore[attr-defined]
            ancestors=pad(self.ancestors, 2),
            keys=tuple(pad(x, 2) for x in self.keys),
            values=tuple(pad(x, 2) for x in self.values),
        )

    def begin_step(self, window: int | None) -> tuple["Cache", Bool[Array, "b 1 n columns"]]:
        """Adds each beam's new column to its past. Returns the cache and the mask for self-attention."""
        n, columns = self.beams, jnp.arange(self.ancestors.shape[2])
        own = columns[None, :] == self.step * n + jnp.arange(n)[:, None]
        ancestors = self.ancestors | own
        near = True if window is None else self.step - columns // n <= window
        return self.replace(ancestors=ancestors), (ancestors & near)[:, None]  # type: ignore[attr-defined]


def appended(kept: Kept, new: KeysValues, column: Int[Array, ""]) -> Kept:
    """The cached keys and values, with those of a step written at this column."""
    return tuple(  # type: ignore[return-value]
        jax.lax.dynamic_update_slice_in_dim(old, x.astype(old.dtype), column, axis=2)
        for old, x in zip(kept, new, strict=True)
    )
