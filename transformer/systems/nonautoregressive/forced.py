"""Log-probabilities and cross-attention of given translations."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.calls import Inputs, whole
from transformer.decoding.forced import sown_attention
from transformer.decoding.scores import TokenScores, score_tokens
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
        return jnp.full((target.shape[0], c.bos_length), c.mask)
    if c.decoder_input == "fertility":
        memory = model.apply(variables, source, method="encode")
        fertility = jnp.asarray(model.apply(variables, memory, method="plan")).argmax(axis=-1)
        fertility = jnp.where(source != c.special.pad, fertility, 0)
        return copied_source(source, fertility, is_token, c.special.pad)
    return jnp.where(is_token, c.mask, c.special.pad)


def nonautoregressive_scores(
    model: NonAutoregressiveTransformer,
    variables: Variables,
    inputs: Inputs,
    target: Int[Array, "b t"],
) -> TokenScores:
    """log P of each target token, with all predicted at once from the likeliest fertilities. The length is
    given, except for decoder input bos, where tokens beyond `bos_length` are impossible."""
    c = model.config
    draft = initial_draft(model, variables, inputs["source"], target)
    logits = _as_long(jnp.asarray(whole(model, variables, inputs, draft)), target)
    scores = score_tokens(logits, target, c.special.pad)
    is_token = target != c.special.pad
    beyond = is_token & (jnp.arange(target.shape[1]) >= draft.shape[1])
    return replace(scores, log_p=jnp.where(beyond, -jnp.inf, scores.log_p))


def nonautoregressive_attention(
    model: NonAutoregressiveTransformer,
    variables: Variables,
    inputs: Inputs,
    target: Int[Array, "b t"],
) -> Float[Array, "b t s"]:
    """Cross-attention weights of each target position, averaged over layers and heads. The input of a masked
    decoder is the target, that of the others the initial draft."""
    draft = target
    if model.config.decoder_input != "masked":
        draft = initial_draft(model, variables, inputs["source"], target)
    weights = sown_attention(cross_attention, model, variables, inputs, draft)
    return jax.lax.stop_gradient(_as_long(weights, target))


def _as_long(x: Float[Array, "b _ n"], target: Int[Array, "b t"]) -> Float[Array, "b t n"]:
    """What there is of each target position; zeros beyond the draft."""
    missing = max(0, target.shape[1] - x.shape[1])
    return jnp.pad(x, ((0, 0), (0, missing), (0, 0)))[:, : target.shape[1]]
