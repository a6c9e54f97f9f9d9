"""Scores and alignments of given translations, by one pass with teacher forcing."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.scores import TokenScores, token_scores
from transformer.model.encoder_decoder import Source, decoder_input
from transformer.model.parameters import Variables
from transformer.model.statistics import INTERMEDIATES

Attentions = Callable[[Variables], Float[Array, "l b h t s"]]
"""(what the model has sown in "intermediates") -> its attention to the source, by layer and head."""
Alignment = Callable[[nn.Module, Variables, Array, Array], Float[Array, "b t s"]]
"""(model, variables, source, target) -> the attention of each target token; rows sum to 1."""


def forced_scores(
    model: nn.Module, variables: Variables, source: Source, target: Int[Array, "b t"]
) -> TokenScores:
    """log P of each target token, including <eos>."""
    special = model.config.special  # type: ignore[attr-defined]
    logits = jnp.asarray(model.apply(variables, source, decoder_input(target, special)))
    return token_scores(logits, target, special.pad)


def forced_alignment(attentions: Attentions) -> Alignment:
    """The mean attention over layers and heads, with teacher forcing."""

    def alignment(
        model: nn.Module, variables: Variables, source: Source, target: Int[Array, "b t"]
    ) -> Float[Array, "b t s"]:
        special = model.config.special  # type: ignore[attr-defined]
        return sown_attention(attentions, model, variables, source, decoder_input(target, special))

    return alignment


def sown_attention(
    attentions: Attentions,
    model: nn.Module,
    variables: Variables,
    source: Source,
    given: Array,
) -> Float[Array, "b t s"]:
    """The mean attention over layers and heads in one pass on these inputs of the decoder."""
    _, sown = model.apply(variables, source, given, mutable=[INTERMEDIATES])
    return attentions(sown.get(INTERMEDIATES, {})).mean(axis=(0, 2))  # type: ignore[attr-defined]
