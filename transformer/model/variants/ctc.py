"""Connectionist temporal classification (Graves et al. 2006): the probability of a text, summed over all ways
to divide the positions of the encoder among its tokens.

A path has a token or a blank at every position. It spells a text: repeated tokens count once, unless a blank
is between them, and blanks are dropped. The blank is the id of <pad>, which no text has; <bos> and <eos>,
which no path needs, have no probability.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import SpecialIds

NOTHING = -1e9
"""The logit of what has no probability. It is finite: gradients pass through it."""


def log_probs_of(logits: Float[Array, "b s v"], special: SpecialIds) -> Float[Array, "b s v"]:
    """log P of each token, and of the blank, at each position, in float32."""
    never = jnp.isin(jnp.arange(logits.shape[-1]), jnp.array([special.bos, special.eos]))
    return jax.nn.log_softmax(jnp.where(never, NOTHING, logits.astype(jnp.float32)))


def labels_of(target: Int[Array, "b t"], special: SpecialIds) -> Int[Array, "b t"]:
    """The tokens of targets without <eos>, then blanks."""
    return jnp.where(target == special.eos, special.pad, target)


def positions_needed(labels: Int[Array, "b t"], blank: int) -> Int[Array, " b"]:
    """The fewest positions of any path that spells a text: one for each token, and one for the blank between
    two that are equal."""
    is_token = labels != blank
    repeats = (labels[:, 1:] == labels[:, :-1]) & is_token[:, 1:]
    return is_token.sum(axis=1) + repeats.sum(axis=1)


def log_likelihoods(
    log_probs: Float[Array, "b s v"], mask: Bool[Array, "b s"], labels: Int[Array, "b t"], blank: int
) -> Float[Array, " b"]:
    """log P of texts (Graves et al. 2006, Eq. 8), differentiable.

    Args:
      log_probs: of each token at each position.
      mask: False for padding, which is at the end.
      labels: the tokens of each text, then blanks.
      blank: its id.

    Returns:
      log P of each. Where a text needs more positions than there are it is meaningless: see
      `positions_needed`.
    """
    absent = jnp.float32(labels == blank)
    loss: Array = optax.ctc_loss(log_probs, jnp.float32(~mask), labels, absent, blank_id=blank)
    return -loss
