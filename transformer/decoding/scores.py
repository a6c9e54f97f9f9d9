"""What searches return, how long outputs may be, and how hypotheses of different lengths compare.

A hypothesis has the score log P(Y | X) / lp(|Y|) (Wu et al. 2016, Eq. 14), where |Y| counts <eos>.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

# The maximum lengths of outputs.


@struct.dataclass
class Limits:
    """The maximum length of each output, counting <eos>."""

    each: Int[Array, " b"]
    """0 for a row that only pads the batch."""
    longest: int = struct.field(pytree_node=False)
    """An upper bound of all, on which the compiled program depends."""


def source_limits(source: Int[Array, "b s"], pad: int, extra_length: int, max_length: int | None) -> Limits:
    """The limits of translations, relative to the lengths of their sources."""
    longest = source.shape[1] + extra_length
    longest = max(1, longest if max_length is None else min(longest, max_length))
    lengths = (source != pad).sum(axis=1)
    return Limits(jnp.where(lengths > 0, jnp.clip(lengths + extra_length, 1, longest), 0), longest)


NEVER = -jnp.inf
TopK = tuple[Float[Array, "b n k"], Int[Array, "b n k"]]
"""The k largest values of each row, and their columns."""


@struct.dataclass
class SearchResult:
    """Translations, best first. `tokens` end with <eos>, then <pad>. Empty slots have the score -inf."""

    tokens: Int[Array, "batch beam time"]
    scores: Float[Array, "batch beam"]
    """What they are ranked by: log P(Y | X) / lp(|Y|), with penalties and under the noise of the search."""
    log_probabilities: Float[Array, "batch beam"]
    """log P(Y | X) of the model alone, in nats."""


def _wu(length: Any, alpha: Any) -> Any:
    return ((5 + length) / 6) ** alpha


def _power(length: Any, alpha: Any) -> Any:
    return length**alpha


@struct.dataclass
class LengthPenalty:
    """What log-probabilities of outputs are divided by, a function of their length."""

    alpha: Any
    """The exponent, or that of each row."""
    function: Callable[[Any, Any], Any] = struct.field(pytree_node=False, default=_wu)
    """(|Y|, alpha) -> lp(Y). It must be monotonic in |Y|."""
    opening: int = struct.field(pytree_node=False, default=0)
    """The first tokens of an output that do not count."""

    def __call__(self, length: Any) -> Any:
        """lp(Y) of lengths |Y| that count <eos>: `[b, ...]` if each row has an exponent."""
        alpha = self.alpha
        if missing := np.ndim(alpha) and np.ndim(length) - np.ndim(alpha):
            alpha = alpha.reshape(*alpha.shape, *[1] * missing)
        if self.opening:
            length = jnp.maximum(length - self.opening, 1)
        return self.function(length, alpha)


def wu_penalty(alpha: Any) -> LengthPenalty:
    """lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, Eq. 14)."""
    return LengthPenalty(alpha, _wu)


def power_penalty(alpha: Any) -> LengthPenalty:
    """lp(Y) = |Y|^alpha, as in Marian and Hugging Face."""
    return LengthPenalty(alpha, _power)


def as_penalty(length_penalty: float | Callable[[Any], Any]) -> LengthPenalty:
    """The length penalty, given alpha of `wu_penalty` or a monotonic function of |Y|."""
    if not callable(length_penalty):
        return wu_penalty(length_penalty)
    if isinstance(length_penalty, LengthPenalty):
        return length_penalty
    return LengthPenalty(0.0, lambda length, alpha: length_penalty(length))


def for_rows(penalty: LengthPenalty, rows: int) -> LengthPenalty:
    """The same length penalty for so many rows."""
    alpha = jnp.broadcast_to(jnp.asarray(penalty.alpha, jnp.float32), (rows,))
    return penalty.replace(alpha=alpha)  # type: ignore[attr-defined, no-any-return]


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
