"""Log-probabilities and cross-attention of given translations."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.forced import sown_attention
from transformer.decoding.scores import TokenScores, token_scores
from transformer.model.parameters import Variables
from transformer.model.transformer import cross_attention
from transformer.systems.nonautoregressive.model import NonAutoregressiveTransformer, copied_source


def initial_draft(
    model: NonAutoregressiveTransformer,
    variables: Variables,
    source: Int[Array, "b s"],
    target: Int[Array, "b t"],
) -> Int[Array, "b _"]:
    """The decoder's input in the first iteration, for translations as long as the target: it has no target
    tokens yet."""
    c = model.config
    is_token = target != c.special.pad
    if c.decoder_input == "bos":
        return jnp.full((target.shape[0], max(c.bos_length, target.shape[1])), c.special.bos)
    if c.decoder_input == "fertility":
        memory = model.apply(variables, source, method="encode")
        fertility = jnp.asarray(model.apply(variables, memory, method="plan")).argmax(axis=-1)
        fertility = jnp.where(source != c.special.pad, fertility, 0)
        return copied_source(source, fertility, is_token, c.special.pad)
    return jnp.where(is_token, c.special.bos, c.special.pad)


def nonautoregressive_scores(
    model: NonAutoregressiveTransformer,
    variables: Variables,
    source: Int[Array, "b s"],
    target: Int[Array, "b t"],
) -> TokenScores:
    """log P of each target token, with all predicted at once. The length is given, except for decoder input
    bos."""
    draft = initial_draft(model, variables, source, target)
    logits = jnp.asarray(model.apply(variables, source, draft))[:, : target.shape[1]]
    return token_scores(logits, target, model.config.special.pad)


def nonautoregressive_attention(
    model: NonAutoregressiveTransformer,
    variables: Variables,
    source: Int[Array, "b s"],
    target: Int[Array, "b t"],
) -> Float[Array, "b t s"]:
    """Cross-attention weights of each target position, averaged over layers and heads. The input of a masked
    decoder is the target, that of the others the initial draft."""
    draft = target
    if model.config.decoder_input != "masked":
        draft = initial_draft(model, variables, source, target)
    weights = sown_attention(cross_attention, model, variables, source, draft)[:, : target.shape[1]]
    return jax.lax.stop_gradient(weights)
