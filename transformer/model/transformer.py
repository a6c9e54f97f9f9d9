"""The encoder-decoder Transformer (section 3.1, Figure 1): a pure Linen module."""

import functools
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.transformer import TransformerConfig
from transformer.model import kernels
from transformer.model.cache import Cache, KeysValues, join_heads
from transformer.model.encoder_decoder import Segments
from transformer.model.layers import Affine
from transformer.model.masks import Mask
from transformer.model.normalization import normalization
from transformer.model.parameters import Variables, variant
from transformer.model.positions import PositionEncoding, Positions, distance_scores, positions_in
from transformer.model.stack import DecoderLayer, LayerPast, Memory, TransformerEncoder, Views, keeps_past
from transformer.model.statistics import layers_sown

Newest = Int[Array, "b n"] | Float[Array, "b n bands"]
"""The newest token of each beam, or the last frame."""


class Transformer(TransformerEncoder):
    """The encoder-decoder Transformer."""

    config: TransformerConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        decoder_layer = nn.remat(DecoderLayer, static_argnums=(7,)) if c.remat else DecoderLayer
        self.decoder = [decoder_layer(c) for _ in range(c.decoder_depth)]
        if c.cross_view != "last":
            self.second_view = variant("views.VIEWS")[c.cross_view](c)
        if c.normalizes_output:
            self.decoder_norm = normalization(c)
        if c.of_encoder.d_model != c.d_model:
            self.bridge = Affine(c.d_model, ("hidden", "model"))
        self.target_positions = PositionEncoding(c)
        self.target_distances = distance_scores(c, is_causal=True)

    @nn.nowrap
    def source_mask(self, source: Array) -> Bool[Array, "b s"]:
        mask = super().source_mask(source)
        return mask if self.config.source_end else mask & (source != self.config.special.eos)

    def encode_embedded(
        self,
        embedded: Float[Array, "b s m"],
        source_mask: Bool[Array, "b s"],
        mask: Mask,
        positions: Positions,
        deterministic: bool = True,
        every_layer: bool = False,
    ) -> Memory:
        """The encoder stack, as wide as the decoder."""
        c = self.config
        memory = super().encode_embedded(
            embedded, source_mask, mask, positions, deterministic, every_layer or c.cross_view != "last"
        )
        if c.of_encoder.d_model == c.d_model:
            return memory
        layers = tuple(map(self.bridge, memory.layers))
        return replace(memory, states=self.bridge(memory.states), layers=layers)

    def views(self, memory: Memory) -> list[Views]:
        """What each decoder layer reads of the source."""
        if self.config.cross_view == "last":
            return [(memory.states,)] * self.config.decoder_depth
        return [(memory.states, other) for other in self.second_view(memory.layers)]

    def decode(
        self,
        memory: Memory,
        decoder_input: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        self_mask = self.decoder_mask(decoder_input)
        cross_mask = Mask(keys=memory.mask)
        positions = jnp.arange(decoder_input.shape[1])
        if segments is not None:
            source_segments, target_segments = segments
            self_mask = replace(self_mask, segments=(target_segments, target_segments))
            cross_mask = Mask(segments=(target_segments, source_segments))
            positions = positions_in(target_segments)
        if self.config.wait_k is not None:
            sources = jnp.arange(memory.mask.shape[1]) if segments is None else positions_in(segments[0])
            cross_mask = replace(cross_mask, pairs=self.has_arrived(sources, positions))
        embedded = self.embed_target(decoder_input) if embedded is None else embedded
        target_mask = decoder_input != self.config.special.pad
        x = self.target_positions(embedded, positions, deterministic, target_mask)
        shared_scores = self.target_distances(positions, positions)
        for layer, views in zip(self.decoder, self.views(memory), strict=True):
            x = layer(x, target_mask, views, self_mask, cross_mask, positions, deterministic, shared_scores)
        return self.decoder_norm(x, target_mask, deterministic) if self.config.normalizes_output else x

    def has_arrived(
        self, sources: Int[Array, "*#b s"], targets: Int[Array, "*#b t"]
    ) -> Bool[Array, "#b t s"]:
        """Whether a source token has arrived when a target token is predicted (wait-k, Ma et al. 2019, Eq.
        5), by their positions from 0."""
        assert self.config.wait_k is not None
        arrived = sources[..., None, :] < targets[..., :, None] + self.config.wait_k
        return arrived if arrived.ndim == 3 else arrived[None]

    def decoder_mask(self, decoder_input: Int[Array, "b t"]) -> Mask:
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
        if self.config.wait_k is not None:
            source_positions = jnp.arange(source_mask.shape[1])[None]
            source_mask &= self.has_arrived(source_positions, cache.positions[:, None])[:, 0]
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


def cross_attention(intermediates: Variables) -> Float[Array, "l b h t s"]:
    """The attention of each target position to each source position, in each decoder layer and head, from the
    collection that the model has sown. With two views, that to the last encoder layer."""
    layers = layers_sown(intermediates, "decoder")
    return jnp.stack([layer["cross_attention"]["weights"][0] for layer in layers])
