"""The search of detection: the most probable class of each query."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.decoding.calls import Inputs, as_variables
from transformer.model.parameters import Variables
from transformer.systems.detection.options import DetectionDecodingConfig


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
