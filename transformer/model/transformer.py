"""The encoder-decoder Transformer (section 3.1, Figure 1): a pure Linen module."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config import ModelConfig
from transformer.model.attention import (
    Cache,
    KeysValues,
    Mask,
    MultiHeadAttention,
    causal_mask,
    padding_mask,
    segment_mask,
    window_mask,
)
from transformer.model.layers import Embedding, FeedForward, LayerNorm, Positions, Residual, positions_in

Segments = tuple[Int[Array, "b s"], Int[Array, "b t"]]
"""Which sentence of its row each source and target token belongs to, from 1; 0 is padding."""


@struct.dataclass
class Memory:
    """What the encoder made of the source, and which of it are words."""

    states: Float[Array, "b s m"]
    mask: Bool[Array, "b 1 1 s"]


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = MultiHeadAttention(self.config)
        self.self_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(self, x: Float[Array, "b s m"], mask: Mask, deterministic: bool) -> Float[Array, "b s m"]:
        def attend(x: Array) -> Array:
            return self.self_attention(x, self.self_attention.keys_values(x), mask, deterministic)

        x = self.self_residual(x, attend, deterministic)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, deterministic), deterministic)


class DecoderLayer(nn.Module):
    """Self-attention over what was said, attention over the source, then feed-forward."""

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = MultiHeadAttention(self.config)
        self.self_residual = Residual(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.cross_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "b t m"],
        memory: Float[Array, "b s m"],
        self_mask: Bool[Array, "#b #h t t"],
        cross_mask: Bool[Array, "#b #h #t s"],
        deterministic: bool,
    ) -> Float[Array, "b t m"]:
        def attend(x: Array) -> Array:
            return self.self_attention(x, self.self_attention.keys_values(x), self_mask, deterministic)

        x = self.self_residual(x, attend, deterministic)
        return self._rest(x, self.source_keys_values(memory), cross_mask, deterministic)

    def _rest(self, x: Array, source: KeysValues, cross_mask: Mask, deterministic: bool) -> Array:
        def attend(x: Array) -> Array:
            return self.cross_attention(x, source, cross_mask, deterministic)

        x = self.cross_residual(x, attend, deterministic)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, deterministic), deterministic)

    def source_keys_values(self, memory: Float[Array, "b s m"]) -> KeysValues:
        """The source as this layer's cross-attention sees it: projected once per sentence."""
        return self.cross_attention.keys_values(memory)

    def decode_step(
        self, x: Float[Array, "b n m"], cache: Cache, layer: int, self_mask: Mask
    ) -> tuple[Float[Array, "b n m"], KeysValues]:
        """One new token in each of n beams; also returns this layer's extended keys and values."""
        extended: KeysValues = cache.keys[layer], cache.values[layer]

        def attend(x: Array) -> Array:
            nonlocal extended
            extended = cache.append(layer, self.self_attention.keys_values(x))
            return self.self_attention(x, extended, self_mask)

        x = self.self_residual(x, attend)
        return self._rest(x, cache.source[layer], cache.source_mask, True), extended


