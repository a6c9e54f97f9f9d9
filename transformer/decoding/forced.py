"""Scores and alignments of given translations, by one pass with teacher forcing."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.scores import TokenScores, token_scores
from transformer.model.encoder_decoder import shift_right
from transformer.model.parameters import Variables

Attention = Callable[[Any, Variables, Array, Array], Float[Array, "b t s"]]


def forced_scores(
    model: nn.Module, variables: Variables, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> TokenScores:
    """log P of each target token, including <eos>."""
    special = model.config.special  # type: ignore[attr-defined]
    logits = jnp.asarray(model.apply(variables, source, shift_right(target, special.bos)))
    return token_scores(logits, target, special.pad)


def forced_alignment(attention: Attention) -> Attention:
    """Wraps `attention(model, variables, source, decoder_input)` as a function of the translation."""

    def alignment(
        model: nn.Module, variables: Variables, source: Int[Array, "b s"], target: Int[Array, "b t"]
    ) -> Float[Array, "b t s"]:
        special = model.config.special  # type: ignore[attr-defined]
        return attention(model, variables, source, shift_right(target, special.bos))

    return alignment
