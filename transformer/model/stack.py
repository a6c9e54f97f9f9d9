"""The layers of encoder and decoder, and the encoder (section 3.1, Figure 1)."""

from collections.abc import Callable
from dataclasses import replace

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.transformer import StackConfig, TransformerConfig
from transformer.model.attention import mechanism_of, self_attention, source_attention
from transformer.model.cache import ByRows, Cache, KeysValues, States
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.layers import FeedForward, Residual
from transformer.model.masks import Bias, Mask, State
from transformer.model.normalization import normalization
from transformer.model.parameters import Module, variant
from transformer.model.positions import PositionEncoding, Positions, distance_scores, positions_in

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
        """The past with new keys and values, and new states."""
        keys_values, states = new
        return LayerPast(self.past.append(keys_values, column, positions), States(states))

    def select(self, parents: Int[Array, "b n"]) -> "LayerPast":
        """Gathers the states."""
        return LayerPast(self.past, self.states.select(parents))

    def put_rows(self, rows: Int[Array, " r"], new: "LayerPast") -> "LayerPast":
        """The past with these rows' states before the first step."""
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
        shared_scores: Bias | None = None,
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
            self.recurrence = variant("recurrence.SSRU")(self.config)
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
        shared_scores: Bias | None = None,
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
        """Whether there is a recurrence instead of self-attention."""
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
    return config.decoder_recurrence == "none" and mechanism_of(config.mechanism).keeps_past


def mean(outputs: list[Array]) -> Array:
    """The mean of a layer's attention to each view."""
    return outputs[0] if len(outputs) == 1 else sum(outputs[1:], outputs[0]) / len(outputs)


# The encoder of the Transformer (section 3.1, the left half of Figure 1).


ENCODER = ("source_embedding", "source_positions", "source_distances", "encoder")
"""The modules of the encoder: what their names begin with."""


@struct.dataclass
class Memory:
    """What the decoder reads of the source."""

    states: Float[Array, "b s m"]
    """The output of the encoder's last layer."""
    mask: Bool[Array, "b s"]
    """False for padding."""
    layers: tuple[Float[Array, "b s m"], ...]
    """The output of every layer, if they were asked for; otherwise empty."""


class TransformerEncoder(EncoderDecoder):
    """Embeddings and the encoder stack. The options of the encoder are those of `config.of_encoder`."""

    config: StackConfig

    def setup(self) -> None:
        super().setup()
        c = self.config.of_encoder
        layer = nn.remat(EncoderLayer, static_argnums=(5,)) if c.remat else EncoderLayer
        self.encoder = [layer(c) for _ in range(c.num_layers)]
        if c.normalizes_output:
            self.encoder_norm = normalization(c)
        self.source_positions = PositionEncoding(c)
        self.source_distances = distance_scores(c, is_causal=False)

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
        mask = Mask(keys=source_mask) if segments is None else Mask(segments=(segments, segments))
        mask = replace(mask, window=self.config.window, causal=self.config.encodes_causally)
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
        normalizes = self.config.of_encoder.normalizes_output
        states = self.encoder_norm(x, source_mask, deterministic) if normalizes else x
        return Memory(states, source_mask, tuple(outputs) if every_layer else ())
