"""Detection with Transformers (Carion et al. 2020): learned queries become objects."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.model.encoder import Memory
from transformer.model.layers import ACTIVATIONS, Affine
from transformer.model.masks import Mask
from transformer.model.parameters import param
from transformer.model.patches import PatchTransformer
from transformer.model.positions import DistanceScores
from transformer.systems.detection.options import DetectionConfig

BOX_LAYERS = 3


class Predictions(NamedTuple):
    """What each query predicts."""

    classes: Float[Array, "b *l q c"]
    """Logits, the last one of no object."""
    boxes: Float[Array, "b *l q 4"]
    """Centre, width and height, as shares of the picture."""


class DetectionTransformer(PatchTransformer):
    """The decoder reads learned queries instead of tokens, and predicts all objects at once."""

    config: DetectionConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        shape = (c.num_queries, c.d_model)
        self.queries = param(self, "queries", nn.initializers.normal(1.0), shape, (None, "model"))
        self.classifier = Affine(c.vocab_size + 1, ("model", None))
        self.box_inner = [Affine(c.d_model, ("model", "hidden")) for _ in range(BOX_LAYERS - 1)]
        self.box_outer = Affine(4, ("model", None))
        self.query_distances = DistanceScores(c, is_causal=False)

    def __call__(  # type: ignore[override]
        self, source: Float[Array, "b h w c"], *, deterministic: bool = True
    ) -> Predictions:
        """The predictions of every decoder layer, as [rows, layers, ...]."""
        memory = self.encode(source, deterministic=deterministic)
        return self.predictions(self.decode(memory, deterministic=deterministic))

    def decode(  # type: ignore[override]
        self, memory: Memory, *, deterministic: bool = True
    ) -> Float[Array, "b l q m"]:
        """The states of the queries after each decoder layer."""
        rows = memory.states.shape[0]
        queries = self.queries.astype(memory.states.dtype)
        x = jnp.broadcast_to(queries, (rows, *queries.shape))
        positions = jnp.arange(queries.shape[0])
        target_mask = jnp.broadcast_to(memory.mask.any(axis=1)[:, None], x.shape[:2])
        cross_mask = Mask(keys=memory.mask)
        shared_scores = self.query_distances(positions, positions)
        states = []
        for layer, views in zip(self.decoder, self.views(memory), strict=True):
            x = layer(x, target_mask, views, Mask(), cross_mask, positions, deterministic, shared_scores)
            states.append(x)
        stacked = jnp.stack(states, axis=1)  # rows first, as devices have them
        flat = stacked.reshape(rows, -1, stacked.shape[-1])  # one normalisation, for statistics of a batch
        if self.config.normalizes_output:
            flat = self.decoder_norm(flat, jnp.tile(target_mask, (1, len(states))), deterministic)
        return flat.reshape(stacked.shape)

    def predictions(self, states: Float[Array, "b l q m"]) -> Predictions:
        """The class and the box of each query, in float32."""
        inner: Callable[[Array], Array] = ACTIVATIONS["relu"]
        x = states.reshape(len(states), -1, states.shape[-1])
        classes = self.classifier(x)
        for layer in self.box_inner:
            x = inner(layer(x))
        boxes = jax.nn.sigmoid(self.box_outer(x).astype(jnp.float32))
        shape = states.shape[:-1]
        return Predictions(classes.astype(jnp.float32).reshape(*shape, -1), boxes.reshape(*shape, 4))
