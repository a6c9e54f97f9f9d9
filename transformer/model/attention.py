"""Scaled dot-product attention and multi-head attention (section 3.2).

Axes: `b` batch, `h` heads, `q`/`k` query and key time, `d` depth, `n` beam, `m` d_model.
Heads come before time, `[b, h, time, d]`, which CPUs multiply several times faster.
"""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.config.transformer import StackConfig, TransformerConfig
from transformer.model import kernels
from transformer.model.cache import KeysValues
from transformer.model.layers import Dropout, drop
from transformer.model.masks import Attended, AttentionInputs, Bias, Mask, Mechanism, State, masked_softmax
from transformer.model.parameters import Module, QuantizedMatrix, linear, matrix, param, variant
from transformer.model.positions import SCHEMES, Positions
from transformer.model.statistics import INTERMEDIATES

Projection = tuple[Array | QuantizedMatrix, Array | None]
"""Matrix and bias."""


def attention_weights(
    query: Float[Array, "*heads q d_k"],
    keys: Float[Array, "*heads k d_k"],
    mask: Bool[Array, "..."],
    bias: Float[Array, "..."] | None = None,
) -> Float[Array, "*heads q k"]:
    """softmax(Q K^T / sqrt(d_k)), in float32."""
    scores = jnp.einsum("...qd,...kd->...qk", query, keys, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(query.shape[-1])
    return masked_softmax(scores if bias is None else scores + bias, mask)


class DotProductAttention(Mechanism):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (section 3.2.1, Eq. 1): the paper's mechanism. It has
    no state."""

    @nn.compact
    def __call__(self, inputs: AttentionInputs) -> Attended:
        dropout = Dropout(self.config.attention_dropout)

        def attention(
            query: Array, keys: Array, values: Array, mask: Array, bias: Array | None, key: Array | None
        ) -> tuple[Array, Array]:
            weights = attention_weights(query, keys, mask, bias)
            dropped = weights if key is None else drop(weights, key, dropout.rate)
            return jnp.einsum("...qk,...kd->...qd", dropped.astype(values.dtype), values), weights

        return *kernels.attend(self.config, inputs, attention, dropout.key), inputs.state


MECHANISMS: dict[str, type[Mechanism] | str] = {
    "dot-product": DotProductAttention,
    "linear": "recurrence.LinearAttention",
    "additive": "additive.AdditiveAttention",
    "location": "additive.LocationAttention",
    "monotonic": "additive.MonotonicAttention",
}
"""The mechanisms of `StackConfig.mechanism` and `TransformerConfig.cross_mechanism`. Those that the paper
does not have are named as `variant` finds them."""


def mechanism_of(name: str) -> type[Mechanism]:
    """The mechanism of that name in `MECHANISMS`."""
    return variant(MECHANISMS[name])  # type: ignore[no-any-return]


class MultiHeadAttention(Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    Keys and values are projected separately from the query, so that decoding can cache them.
    """

    config: StackConfig
    mechanism_name: str = "dot-product"
    """That of its mechanism in `MECHANISMS`."""
    scheme: str | None = None
    """What the position scheme does here, as `variant` finds it. None: nothing."""

    def setup(self) -> None:
        c = self.config
        self.query = self._heads("query", c.key_width)
        self.key = self._heads("key", c.key_width)
        self.value = self._heads("value", c.value_width)
        self.out = self._merge("out", c.value_width)
        self.mechanism = mechanism_of(self.mechanism_name)(c)
        self.positions = variant(self.scheme)(c) if self.scheme else None

    def _heads(self, name: str, width: int) -> Projection:
        """W^Q, W^K or W^V of all heads."""
        c = self.config
        glorot = nn.initializers.glorot_uniform(in_axis=0, out_axis=(1, 2))
        shape, axes = (c.d_model, c.num_heads, width), ("model", "heads", None)
        return matrix(self, name, glorot, shape, axes), self._bias(name, (c.num_heads, 1, width))

    def _merge(self, name: str, width: int) -> Projection:
        """The projection W^O of the joined heads."""
        c = self.config
        glorot = nn.initializers.glorot_uniform(in_axis=(0, 1), out_axis=2)
        shape, axes = (c.num_heads, width, c.d_model), ("heads", None, "model")
        return matrix(self, name, glorot, shape, axes, summed=(0, 1)), self._bias(name, (c.d_model,))

    def _bias(self, name: str, shape: tuple[int, ...]) -> Array | None:
        if not self.config.attention_bias or (name == "key" and not self.config.key_bias):
            return None
        axes = ("heads", None, None) if len(shape) == 3 else ("model",)
        return param(self, f"{name}_bias", nn.initializers.zeros_init(), shape, axes)

    def _project(self, x: Float[Array, "b t m"], projection: Projection) -> Float[Array, "b h t d"]:
        # multiply in memory order, then move heads before time: a product directly to "bhtd" is strided
        kernel, bias = projection
        projected = linear(x, kernel).reshape(*x.shape[:2], self.config.num_heads, -1).swapaxes(1, 2)
        return projected if bias is None else projected + bias.astype(x.dtype)

    def keys_values(self, x: Float[Array, "b k m"], positions: Positions) -> KeysValues:
        """The keys and values of `x`, whose elements are at these positions."""
        keys, values = self._project(x, self.key), self._project(x, self.value)
        return KeysValues(self.positions.keys(keys, positions) if self.positions else keys, values)

    def init_state(self, rows: int, beams: int, keys: int = 0) -> State:
        """The mechanism's state before the first step of decoding."""
        return self.mechanism.init_state(rows, beams, keys)

    def __call__(
        self,
        x: Float[Array, "b q m"],
        keys_values: KeysValues,
        mask: Mask,
        positions: tuple[Positions, Positions] | None = None,
        deterministic: bool = True,
        state: State = None,
        shared_scores: Bias | None = None,
    ) -> tuple[Float[Array, "b q m"], State]:
        """The output for each query in `x`, and the mechanism's new state. If the collection "intermediates"
        is mutable, the attention weights are sown there as `weights`.

        Args:
          x: the layer's input, from which the queries are projected.
          keys_values: those of the positions to attend to.
          mask: which of these each query may attend to.
          positions: of queries and keys. None for cross-attention, whose scores do not depend on them.
          deterministic: whether to disable dropout.
          state: of the mechanism, None at first.
          shared_scores: what is added to the scores in all layers.
        """
        query = self._project(x, self.query)
        if self.mechanism_name == "dot-product" and not self.config.scale_scores:
            query = query * math.sqrt(self.config.key_width)  # by which every kernel divides
        bias = shared_scores
        if self.positions and positions:
            bias = self.positions.scores(query, positions, mask.causal)
            query = self.positions.queries(query, positions[0])
        keys, values = keys_values.keys, keys_values.values
        needs_weights = self.is_mutable_collection(INTERMEDIATES)
        inputs = AttentionInputs(query, keys, values, mask, bias, state, deterministic, needs_weights)
        context, weights, state = self.mechanism(inputs)
        if needs_weights:
            self.sow(INTERMEDIATES, "weights", weights)
        concatenated = context.swapaxes(1, 2).reshape(*x.shape[:2], -1)
        return linear(concatenated, *self.out), state


def self_attention(config: StackConfig) -> MultiHeadAttention:
    """Multi-head attention with the config's position scheme."""
    return MultiHeadAttention(config, config.mechanism, SCHEMES[config.positions])


def source_attention(config: TransformerConfig) -> MultiHeadAttention:
    """Multi-head attention to the source, with the config's mechanism for it."""
    return MultiHeadAttention(config, config.cross_mechanism)
