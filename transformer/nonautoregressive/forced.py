"""What a parallel decoder makes of a given translation: its log-probability, and where it looked."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.model.transformer import cross_attention
from transformer.nonautoregressive.model import NonAutoregressiveTransformer, copied_places
from transformer.training.cross_entropy import cross_entropy


def undecided_draft(
    model: NonAutoregressiveTransformer, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Int[Array, "b _"]:
    """The first draft of a translation as long as the target: no word is decided."""
    c = model.config
    words = target != c.special.pad
    if c.decoder_input == "bos":
        return jnp.full((target.shape[0], max(c.bos_length, target.shape[1])), c.special.bos)
    if c.decoder_input == "fertility":
        memory = model.apply(variables, source, method="encode")
        fertility = jnp.asarray(model.apply(variables, memory, method="plan")).argmax(axis=-1)
        fertility = jnp.where(source != c.special.pad, fertility, 0)
        return copied_places(source, fertility, words, c.special.pad)
    return jnp.where(words, c.special.bos, c.special.pad)


def nonautoregressive_scores(
    model: NonAutoregressiveTransformer, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, " b"]:
    """log P of all words of the target at once, in nats, given how many there are."""
    draft = undecided_draft(model, variables, source, target)
    logits = jnp.asarray(model.apply(variables, source, draft))[:, : target.shape[1]]
    return -(cross_entropy(logits, target) * (target != model.config.special.pad)).sum(axis=1)


def nonautoregressive_attention(
    model: NonAutoregressiveTransformer, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, "b t s"]:
    """How much each place looked at each source position: the mean over layers and heads, of a
    masked decoder with all words decided, of others with none."""
    draft = target
    if model.config.decoder_input != "masked":
        draft = undecided_draft(model, variables, source, target)
    weights = cross_attention(model, variables, source, draft)[:, : target.shape[1]]
    return jax.lax.stop_gradient(weights)
