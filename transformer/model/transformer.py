"""The encoder-decoder Transformer (section 3.1, Figure 1): a pure Linen module."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config import StackConfig, TransformerConfig
from transformer.model import kernels
from transformer.model.attention import MECHANISMS, self_attention, source_attention
from transformer.model.cache import ByRows, Cache, KeysValues, States, join_heads
from transformer.model.encoder_decoder import EncoderDecoder, Segments
from transformer.model.layers import Affine, FeedForward, Residual
from transformer.model.masks import Mask
from transformer.model.mechanism import State
from transformer.model.normalization import normalization
from transformer.model.parameters import Module, Variables
from transformer.model.positions import DistanceScores, PositionEncoding, Positions, positions_in
from transformer.model.recurrence import SSRU
from transformer.model.statistics import layers_sown
from transformer.model.views import VIEWS


@struct.dataclass
class Memory:
    """What the decoder reads of the source."""

    states: Float[Array, "b s m"]
    """The output of the encoder's last layer."""
    mask: Bool[Array, "b s"]
    """False for padding."""
    layers: tuple[Float[Array, "b s m"], ...]
    """The output of every layer, if they were asked for; otherwise empty."""


Views = tuple[Float[Array, "b s m"], ...]
"""What a decoder layer reads of the source: states of the encoder, each of the same shape."""
LayerStates = tuple[State, tuple[State, ...]]
"""The states of self-attention, and of cross-attention to each view."""


@struct.dataclass
class LayerPast(ByRows):
    """The cache of a decoder layer: keys and values of self-attention, and the states of its attention
    mechanisms."""

    past: KeysValues
    states: States[LayerStates]

    def append(
        self, new: tuple[KeysValues, LayerStates], column: Int[Array, ""], positions: Int[Array, " b"]
    ) -> "LayerPast":
        """With new keys and values, and new states."""
        keys_values, states = new
        return LayerPast(self.past.append(keys_values, column, positions), States(states))

    def select(self, parents: Int[Array, "b n"]) -> "LayerPast":
        """Gathers the states."""
        return LayerPast(self.past, self.states.select(parents))

    def put_rows(self, rows: Int[Array, " r"], new: "LayerPast") -> "LayerPast":
        """With these rows' states before the first step."""
        return LayerPast(self.past, self.states.put_rows(rows, new.states))


class EncoderLayer(Module):
    """Self-attention, then feed-forward."""

    config: StackConfig

    def setup(self) -> None:
        self.self_attention = self_attention(self.config)
        self.self_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "b s m"],
        source_mask: Bool[Array, "b s"],
        mask: Mask,
        positions: Positions,
        deterministic: bool,
        shared_scores: Array | None = None,
    ) -> Float[Array, "b s m"]:
        def attend(x: Array) -> Array:
            keys_values = self.self_attention.keys_values(x, positions)
            return self.self_attention(
                x, keys_values, mask, (positions, positions), deterministic, shared_scores=shared_scores
            )[0]

        def transform(x: Array) -> Array:
            return self.feed_forward(x, deterministic)

        x = self.self_residual(x, attend, deterministic, source_mask)
        return self.feed_forward_residual(x, transform, deterministic, source_mask)


