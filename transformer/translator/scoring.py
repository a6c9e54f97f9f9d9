"""What a model says of given translations: log-probabilities, alignments, coverage of the source."""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.decoding.scores import TokenScores
from transformer.model.encoder_decoder import Source
from transformer.model.parameters import Variables
from transformer.systems.system import System
from transformer.tasks.translation import Hypothesis

UNPAID = 1e-6  # the least attention of a source token, of which the coverage penalty takes the logarithm


@dataclasses.dataclass(frozen=True)
class Extras:
    """What else is wanted of every hypothesis; each takes another pass of the model."""

    alignments: bool = False
    token_scores: bool = False


@functools.partial(jax.jit, static_argnums=(0, 1))
def scored(
    system: System,
    model: nn.Module,
    variables: Variables,
    source: Source,
    target: Int[Array, "b t"],
) -> TokenScores:
    return system.required("scores")(model, variables, source, target)


@functools.partial(jax.jit, static_argnums=(0, 1))
def aligned(
    system: System,
    model: nn.Module,
    variables: Variables,
    source: Source,
    target: Array,
) -> Float[Array, "b t s"]:
    return system.required("alignment")(model, variables, source, target)


def covered(hypothesis: Hypothesis, beta: float) -> Hypothesis:
    """A hypothesis with the coverage penalty in its score: beta times the sum over source tokens of the
    logarithm of the attention that each has got, if that is less than 1 (Wu et al. 2016, Eq. 15).

    Args:
      hypothesis: with its alignment.
      beta: the weight.
    """
    assert hypothesis.alignment is not None
    paid = hypothesis.alignment[:, :-1].sum(axis=0)  # without the source's <eos>
    penalty = beta * float(np.log(np.clip(paid, UNPAID, 1)).sum())
    return dataclasses.replace(hypothesis, score=hypothesis.score + penalty)
