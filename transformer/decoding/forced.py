"""Scores and alignments of given outputs, by one pass with teacher forcing."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.calls import Inputs, special_ids, whole
from transformer.decoding.scores import TokenScores, score_tokens
from transformer.model.encoder_decoder import decoder_input
from transformer.model.parameters import Variables
from transformer.model.statistics import INTERMEDIATES

Attentions = Callable[[Variables], Float[Array, "l b h t s"]]
"""(what the model has sown in "intermediates") -> its attention to the source, by layer and head."""
Alignment = Callable[[nn.Module, Variables, Inputs, Array], Float[Array, "b t s"]]
"""(model, variables, inputs, target) -> the attention of each target token; rows sum to 1."""


def forced_scores(
    model: nn.Module, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> TokenScores:
    """log P of each target token, including <eos>."""
    special = special_ids(model)
    logits = jnp.asarray(whole(model, variables, inputs, decoder_input(target, special)))
    return score_tokens(logits, target, special.pad)


def forced_alignment(attentions: Attentions) -> Alignment:
    """The mean attention over layers and heads, with teacher forcing."""

    def alignment(
        model: nn.Module, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
    ) -> Float[Array, "b t s"]:
        return sown_attention(attentions, model, variables, inputs, decoder_input(target, special_ids(model)))

    return alignment


def sown_attention(
    attentions: Attentions,
    model: nn.Module,
    variables: Variables,
    inputs: Inputs,
    decoder_input: Array,
) -> Float[Array, "b t s"]:
    """The mean attention over layers and heads in one pass, whose decoder reads this input."""
    _, sown = whole(model, variables, inputs, decoder_input, mutable=[INTERMEDIATES])
    return attentions(sown.get(INTERMEDIATES, {})).mean(axis=(0, 2))  # type: ignore[attr-defined]
