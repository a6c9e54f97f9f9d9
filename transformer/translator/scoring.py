"""A model's log-probabilities and alignments of given outputs."""

import functools

import flax.linen as nn
import jax
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


@functools.partial(jax.jit, static_argnums=(0, 1))
def aligned(
    system: System, model: nn.Module, variables: Variables, inputs: Inputs, target: Array
) -> Float[Array, "b t s"]:
    return system.required("alignment")(model, variables, inputs, target)
