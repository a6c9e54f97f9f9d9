"""Detection with Transformers (Carion et al. 2020): learned queries become objects, and the search takes the
most probable class of each."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.decoding.calls import Inputs, as_variables
from transformer.model.layers import ACTIVATIONS, Affine
from transformer.model.masks import Mask
from transformer.model.parameters import Variables, param
from transformer.model.positions import DistanceScores
from transformer.model.stack import Memory
from transformer.model.variants.patches import PatchTransformer
from transformer.systems.detection.options import DetectionConfig, DetectionDecodingConfig

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


# The search of detection: the most probable class of each query.


@struct.dataclass
class Found:
    """An object for each query, the most probable first."""

    classes: Int[Array, "b q"]
    scores: Float[Array, "b q"]
    """Probability of the class."""
    boxes: Float[Array, "b q 4"]
    """Centre, width and height, as shares of the picture."""
    is_shown: Bool[Array, "b q"]
    """Whether the score reaches the threshold."""


def detection_search(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    lines: Int[Array, " b"],
    options: DetectionDecodingConfig,
) -> Found:
    """The objects of each picture. No two of them need be suppressed: each query has been matched with one
    object (Carion et al. 2020).

    Args:
      inputs: `source`, pictures.
    """
    return _search(model, params, inputs["source"], options.threshold)


@functools.partial(jax.jit, static_argnames=("model",))
def _search(model: nn.Module, params: Variables, source: Array, threshold: float | Array) -> Found:
    predictions = model.apply(as_variables(params), source)
    p = jax.nn.softmax(predictions.classes[:, -1])[..., :-1]  # type: ignore[union-attr]
    order = jnp.argsort(-p.max(axis=-1), axis=1)
    scores = jnp.take_along_axis(p.max(axis=-1), order, axis=1)
    classes = jnp.take_along_axis(p.argmax(axis=-1), order, axis=1)
    boxes = jnp.take_along_axis(predictions.boxes[:, -1], order[..., None], axis=1)  # type: ignore[union-attr]
    return Found(classes, scores, boxes, scores >= threshold)
