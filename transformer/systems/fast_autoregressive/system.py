"""AT and FAT."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.model.cache import Cache, States
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.layers import Dropout
from transformer.model.parameters import Module, declared, dense, param
from transformer.model.positions import sinusoids
from transformer.model.statistics import INTERMEDIATES
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.recurrent.system import attention, make_cell
from transformer.systems.system import autoregressive

# The encoders of AT, an LSTM, and of FAT, slow multi-head attention. Axes as in
# `transformer.model.attention`.


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


# AT and FAT, two recurrent-style systems of a blog article on "fast autoregressive Transformers", whose
# equations leave choices open. This is the reading of them here (docs/systems.md):


@struct.dataclass
class Source:
    """The encoded source, the same at every step of the decoder."""

    states: Float[Array, "b s m"]
    keys: Float[Array, "b s m"]
    ids: Int[Array, "b s"]
    mask: Bool[Array, "b s"]


@struct.dataclass
class Memory:
    """The encoded source, and the decoder's initial state."""

    source: Source
    start: Float[Array, "b 1 m"]


@struct.dataclass
class Words:
    """The decoder's input, for `t` steps of one hypothesis or one step of `n` hypotheses."""

    embedded: Float[Array, "b t m"]
    used: Bool[Array, "b t"]
    """False: skipped in the hybrid forward pass."""


@struct.dataclass
class Steps:
    """The output of the decoder, for `t` steps of one hypothesis or one step of `n` hypotheses."""

    states: Float[Array, "b t m"]
    contexts: Float[Array, "b t m"]
    inputs: Float[Array, "b t m"]
    """The gated words."""
    weights: Float[Array, "b t s"]


class DecoderStep(Module):
    """One step of the decoder."""

    config: FastAutoregressiveConfig

    def setup(self) -> None:
        c = self.config
        self.query, self.gate = dense(c.d_model), dense(c.d_model, use_bias=False)
        self.cell, self.dropout = make_cell("gru", c.d_model), Dropout(c.dropout)
        if c.weights == "additive":
            self.word = dense(c.d_model, use_bias=False)
            normal = nn.initializers.normal(c.d_model**-0.5)
            self.energy = param(self, "energy", normal, (c.d_model,), ("model",))
        else:
            zeros, shape = nn.initializers.zeros_init(), (c.table_size, c.table_size)
            self.table = param(self, "table", zeros, shape, (None, None))
            self.bias = param(self, "bias", zeros, (1,), (None,))

    def __call__(
        self,
        state: Float[Array, "b n m"],
        words: Words,
        position: Int[Array, "b"] | Int[Array, ""],
        source: Source,
        deterministic: bool,
    ) -> tuple[Float[Array, "b n m"], Steps]:
        """The new state, and the step's output.

        Args:
          state: h_{t-1}.
          words: y_{t-1}.
          position: t, of each row or of all.
          source: the encoded source.
          deterministic: whether to leave out dropout.
        """
        query = self.query(state)
        if self.config.weights == "additive":
            query += self.word(words.embedded)
        weights, context = self._attended(query, words.used, position, source)
        embedded = words.embedded * words.used[..., None]
        gated = self.dropout(embedded * self.gate(context), deterministic)
        state, _ = self.cell(state, gated)
        return state, Steps(state, context, gated, weights)

    def _attended(self, query: Array, used: Array, position: Array, source: Source) -> tuple[Array, Array]:
        """Weights and context; zeros for words that are not used, and not computed if none is."""

        def attend(query: Array) -> tuple[Array, Array]:
            weights = self.attention(query, position, source) * used[..., None]
            return weights, jnp.einsum("bns,bsm->bnm", weights, source.states)

        def skip(query: Array) -> tuple[Array, Array]:
            return jnp.zeros((*query.shape[:2], source.mask.shape[1])), jnp.zeros_like(query)

        if not self.config.hybrid:
            return attend(query)
        return jax.lax.cond(used.any(), attend, skip, query)  # type: ignore[no-any-return]

    def attention(
        self, query: Float[Array, "b n m"], position: Int[Array, "*b"], source: Source
    ) -> Float[Array, "b n s"]:
        """alpha. additive: softmax(v . ReLU(H h + W e + U y)); else, with the scores Omega = QueryMap(h) .
        KeyMap(e) / sqrt(d) + U[t, s] + b, softmax(Omega) or tanh(Omega) / sum over s of exp(Omega)."""
        allowed = source.mask[:, None, :]
        if self.config.weights == "additive":
            summed = jax.nn.relu(query[:, :, None, :] + source.keys[:, None, :, :])
            scores = summed @ self.energy
        else:
            scores = jnp.einsum("bnm,bsm->bns", query, source.keys) / math.sqrt(query.shape[-1])
            last = self.config.table_size - 1
            columns = jnp.minimum(jnp.arange(source.mask.shape[1]), last)
            row = self.table[jnp.minimum(position, last)][..., columns]
            scores += (row if row.ndim == 1 else row[:, None, :]) + self.bias
        scores = jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)
        if self.config.weights == "tanh":
            total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
            return jnp.where(allowed, jnp.tanh(scores) * jnp.exp(-total), 0)
        return jax.nn.softmax(scores)