class DecoderLayer(Module):
    """Causal self-attention, cross-attention, then feed-forward."""

    config: TransformerConfig

    def setup(self) -> None:
        if self.config.decoder_recurrence == "ssru":
            self.recurrence = SSRU(self.config)
        else:
            self.self_attention = self_attention(self.config)
        self.self_residual = Residual(self.config)
        self.cross_attention = source_attention(self.config)
        self.cross_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "b t m"],
        target_mask: Bool[Array, "b t"],
        views: Views,
        self_mask: Mask,
        cross_mask: Mask,
        positions: Positions,
        deterministic: bool,
        shared_scores: Array | None = None,
    ) -> Float[Array, "b t m"]:
        """Training: all positions at once. `target_mask` is False for padding."""
        sources = self.source_keys_values(views)

        def attend(x: Array) -> Array:
            if self.is_recurrent:
                return self.recurrence(x, self_mask)
            keys_values = self.self_attention.keys_values(x, positions)
            return self.self_attention(
                x, keys_values, self_mask, (positions, positions), deterministic, shared_scores=shared_scores
            )[0]

        def attend_to_source(x: Array) -> Array:
            outputs = [
                self.cross_attention(x, source, cross_mask, deterministic=deterministic)[0]
                for source in sources
            ]
            return mean(outputs)

        return self._sublayers(x, attend, attend_to_source, deterministic, target_mask)

    def decode_step(
        self,
        x: Float[Array, "b n m"],
        layer_cache: "LayerPast",
        cache: Cache,
        sources: tuple[KeysValues, ...],
        cross_mask: Mask,
        shared_scores: Array | None = None,
    ) -> tuple[Float[Array, "b n m"], "LayerPast"]:
        """Decoding: one new token in each of n beams. Also returns the layer's cache, with the new token.

        Args:
          layer_cache: the layer's, with keys, values and states.
          cache: that of the decoder, without its layers.
          sources: keys and values of each view of the source.
          cross_mask: which positions of the source are there.
          shared_scores: what is added to the scores of self-attention in all layers.
        """
        past = layer_cache.past
        self_state, cross_states = layer_cache.states.value
        query_positions = cache.positions[:, None]

        def attend(x: Array) -> Array:
            nonlocal past, self_state
            if self.is_recurrent:
                x, self_state = self.recurrence.step(x, self_state)
                return x
            new = self.self_attention.keys_values(x, query_positions)
            if not keeps_past(self.config):
                x, self_state = self.self_attention(x, new, Mask(), state=self_state)
                return x
            past = past.append(new, cache.column, cache.positions)
            mask = cache.mask(self.config.window)
            positions = (query_positions, cache.key_positions())
            x, self_state = self.self_attention(
                x, past, mask, positions, state=self_state, shared_scores=shared_scores
            )
            return x

        def attend_to_source(x: Array) -> Array:
            nonlocal cross_states
            attended = [
                self.cross_attention(x, source, cross_mask, state=state)
                for source, state in zip(sources, cross_states, strict=True)
            ]
            cross_states = tuple(state for _, state in attended)
            return mean([x for x, _ in attended])

        x = self._sublayers(x, attend, attend_to_source, True)
        return x, LayerPast(past, States((self_state, cross_states)))

    @property
    def is_recurrent(self) -> bool:
        """Whether there is a recurrence in place of self-attention."""
        return self.config.decoder_recurrence != "none"

    def _sublayers(
        self,
        x: Array,
        attend: Callable[[Array], Array],
        attend_to_source: Callable[[Array], Array],
        deterministic: bool,
        target_mask: Bool[Array, "b t"] | None = None,
    ) -> Array:
        def transform(x: Array) -> Array:
            return self.feed_forward(x, deterministic)

        x = self.self_residual(x, attend, deterministic, target_mask)
        x = self.cross_residual(x, attend_to_source, deterministic, target_mask)
        return self.feed_forward_residual(x, transform, deterministic, target_mask)

    def init_states(self, rows: int, beams: int, sources: tuple[KeysValues, ...]) -> States[LayerStates]:
        """The states of both attention mechanisms before the first step of decoding."""
        cross = tuple(
            self.cross_attention.init_state(rows, beams, source.keys.shape[2]) for source in sources
        )
        mechanism = self.recurrence if self.is_recurrent else self.self_attention
        return States((mechanism.init_state(rows, beams), cross))

    def source_keys_values(self, views: Views) -> tuple[KeysValues, ...]:
        """Keys and values of this layer's cross-attention to each view, projected once per sentence."""
        return tuple(self.cross_attention.keys_values(view, jnp.arange(view.shape[1])) for view in views)


def keeps_past(config: TransformerConfig) -> bool:
    """Whether decoding caches the keys and values of earlier tokens."""
    return config.decoder_recurrence == "none" and MECHANISMS[config.mechanism].keeps_past


