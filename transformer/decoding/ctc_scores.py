"""A hook that adds CTC to the scores of a search: joint decoding (Watanabe et al. 2017; Hori et al. 2017).

The prefix score of an output h is log of the probability that CTC gives to all texts that begin with h. What
a token adds to it is how much less probable the longer beginning is; <eos> leaves only the text h itself. So
the prefix scores of an output sum to its log-likelihood, and none is positive.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.config import SpecialIds
from transformer.decoding.calls import STEERING
from transformer.decoding.scores import NEVER
from transformer.model.cache import Shared
from transformer.model.ctc import NOTHING

LOG_PROBS, POSITIONS = f"{STEERING}ctc", f"{STEERING}ctc_positions"
"""What a model gives of each input: log P of each token at each position of its encoder, and the number of
positions."""
NO_TOKEN = -1
Paths = tuple[Float[Array, "b n"], Float[Array, "b n"]]
"""log P of those that end in the last token, and in a blank."""


@struct.dataclass
class PrefixScores:
    """What CTC knows of each beam. Its probabilities are those of paths that spell the output, up to each
    position."""

    log_probs: Shared[Float[Array, "b s v"]]
    positions: Shared[Int[Array, " b"]]
    token: Float[Array, "b n s"]
    """log P of the paths that end in the last token."""
    blank: Float[Array, "b n s"]
    """log P of those that end in a blank."""
    prefix: Float[Array, "b n"]
    """The prefix score."""
    last: Int[Array, "b n"]
    """The last token; before the first, `NO_TOKEN`."""


@dataclass(frozen=True)
class CtcScores:
    """Ranks outputs by (1 - w) times log P of the model and w times log P of CTC.

    In a large vocabulary, a step scores only the tokens that are most probable without CTC, and <eos>.
    """

    ctc_weight: float
    special: SpecialIds
    fewest: int = 40
    """Candidates of a step that it scores; at least four for each beam."""

    penalises = True

    def init(self, inputs: Mapping[str, Array]) -> PrefixScores:
        """Before the first token: the paths of blanks."""
        log_probs, positions = inputs[LOG_PROBS], inputs[POSITIONS]
        log_probs = jnp.where(log_probs > NOTHING / 2, log_probs, NEVER)
        blank = jnp.cumsum(log_probs[..., self.special.pad], axis=1)
        return PrefixScores(
            Shared(log_probs),
            Shared(positions),
            token=jnp.full_like(blank, NEVER),
            blank=blank,
            prefix=jnp.zeros(len(blank)),
            last=jnp.full(len(blank), NO_TOKEN, jnp.int32),
        )

    def filter(
        self, logits: Float[Array, "b n v"], state: PrefixScores, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The sum of both log-probabilities."""
        size = logits.shape[-1]
        few = max(self.fewest, 4 * logits.shape[1])
        if size <= few:
            longer = _prefixes(state, jnp.broadcast_to(jnp.arange(size), logits.shape))
        else:
            _, tokens = jax.lax.top_k(logits, few)
            longer = jnp.full(logits.shape, NEVER)
            row, beam = jnp.ogrid[: logits.shape[0], : logits.shape[1]]
            longer = longer.at[row[..., None], beam[..., None], tokens].set(_prefixes(state, tokens))
        longer = jnp.where(jnp.arange(size) == self.special.eos, _whole(state)[..., None], longer)
        return self._weighed(logits, longer, state)

    def forced_end(self, log_p: Float[Array, "b n"], state: PrefixScores) -> Float[Array, "b n"]:
        """The same sum where the limit ends an output, so that its score is that of its text."""
        return self._weighed(log_p[..., None], _whole(state)[..., None], state)[..., 0]

    def _weighed(
        self, log_p: Float[Array, "b n k"], longer: Float[Array, "b n k"], state: PrefixScores
    ) -> Float[Array, "b n k"]:
        """The weighted sum of log P of tokens and of what CTC says of the outputs with them."""
        is_possible = (state.prefix > NEVER)[..., None]
        before = jnp.where(is_possible, state.prefix[..., None], 0)
        gain = jnp.where(is_possible, jnp.minimum(longer - before, 0), NEVER)
        return (1 - self.ctc_weight) * log_p + self.ctc_weight * gain

    def advance(self, tokens: Int[Array, "b n"], state: PrefixScores) -> PrefixScores:
        """The paths of longer outputs."""
        log_probs = state.log_probs.value[:, None]
        entered = _before(state, tokens[..., None])[..., 0]
        log_p = jnp.take_along_axis(log_probs, tokens[:, :, None, None], axis=3)[..., 0]
        log_p_of_blank = jnp.broadcast_to(log_probs[..., self.special.pad], log_p.shape)
        by_position = tuple(jnp.moveaxis(x, 2, 0) for x in (entered, log_p, log_p_of_blank))

        def step(paths: Paths, at: tuple[Array, ...]) -> tuple[Paths, Paths]:
            token, blank = paths
            entered, log_p, log_p_of_blank = at
            after = jnp.logaddexp(token, entered) + log_p, jnp.logaddexp(token, blank) + log_p_of_blank
            return after, after

        none = jnp.full(tokens.shape, NEVER)
        _, paths = jax.lax.scan(step, (none, none), by_position)
        token, blank = (jnp.moveaxis(x, 0, 2) for x in paths)
        prefix = _prefixes(state, tokens[..., None])[..., 0]
        return replace(state, token=token, blank=blank, prefix=prefix, last=tokens)


def _whole(state: PrefixScores) -> Float[Array, "b n"]:
    """log P of the outputs alone, which nothing follows."""
    last = jnp.maximum(state.positions.value - 1, 0)[:, None, None]
    return jnp.take_along_axis(jnp.logaddexp(state.token, state.blank), last, axis=2)[..., 0]


def _before(state: PrefixScores, tokens: Int[Array, "b n k"]) -> Float[Array, "b n s k"]:
    """log P of the paths up to each position after which a token may be the next one of the output: only
    after a blank, if the last one is the same."""
    at_start = jnp.where(state.last == NO_TOKEN, 0.0, NEVER)[..., None]

    def before(paths: Float[Array, "b n s"]) -> Float[Array, "b n s 1"]:
        return jnp.concatenate([at_start, paths[..., :-1]], axis=2)[..., None]

    is_last = (tokens == state.last[..., None])[:, :, None]
    return jnp.where(is_last, before(state.blank), before(jnp.logaddexp(state.token, state.blank)))


def _prefixes(state: PrefixScores, tokens: Int[Array, "b n k"]) -> Float[Array, "b n k"]:
    """The prefix scores of the outputs with each of these tokens."""
    log_probs = state.log_probs.value[:, None]
    if tokens.shape[-1] != log_probs.shape[-1]:
        log_probs = jnp.take_along_axis(log_probs, tokens[:, :, None], axis=3)
    is_there = jnp.arange(log_probs.shape[2])[:, None] < state.positions.value[:, None, None, None]
    return jax.nn.logsumexp(jnp.where(is_there, _before(state, tokens) + log_probs, NEVER), axis=2)