class Transformer(nn.Module):
    """The model, whole. Variables stay outside: `model.apply(variables, source, target)`."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        if c.vocab_size < 1:
            raise ValueError("ModelConfig.vocab_size is not set")
        encoder_layer = nn.remat(EncoderLayer, static_argnums=(3,)) if c.remat else EncoderLayer
        decoder_layer = nn.remat(DecoderLayer, static_argnums=(5,)) if c.remat else DecoderLayer
        self.encoder = [encoder_layer(c) for _ in range(c.num_layers)]
        self.decoder = [decoder_layer(c) for _ in range(c.num_layers)]
        if c.norm == "pre":
            self.encoder_norm, self.decoder_norm = LayerNorm(c), LayerNorm(c)
        self.source_embedding = Embedding(c, c.vocab_size)
        if c.share_embeddings != "all":
            self.target_embedding = Embedding(c, c.output_size)
        if c.share_embeddings == "none":
            self.output_embedding = Embedding(c, c.output_size)
        self.source_positions, self.target_positions = Positions(c), Positions(c)

    def __call__(
        self,
        source: Int[Array, "b s"],
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t v"]:
        """Teacher forcing: logits of every next token.

        Args:
          source: ids, each sentence closed by <eos>, then <pad>.
          target: ids as the decoder is given them, <bos> first; logits[:, i] predict what
            follows target[:, :i+1].
          segments: where rows hold several sentences, which token belongs to which.
          deterministic: False draws dropout masks from the rng named "dropout".
        """
        return self.output(self.hidden(source, target, segments=segments, deterministic=deterministic))

    def encode(
        self,
        source: Int[Array, "b s"],
        *,
        segments: Int[Array, "b s"] | None = None,
        deterministic: bool = True,
    ) -> Memory:
        """The encoder stack."""
        time, words = source.shape[1], padding_mask(source, self.config.special.pad)
        mask = (words if segments is None else segment_mask(segments, segments)) & window_mask(
            time, self.config.window
        )
        positions = jnp.arange(time) if segments is None else positions_in(segments)
        x = self.source_positions(self.source_embedding(source), positions, deterministic)
        for layer in self.encoder:
            x = layer(x, mask, deterministic)
        return Memory(self.encoder_norm(x) if self.config.norm == "pre" else x, words)

    def hidden(
        self,
        source: Int[Array, "b s"],
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        """The decoder's last states, before `output`: the loss makes logits of them in slices."""
        source_segments, target_segments = segments or (None, None)
        memory = self.encode(source, segments=source_segments, deterministic=deterministic)
        time = target.shape[1]
        self_mask = causal_mask(time) & window_mask(time, self.config.window)
        cross_mask, positions = memory.mask, jnp.arange(time)
        if source_segments is not None and target_segments is not None:
            self_mask &= segment_mask(target_segments, target_segments)
            cross_mask = segment_mask(target_segments, source_segments)
            positions = positions_in(target_segments)
        x = self.target_positions(self._embed_target(target), positions, deterministic)
        for layer in self.decoder:
            x = layer(x, memory.states, self_mask, cross_mask, deterministic)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def output(self, hidden: Float[Array, "b t m"]) -> Float[Array, "b t v"]:
        """Logits, in float32."""
        table = self.unembedding().astype(hidden.dtype)
        return jnp.einsum("btm,vm->btv", hidden, table, preferred_element_type=jnp.float32)

    def unembedding(self) -> Float[Array, "v m"]:
        """The matrix before the softmax: `output` is its product with `hidden`."""
        match self.config.share_embeddings:
            case "all":
                return self.source_embedding.table
            case "target":
                return self.target_embedding.table
            case _:
                return self.output_embedding.table

    def _embed_target(self, ids: Int[Array, "b t"]) -> Float[Array, "b t m"]:
        shared = self.config.share_embeddings == "all"
        return self.source_embedding(ids) if shared else self.target_embedding(ids)

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        """An empty cache for `beam_size` continuations of each sentence, `length` tokens long."""
        c, batch, columns = self.config, memory.states.shape[0], length * beam_size
        keys = jnp.zeros((batch, c.num_heads, columns, c.key_width), memory.states.dtype)
        values = jnp.zeros((batch, c.num_heads, columns, c.value_width), memory.states.dtype)
        return Cache(
            step=jnp.zeros((), jnp.int32),
            ancestors=jnp.zeros((batch, beam_size, columns), bool),
            keys=(keys,) * c.num_layers,
            values=(values,) * c.num_layers,
            source=tuple(layer.source_keys_values(memory.states) for layer in self.decoder),
            source_mask=memory.mask,
        )

    def decode_step(
        self, cache: Cache, tokens: Int[Array, "b n"], rng: Any = None
    ) -> tuple[Float[Array, "b n v"], Cache]:
        """Logits of what follows each beam's newest token, and the cache that knows that token.

        `rng` is for models that draw while decoding; this one does not.
        """
        cache, mask = cache.begin_step(self.config.window)
        x = self.target_positions(self._embed_target(tokens), cache.step[None])
        extended = []
        for index, layer in enumerate(self.decoder):
            x, keys_values = layer.decode_step(x, cache, index, mask)
            extended.append(keys_values)
        keys, values = zip(*extended, strict=True)
        cache = cache.replace(step=cache.step + 1, keys=keys, values=values)  # type: ignore[attr-defined]
        return self.output(self.decoder_norm(x) if self.config.norm == "pre" else x), cache


def cross_attention(
    model: Transformer, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, "b t s"]:
    """How much each target position looked at each source position, with teacher forcing: the mean
    over the decoder's layers and heads. Every row sums to 1."""
    _, sown = model.apply(variables, source, target, mutable=["intermediates"])
    layers = (sown["intermediates"][f"decoder_{i}"] for i in range(model.config.num_layers))
    weights = [layer["cross_attention"]["weights"][0] for layer in layers]
    return jnp.stack(weights).mean(axis=(0, 2))
