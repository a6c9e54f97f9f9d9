"""The encoder-decoder Transformer (section 3.1, Figure 1): a pure Linen module."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config import TransformerConfig
from transformer.model.attention import (
    Cache,
    Kept,
    KeysValues,
    Mask,
    MultiHeadAttention,
    appended,
    causal_mask,
    padding_mask,
    segment_mask,
    window_mask,
)
from transformer.model.encoder_decoder import EncoderDecoder, Segments
from transformer.model.layers import FeedForward, LayerNorm, Positions, Residual, positions_in


@struct.dataclass
class Memory:
    """The encoder's output, and a mask of the source without padding."""

    states: Float[Array, "b s m"]
    mask: Bool[Array, "b 1 1 s"]


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    config: TransformerConfig

    def setup(self) -> None:
        self.self_attention = MultiHeadAttention(self.config)
        self.self_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(self, x: Float[Array, "b s m"], mask: Mask, deterministic: bool) -> Float[Array, "b s m"]:
        def attend(x: Array) -> Array:
            keys_values = self.self_attention.keys_values(x)
            return self.self_attention(x, keys_values, mask, deterministic, self.config.window)

        x = self.self_residual(x, attend, deterministic)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, deterministic), deterministic)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, then feed-forward."""

    config: TransformerConfig

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
            keys_values = self.self_attention.keys_values(x)
            return self.self_attention(x, keys_values, self_mask, deterministic, self.config.window)

        x = self.self_residual(x, attend, deterministic)
        return self._rest(x, self.source_keys_values(memory), cross_mask, deterministic)

    def _rest(self, x: Array, source: KeysValues, cross_mask: Mask, deterministic: bool) -> Array:
        def attend(x: Array) -> Array:
            return self.cross_attention(x, source, cross_mask, deterministic)

        x = self.cross_residual(x, attend, deterministic)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, deterministic), deterministic)

    def source_keys_values(self, memory: Float[Array, "b s m"]) -> KeysValues:
        """Keys and values of this layer's cross-attention, projected once per sentence."""
        return self.cross_attention.keys_values(memory)

    def decode_step(
        self,
        x: Float[Array, "b n m"],
        kept: Kept,
        column: Int[Array, ""],
        self_mask: Bool[Array, "b 1 n columns"],
        source: KeysValues,
        source_mask: Mask,
    ) -> tuple[Float[Array, "b n m"], Kept]:
        """One new token in each of n beams. Also returns the cached keys and values, with the new ones at
        `column`."""

        def attend(x: Array) -> Array:
            nonlocal kept
            kept = appended(kept, self.self_attention.keys_values(x), column)
            return self.self_attention(x, kept, self_mask)

        x = self.self_residual(x, attend)
        return self._rest(x, source, source_mask, True), kept


class Transformer(EncoderDecoder):
    """The encoder-decoder Transformer."""

    config: TransformerConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        encoder_layer = nn.remat(EncoderLayer, static_argnums=(3,)) if c.remat else EncoderLayer
        decoder_layer = nn.remat(DecoderLayer, static_argnums=(5,)) if c.remat else DecoderLayer
        self.encoder = [encoder_layer(c) for _ in range(c.num_layers)]
        self.decoder = [decoder_layer(c) for _ in range(c.decoder_depth)]
        if c.norm == "pre":
            self.encoder_norm, self.decoder_norm = LayerNorm(c), LayerNorm(c)
        self.source_positions, self.target_positions = Positions(c), Positions(c)

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
        memory = self.encode(source, segments=segments and segments[0], deterministic=deterministic)
        return self.decode(memory, target, segments=segments, deterministic=deterministic)

    def decode(
        self,
        memory: Memory,
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        """The decoder stack."""
        time = target.shape[1]
        self_mask = causal_mask(time) & window_mask(time, self.config.window)
        cross_mask, positions = memory.mask, jnp.arange(time)
        if segments is not None:
            source_segments, target_segments = segments
            self_mask &= segment_mask(target_segments, target_segments)
            cross_mask = segment_mask(target_segments, source_segments)
            positions = positions_in(target_segments)
        x = self.target_positions(self.embed_target(target), positions, deterministic)
        for layer in self.decoder:
            x = layer(x, memory.states, self_mask, cross_mask, deterministic)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        """An empty cache for `beam_size` hypotheses of each sentence, of up to `length` tokens."""
        c, batch, columns = self.config, memory.states.shape[0], length * beam_size
        keys = jnp.zeros((batch, c.num_heads, columns, c.key_width), memory.states.dtype)
        values = jnp.zeros((batch, c.num_heads, columns, c.value_width), memory.states.dtype)
        return Cache(
            step=jnp.zeros((), jnp.int32),
            ancestors=jnp.zeros((batch, beam_size, columns), bool),
            keys=(keys,) * c.decoder_depth,
            values=(values,) * c.decoder_depth,
            source=tuple(layer.source_keys_values(memory.states) for layer in self.decoder),
            source_mask=memory.mask,
        )

    def decode_step(
        self, cache: Cache, tokens: Int[Array, "b n"], rng: Any = None
    ) -> tuple[Float[Array, "b n v"], Cache]:
        """Logits of the token after each beam's newest one, and the cache that includes the newest one.

        `rng` is for models that sample while decoding; this one does not.
        """
        hidden, cache = self.hidden_step(cache, tokens)
        return self.output(hidden), cache

    def hidden_step(self, cache: Cache, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n m"], Cache]:
        """`decode_step` before its `output`."""
        cache, mask = cache.begin_step(self.config.window)
        x = self.target_positions(self.embed_target(tokens), cache.step[None])
        one_layer, column, extended = DecoderLayer(self.config, parent=None), cache.step * cache.beams, []
        for layer, *kept, source in zip(self.decoder, cache.keys, cache.values, cache.source, strict=True):
            given = x, tuple(kept), column, mask, source, cache.source_mask
            x, keys_values = _traced_once(one_layer, layer.variables, *given)
            extended.append(keys_values)
        keys, values = zip(*extended, strict=True)
        cache = cache.replace(step=cache.step + 1, keys=keys, values=values)  # type: ignore[attr-defined]
        return self.decoder_norm(x) if self.config.norm == "pre" else x, cache


@functools.partial(jax.jit, static_argnums=0)
def _traced_once(layer: DecoderLayer, variables: Any, *given: Any) -> tuple[Array, Kept]:
    """`decode_step` of a layer, traced once and reused for identical layers, which shortens start-up."""
    return layer.apply(variables, *given, method="decode_step")  # type: ignore[return-value]


def cross_attention(
    model: Transformer, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, "b t s"]:
    """The attention of each target position to each source position, with teacher forcing: the mean over the
    decoder's layers and heads. Every row sums to 1."""
    _, sown = model.apply(variables, source, target, mutable=["intermediates"])
    layers = (sown["intermediates"][f"decoder_{i}"] for i in range(model.config.decoder_depth))
    weights = [layer["cross_attention"]["weights"][0] for layer in layers]
    return jnp.stack(weights).mean(axis=(0, 2))
