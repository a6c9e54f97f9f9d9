"""Scores and alignments of given outputs, by one pass with teacher forcing."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.decoding.calls import Inputs, special_ids
from transformer.model.encoder_decoder import decoder_argument, decoder_input
from transformer.model.parameters import Variables
from transformer.model.statistics import INTERMEDIATES


@struct.dataclass
class TokenScores:
    """How probable a model finds each token of given outputs; 0 for padding."""

    log_p: Float[Array, "b t"]
    """log P(token | what comes before it), in nats."""
    entropy: Float[Array, "b t"]
    """Entropy of the distribution from which the token comes, in nats."""


def score_tokens(logits: Float[Array, "b t v"], target: Int[Array, "b t"], pad: int) -> TokenScores:
    """Log-probabilities of the target tokens, and entropies, of a softmax over the vocabulary."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    chosen = jnp.take_along_axis(log_p, target[..., None], axis=-1)[..., 0]
    entropy = -(jnp.exp(log_p) * jnp.maximum(log_p, jnp.finfo(jnp.float32).min)).sum(axis=-1)
    is_token = target != pad
    return TokenScores(jnp.where(is_token, chosen, 0), jnp.where(is_token, entropy, 0))


def whole(
    model: nn.Module, variables: Variables, inputs: Inputs, decoder_input: Array, **options: Any
) -> Any:
    """The output of the model for all that its decoder reads, at once.

    Args:
      options: of `Module.apply`.
    """
    name = decoder_argument(type(model).__call__)
    arguments: dict[str, Any] = {**inputs, name: decoder_input, **options}
    return model.apply(variables, **arguments)


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
