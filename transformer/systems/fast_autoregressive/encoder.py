"""The encoders of AT, an LSTM, and of FAT, slow multi-head attention. Axes as in
`transformer.model.attention`."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.model.dropout import Dropout
from transformer.model.parameters import Module, declared, dense
from transformer.model.positions import sinusoids
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.recurrent.model import make_cell

TINY = 1e-12  # keeps the gradient of a norm finite where its vector is zero


class LstmEncoder(Module):
    """Layers of LSTMs. Two directions have half of d_model each."""

    config: FastAutoregressiveConfig

    def setup(self) -> None:
        c = self.config
        self.layers = [self._layer() for _ in range(c.num_layers)]
        self.dropout = Dropout(c.dropout)

    def _layer(self) -> Any:
        if not self.config.bidirectional:
            return nn.RNN(make_cell("lstm", self.config.d_model))
        forward, backward = (nn.RNN(make_cell("lstm", self.config.d_model // 2)) for _ in range(2))
        return nn.Bidirectional(forward, backward)  # type: ignore[arg-type]

    def __call__(
        self, x: Float[Array, "b s m"], source_mask: Bool[Array, "b s"], deterministic: bool
    ) -> Float[Array, "b s m"]:
        """The states at every position, from embedded words."""
        for layer in self.layers:
            x = layer(self.dropout(x, deterministic), seq_lengths=source_mask.sum(axis=1))
        return x


class SlowAttention(Module):
    """A layer of slow multi-head attention, as a residual with layer normalisation:

        e[i, j] = || ReLU(QueryMap(Q_i) + KeyMap(K_j)) ||_2 / sqrt(d_key)

    Every head multiplies its context by an input gate, sigmoid(W h), as a gated linear unit does (Dauphin et
    al. 2017). Scores take q x k x d_key numbers of memory in each head."""

    config: FastAutoregressiveConfig

    def setup(self) -> None:
        c = self.config
        self.query, self.key, self.value, self.gate, self.out = (dense(c.d_model) for _ in range(5))
        self.query_map, self.key_map = (dense(c.d_model // c.num_heads) for _ in range(2))
        self.norm = nn.LayerNorm(
            scale_init=declared(nn.initializers.ones_init(), ("model",)),
            bias_init=declared(nn.initializers.zeros_init(), ("model",)),
        )
        self.dropout = Dropout(c.dropout)

    def __call__(
        self,
        x: Float[Array, "b s m"],
        below: Float[Array, "b s m"],
        allowed: Bool[Array, "b s s"],
        deterministic: bool,
    ) -> Float[Array, "b s m"]:
        """The layer's states.

        Args:
          x: embedded words, of which the queries are.
          below: the states of the layer below, of which keys, values and gates are.
          allowed: the positions that each may attend to.
          deterministic: whether to leave out dropout.
        """
        query, key = self.query_map(self._heads(self.query(x))), self.key_map(self._heads(self.key(below)))
        value, gate = self._heads(self.value(below)), jax.nn.sigmoid(self._heads(self.gate(below)))
        summed = jax.nn.relu(query[:, :, :, None] + key[:, :, None])  # b h q k d
        scores = jnp.sqrt(jnp.square(summed).sum(axis=-1) + TINY) / math.sqrt(key.shape[-1])
        weights = jax.nn.softmax(jnp.where(allowed[:, None], scores, jnp.finfo(jnp.float32).min))
        context = jnp.einsum("bhqk,bhkd->bhqd", self.dropout(weights, deterministic), value) * gate
        joined = self.out(context.swapaxes(1, 2).reshape(below.shape))
        return self.norm(below + self.dropout(joined, deterministic))

    def _heads(self, x: Float[Array, "b s m"]) -> Float[Array, "b h s d"]:
        return x.reshape(*x.shape[:2], self.config.num_heads, -1).swapaxes(1, 2)


class AttentionEncoder(Module):
    """Layers of slow multi-head attention over embedded words with sinusoidal positions."""

    config: FastAutoregressiveConfig

    def setup(self) -> None:
        self.layers = [SlowAttention(self.config) for _ in range(self.config.num_layers)]
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self, x: Float[Array, "b s m"], source_mask: Bool[Array, "b s"], deterministic: bool
    ) -> Float[Array, "b s m"]:
        """The states at every position, from embedded words."""
        positions = jnp.arange(x.shape[1])
        x = self.dropout(x + sinusoids(positions, x.shape[-1]), deterministic)
        allowed = (positions <= positions[:, None]) | self.config.bidirectional
        allowed = source_mask[:, None, :] & allowed
        states = x
        for layer in self.layers:
            states = layer(x, states, allowed, deterministic)
        return states


ENCODERS = {"lstm": LstmEncoder, "attention": AttentionEncoder}