Newest = Int[Array, "b n"] | Float[Array, "b n bands"]
"""The newest token of each beam, or the last frame."""


class Transformer(EncoderDecoder):
    """The encoder-decoder Transformer."""

    config: TransformerConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        encoder = self.config.of_encoder
        encoder_layer = nn.remat(EncoderLayer, static_argnums=(5,)) if c.remat else EncoderLayer
        decoder_layer = nn.remat(DecoderLayer, static_argnums=(7,)) if c.remat else DecoderLayer
        self.encoder = [encoder_layer(encoder) for _ in range(c.num_layers)]
        self.decoder = [decoder_layer(c) for _ in range(c.decoder_depth)]
        self.second_view = VIEWS[c.cross_view](c)
        if encoder.normalizes_output:
            self.encoder_norm = normalization(encoder)
        if c.normalizes_output:
            self.decoder_norm = normalization(c)
        if encoder.d_model != c.d_model:
            self.bridge = Affine(c.d_model, ("hidden", "model"))
        self.source_positions = PositionEncoding(encoder)
        self.target_positions = PositionEncoding(c)
        self.source_distances = DistanceScores(encoder, is_causal=False)
        self.target_distances = DistanceScores(c, is_causal=True)

    def encode(
        self,
        source: Int[Array, "b s"],
        *,
        segments: Int[Array, "b s"] | None = None,
        deterministic: bool = True,
        every_layer: bool = False,
    ) -> Memory:
        """The encoder stack. With `every_layer` the memory has the output of each layer."""
        source_mask = self.source_mask(source)
        mask = Mask(keys=source_mask, window=self.config.window)
        if segments is not None:
            mask = Mask(segments=(segments, segments), window=self.config.window)
        return self.encode_embedded(
            self.source_embedding(source),
            source_mask,
            mask,
            jnp.arange(source.shape[1]) if segments is None else positions_in(segments),
            deterministic,
            every_layer,
        )

    def encode_embedded(
        self,
        embedded: Float[Array, "b s m"],
        source_mask: Bool[Array, "b s"],
        mask: Mask,
        positions: Positions,
        deterministic: bool = True,
        every_layer: bool = False,
    ) -> Memory:
        """The encoder stack on embedded inputs of any kind: adds positions, drops out, and runs the layers.

        Args:
          embedded: one vector for each position, as wide as the encoder.
          source_mask: False for padding.
          mask: of self-attention.
          positions: of the inputs.
          deterministic: False draws dropout masks.
          every_layer: whether the memory also has the output of each layer.
        """
        x = self.source_positions(embedded, positions, deterministic, source_mask)
        shared_scores = self.source_distances(positions, positions)
        outputs = []
        for layer in self.encoder:
            x = layer(x, source_mask, mask, positions, deterministic, shared_scores)
            outputs.append(x)
        c = self.config
        encoder = self.config.of_encoder
        states = self.encoder_norm(x, source_mask, deterministic) if encoder.normalizes_output else x
        layers = tuple(outputs) if every_layer or c.cross_view != "last" else ()
        if encoder.d_model != c.d_model:
            states = self.bridge(states)
            layers = tuple(map(self.bridge, layers))
        return Memory(states, source_mask, layers)

    def views(self, memory: Memory) -> list[Views]:
        """What each decoder layer reads of the source."""
        if self.config.cross_view == "last":
            return [(memory.states,)] * self.config.decoder_depth
        return [(memory.states, other) for other in self.second_view(memory.layers)]

    def decode(
        self,
        memory: Memory,
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        """The decoder stack."""
        self_mask = self.decoder_mask(target)
        cross_mask = Mask(keys=memory.mask)
        positions = jnp.arange(target.shape[1])
        if segments is not None:
            source_segments, target_segments = segments
            self_mask = replace(self_mask, segments=(target_segments, target_segments))
            cross_mask = Mask(segments=(target_segments, source_segments))
            positions = positions_in(target_segments)
        embedded = self.embed_target(target) if embedded is None else embedded
        target_mask = target != self.config.special.pad
        x = self.target_positions(embedded, positions, deterministic, target_mask)
        shared_scores = self.target_distances(positions, positions)
        for layer, views in zip(self.decoder, self.views(memory), strict=True):
            x = layer(x, target_mask, views, self_mask, cross_mask, positions, deterministic, shared_scores)
        return self.decoder_norm(x, target_mask, deterministic) if self.config.normalizes_output else x

    def decoder_mask(self, target: Int[Array, "b t"]) -> Mask:
        """The mask of the decoder's self-attention."""
        return Mask(causal=True, window=self.config.window)

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        c = self.config
        rows = memory.states.shape[0]
        has_past = keeps_past(c)
        columns = length * beam_size if has_past else 0
        keys = jnp.zeros((rows, c.num_heads, columns, c.key_width), memory.states.dtype)
        values = jnp.zeros((rows, c.num_heads, columns, c.value_width), memory.states.dtype)
        layers_views = zip(self.decoder, self.views(memory), strict=True)

        def joined(mechanism: str, keys_values: KeysValues) -> KeysValues:
            join = kernels.runs_with_joined_heads(mechanism, c.num_heads, beam_size)
            return jax.tree.map(join_heads, keys_values) if join else keys_values

        past = joined(c.mechanism, KeysValues(keys, values))
        sources = tuple(
            tuple(joined(c.cross_mechanism, keys_values) for keys_values in layer.source_keys_values(views))
            for layer, views in layers_views
        )
        layers = tuple(
            LayerPast(past, layer.init_states(rows, beam_size, source))
            for layer, source in zip(self.decoder, sources, strict=True)
        )
        ancestors = (beam_size, columns) if has_past else None
        return Cache.empty(layers, (sources, memory.mask), rows, ancestors)

    def decode_step(self, cache: Cache, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Cache]:
        hidden, cache = self.hidden_step(cache, tokens)
        return self.output(hidden), cache

    def hidden_step(self, cache: Cache, tokens: Newest) -> tuple[Float[Array, "b n m"], Cache]:
        """`decode_step` before its `output`."""
        cache = cache.begin_step()
        x = self.target_positions(self.embed_target(tokens), cache.positions[:, None])
        shared_scores = None
        if self.config.positions == "buckets":
            shared_scores = self.target_distances(cache.positions[:, None], cache.key_positions())
        one_layer = DecoderLayer(self.config, parent=None)
        shared = replace(cache, layers=(), source=())
        sources, source_mask = cache.source
        layers = []
        for layer, layer_cache, source in zip(self.decoder, cache.layers, sources, strict=True):
            x, layer_cache = _traced_once(
                one_layer,
                layer.variables,
                x,
                layer_cache,
                shared,
                source,
                Mask(keys=source_mask),
                shared_scores,
            )
            layers.append(layer_cache)
        return self.decoder_norm(x) if self.config.normalizes_output else x, cache.end_step(layers)


@functools.partial(jax.jit, static_argnums=0)
def _traced_once(layer: DecoderLayer, variables: Variables, *arguments: Any) -> tuple[Array, LayerPast]:
    """`decode_step` of a layer, traced once and reused for identical layers, which shortens start-up."""
    return layer.apply(variables, *arguments, method="decode_step")  # type: ignore[return-value]


def mean(outputs: list[Array]) -> Array:
    """The mean of a layer's attention to each view."""
    return outputs[0] if len(outputs) == 1 else sum(outputs[1:], outputs[0]) / len(outputs)


def cross_attention(intermediates: Variables) -> Float[Array, "l b h t s"]:
    """The attention of each target position to each source position, in each decoder layer and head, from the
    collection that the model has sown. With two views, that to the last encoder layer."""
    layers = layers_sown(intermediates, "decoder")
    return jnp.stack([layer["cross_attention"]["weights"][0] for layer in layers])