class FastAutoregressive(EncoderDecoder):
    """AT and FAT."""

    config: FastAutoregressiveConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.encoder = ENCODERS[c.encoder](c)
        self.start, self.key = dense(c.d_model), dense(c.d_model, use_bias=False)
        self.decoder = DecoderStep(c)
        self.readout, self.dropout = dense(c.d_model), Dropout(c.dropout)

    def encode(self, source: Int[Array, "b s"], *, deterministic: bool = True) -> Memory:
        source_mask = self.source_mask(source)
        states = self.encoder(self.source_embedding(source), source_mask, deterministic)
        total = (states * source_mask[..., None]).sum(axis=1)
        mean = total / jnp.maximum(source_mask.sum(axis=1), 1)[:, None]
        start = jnp.tanh(self.start(mean))[:, None, :]
        return Memory(Source(states, self.key(states), source, source_mask), start)

    def decode(
        self,
        memory: Memory,
        decoder_input: Int[Array, "b t"],
        *,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        words = self._words(decoder_input, memory.source, embedded)
        scan = nn.scan(
            lambda step, state, word, position: step(state, word, position, memory.source, deterministic),
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True},
            in_axes=(1, 0),
            out_axes=1,
        )
        words = jax.tree.map(lambda x: x[:, :, None], words)
        _, steps = scan(self.decoder, memory.start, words, jnp.arange(decoder_input.shape[1]))
        steps = jax.tree.map(lambda x: x.squeeze(2), steps)
        self.sow(INTERMEDIATES, "weights", steps.weights)
        return self._read(steps, deterministic)

    def _words(self, tokens: Int[Array, "b t"], source: Source, embedded: Array | None = None) -> Words:
        """The input words, and which of them are used."""
        embedded = self.embed_target(tokens) if embedded is None else embedded
        if not self.config.hybrid:
            return Words(embedded, jnp.ones(tokens.shape, bool))
        occurs = ((tokens[:, :, None] == source.ids[:, None, :]) & source.mask[:, None, :]).any(axis=-1)
        first = tokens == self.config.special.bos
        frequent = tokens < self.config.frequent * self.config.vocab_size
        return Words(embedded, first | (occurs & frequent))

    def _read(self, steps: Steps, deterministic: bool = True) -> Float[Array, "b t m"]:
        """The first layer of the MLP; `output` is its second."""
        joined = jnp.concatenate([steps.states, steps.contexts, steps.inputs], axis=-1)
        return self.dropout(jnp.tanh(self.readout(joined)), deterministic)

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        """A cache of beams that are all in the initial state of the decoder."""
        start = jnp.repeat(memory.start, beam_size, axis=1)
        return Cache.empty((States(start),), memory.source, rows=len(start))

    def decode_step(self, cache: Cache, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Cache]:
        source: Any = cache.source
        (layer,) = cache.layers
        words = self._words(tokens, source)
        state, step = self.decoder(layer.value, words, cache.positions, source, True)
        layer = layer.append(state, cache.column, cache.positions)
        return self.output(self._read(step)), cache.end_step([layer])


SYSTEM = autoregressive(FastAutoregressive, attention)
