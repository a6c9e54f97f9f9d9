"""A model's log-probabilities and alignments of given outputs."""

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.decoding.calls import Inputs
from transformer.decoding.scores import TokenScores
from transformer.model.parameters import Variables
from transformer.systems.system import System


@functools.partial(jax.jit, static_argnums=(0, 1))
def scored(
    system: System, model: nn.Module, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> TokenScores:
    return system.required("scores")(model, variables, inputs, target)


def without_start(
    of_tokens: Float[Array, "b t"], target: Int[np.ndarray, "b t"], start: Sequence[int]
) -> Float[np.ndarray, "b t"]:
    """Scores of tokens, where those that every output begins with cost nothing: as in a search, they are no
    choice of the model."""
    scores = np.array(of_tokens)
    is_start = np.logical_and.accumulate(target[:, : len(start)] == np.array(start), axis=1)
    scores[:, : len(start)][is_start] = 0
    return scores


@functools.partial(jax.jit, static_argnums=(0, 1))
def aligned(
    system: System, model: nn.Module, variables: Variables, inputs: Inputs, target: Array
) -> Float[Array, "b t s"]:
    return system.required("alignment")(model, variables, inputs, target)
