"""What searches return, and how hypotheses of different lengths compare.

A hypothesis has the score log P(Y | X) / lp(|Y|) (Wu et al. 2016, Eq. 14), where |Y| counts <eos>.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

LengthPenalty = Callable[[Float[Array, "..."]], Float[Array, "..."]]
NEVER = -jnp.inf


@struct.dataclass
class SearchResult:
    """Translations, best first. `tokens` end with <eos>, then <pad>. Empty slots have the score -inf."""

    tokens: Int[Array, "batch beam time"]
    scores: Float[Array, "batch beam"]
    """What they are ranked by: log P(Y | X) / lp(|Y|), with penalties and under the noise of the search."""
    log_probabilities: Float[Array, "batch beam"]
    """log P(Y | X) of the model alone, in nats."""


@functools.lru_cache
def wu_penalty(alpha: float) -> LengthPenalty:
    """lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, Eq. 14)."""
    return lambda length: ((5 + length) / 6) ** alpha


@functools.lru_cache
def power_penalty(alpha: float) -> LengthPenalty:
    """lp(Y) = |Y|^alpha, as in Marian and Hugging Face."""
    return lambda length: length**alpha


@functools.lru_cache
def after_opening(penalty: LengthPenalty, opening: int) -> LengthPenalty:
    """A length penalty that does not count the first tokens."""
    return lambda length: penalty(jnp.maximum(length - opening, 1))


def as_penalty(length_penalty: float | LengthPenalty) -> LengthPenalty:
    """The length penalty as a function of |Y|, given that function or alpha of `wu_penalty`."""
    return length_penalty if callable(length_penalty) else wu_penalty(length_penalty)


@struct.dataclass
class TokenScores:
    """How probable a model finds each token of given outputs; 0 for padding."""

    log_p: Float[Array, "b t"]
    """log P(token | what comes before it), in nats."""
    entropy: Float[Array, "b t"]
    """Of the distribution from which the token comes, in nats."""


def score_tokens(logits: Float[Array, "b t v"], target: Int[Array, "b t"], pad: int) -> TokenScores:
    """Those of a softmax."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    chosen = jnp.take_along_axis(log_p, target[..., None], axis=-1)[..., 0]
    entropy = -(jnp.exp(log_p) * jnp.maximum(log_p, jnp.finfo(jnp.float32).min)).sum(axis=-1)
    is_token = target != pad
    return TokenScores(jnp.where(is_token, chosen, 0), jnp.where(is_token, entropy, 0))


def in_order(
    tokens: Int[Array, "b n t"], scores: Float[Array, "b n"], log_p: Float[Array, "b n"]
) -> SearchResult:
    """Sorts complete translations by score, best first."""
    order = jnp.argsort(-scores, axis=1)
    tokens = jnp.take_along_axis(tokens, order[:, :, None], axis=1)
    return SearchResult(tokens, *(jnp.take_along_axis(x, order, axis=1) for x in (scores, log_p)))


def lengths(tokens: Int[Array, "b n t"], pad: int) -> Float[Array, "b n"]:
    """|Y| of translations, counting <eos>; 1 for empty rows, since it is a divisor."""
    return jnp.maximum((tokens != pad).sum(axis=-1), 1).astype(jnp.float32)
