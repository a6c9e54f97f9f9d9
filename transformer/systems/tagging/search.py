"""The most probable label at every position."""

import functools
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int

from transformer.decoding.calls import Inputs, as_variables
from transformer.model.parameters import Variables
from transformer.systems.tagging.model import TaggingModel
from transformer.systems.tagging.options import TaggingDecodingConfig


class Labels(NamedTuple):
    """The label of every position, also of those that have none."""

    indices: Int[Array, "b s"]
    probabilities: Float[Array, "b s"]
    """Of these labels."""


def tagging_search(
    model: TaggingModel,
    params: Variables,
    inputs: Inputs,
    lines: Int[Array, " b"],
    options: TaggingDecodingConfig,
) -> Labels:
    """The most probable label at every position.

    Args:
      inputs: `source`, ids, each sentence closed by <eos>, then <pad>.
    """
    return _search(model, params, inputs["source"])


@functools.partial(jax.jit, static_argnames="model")
def _search(model: TaggingModel, params: Variables, source: Int[Array, "b s"]) -> Labels:
    logits: Any = model.apply(as_variables(params), source)
    probabilities = jax.nn.softmax(logits, axis=-1)
    return Labels(probabilities.argmax(axis=-1), probabilities.max(axis=-1))
