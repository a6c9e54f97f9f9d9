"""The encoder of the Transformer (section 3.1, the left half of Figure 1)."""

from dataclasses import replace

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config import StackConfig
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.masks import Mask
from transformer.model.normalization import normalization
from transformer.model.positions import DistanceScores, PositionEncoding, Positions, positions_in
from transformer.model.stack import EncoderLayer

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
        self.source_distances = DistanceScores(c, is_causal=False)

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
