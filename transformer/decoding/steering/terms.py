"""Outputs in which given words and phrases occur: beam search with dynamic beam allocation.

Beams are divided among banks by how many tokens of their phrases they have (Post and Vilar 2018), in arrays
as in Hu et al. (2019): the best of each bank first, then the second of each, and so on. To what the model
suggests come the tokens that continue a phrase. <eos> follows only when all phrases are complete. Scores stay
those of the model, so the bound at which a sentence is done still holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from transformer.config.model import SpecialIds
from transformer.data.sequences import Field, Fields
from transformer.decoding.beam import BeamSearch, Candidates
from transformer.decoding.hooks import EqualByContent, SearchHook
from transformer.decoding.scores import NEVER
from transformer.decoding.slots import Slots
from transformer.decoding.steps import Predicted

NONE = -1  # stands for no token
LONGEST = 32  # tokens of a phrase
SIZES = (4, 16)  # different phrases of a sentence that a program has room for
PHRASES, TIMES = "steer_phrases", "steer_times"


@struct.dataclass
class Progress:
    """What beams have of their phrases. c is the number of beams, or of candidates."""

    phrases: Int[Array, "b n p t"]
    """The tokens of each; -1 after the last."""
    times: Int[Array, "b n p"]
    """How often each phrase must occur."""
    matched: UInt32[Array, "b c p"]
    """Bit i is set if the last i + 1 tokens are the first ones of the phrase."""
    occurrences: Int[Array, "b c p"]
    """How often it has occurred, followed by the end of a word."""

    @property
    def length(self) -> Int[Array, "b n p"]:
        """The number of tokens of each phrase."""
        return (self.phrases != NONE).sum(axis=-1)

    @property
    def total(self) -> Int[Array, " b"]:
        """The number of tokens of all phrases."""
        return (self.length * self.times)[:, 0].sum(axis=-1)

    @property
    def complete(self) -> Bool[Array, "b c p"]:
        """Whether the last token may be the last of a phrase: it is if no letters follow."""
        return (self.matched >> jnp.maximum(self.length[:, :1] - 1, 0).astype(jnp.uint32)) & 1 == 1

    @property
    def missing(self) -> Int[Array, "b c p"]:
        """How often each phrase must still occur."""
        return jnp.maximum(self.times[:, :1] - self.occurrences - self.complete, 0)

    @property
    def partly(self) -> Int[Array, "b c p"]:
        """The number of tokens of each phrase that is missing and has begun."""
        matched = jnp.where((self.missing > 0) & ~self.complete, self.matched, 0)
        return 32 - jax.lax.clz(matched).astype(jnp.int32)

    @property
    def met(self) -> Int[Array, "b c"]:
        """The number of tokens of phrases that the beam has."""
        whole = (self.times[:, :1] - self.missing) * self.length[:, :1]
        return whole.sum(axis=-1) + self.partly.max(axis=-1)

    def after(
        self, parent: Int[Array, "b c"] | None, tokens: Int[Array, "b c"], ends: Bool[Array, "b c"]
    ) -> "Progress":
        """The progress after tokens.

        Args:
          parent: the beam that each of them continues. None: token i continues beam i.
          tokens: the tokens.
          ends: whether the word before a token ends there.
        """
        matched, occurrences, complete = self.matched, self.occurrences, self.complete
        if parent is not None:
            matched, occurrences, complete = (
                jnp.take_along_axis(x, parent[..., None], axis=1) for x in (matched, occurrences, complete)
            )
        whole = complete & ends[..., None]
        positions = jnp.arange(self.phrases.shape[-1], dtype=jnp.uint32)
        same = self.phrases[:, :1] == tokens[..., None, None]
        hits = (same.astype(jnp.uint32) << positions).sum(axis=-1, dtype=jnp.uint32)
        matched = ((jnp.where(whole, 0, matched) << 1) | 1) & hits
        return replace(self, matched=matched, occurrences=occurrences + whole)


class Terms(EqualByContent, SearchHook):
    """A hook that lets an output end only when it has all its phrases. The search allots its beams by it
    (`ConstrainedBeam`).

    Args:
      size: how many different phrases a sentence may have.
      ends: for each id, whether it ends the word before it, since it does not begin with a letter that
        continues it. Empty: all do.
      special: the special ids.
    """

    def __init__(self, size: int, ends: Sequence[bool], special: SpecialIds) -> None:
        self.size = size
        self._ends = np.array(ends, bool)
        self.special = special
        super().__init__(size, self._ends.tobytes(), special)

    @property
    def fields(self) -> Fields:
        """What the search reads of each input: phrases, and how often each must occur."""
        return {
            PHRASES: Field(fill=NONE, shape=(self.size, LONGEST), padded=False),
            TIMES: Field(shape=(self.size,), padded=False),
        }

    def example(self, phrases: Mapping[tuple[int, ...], int]) -> dict[str, Any]:
        """The arrays of one input, from its phrases and how often each must occur."""
        tokens = np.full((self.size, LONGEST), NONE, np.int32)
        times = np.zeros(self.size, np.int32)
        for row, (phrase, count) in enumerate(phrases.items()):
            tokens[row, : len(phrase)], times[row] = phrase, count
        return {PHRASES: tokens, TIMES: times}

    def init(self, inputs: Mapping[str, Array]) -> Progress:
        times = inputs[TIMES]
        return Progress(inputs[PHRASES], times, jnp.zeros(times.shape, jnp.uint32), jnp.zeros_like(times))

    def filter(
        self, logits: Float[Array, "b n v"], state: Progress, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """Forbids <eos> while a phrase is missing."""
        early = (state.met < state.total[:, None])[..., None]
        return jnp.where(early & (jnp.arange(logits.shape[-1]) == self.special.eos), -jnp.inf, logits)

    def advance(self, tokens: Int[Array, "b n"], state: Progress) -> Progress:
        return state.after(None, tokens, self.ends(tokens))

    def ends(self, tokens: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether tokens end the word before them."""
        if not len(self._ends):
            return jnp.ones(tokens.shape, bool)
        return jnp.asarray(self._ends)[jnp.minimum(tokens, len(self._ends) - 1)] | (tokens >= len(self._ends))

    def continuations(self, logits: Float[Array, "b n v"], state: Progress) -> Int[Array, "b n w"]:
        """The tokens that would continue a phrase of each beam, and the best that ends a word where a phrase
        is complete; -1 is none."""
        position = state.partly[..., None]
        tokens = jnp.take_along_axis(state.phrases, jnp.minimum(position, LONGEST - 1), axis=-1)[..., 0]
        tokens = jnp.where(state.missing > 0, tokens, NONE)
        if not len(self._ends):
            return tokens
        complete = state.complete.any(axis=-1, keepdims=True)

        def best(logits: Array) -> Array:
            vocabulary = jnp.arange(logits.shape[-1])
            able = jnp.where(self.ends(vocabulary), logits, NEVER)
            first = jnp.where(able == able.max(axis=-1, keepdims=True), vocabulary, len(vocabulary))
            return first.min(axis=-1, keepdims=True).astype(tokens.dtype)  # faster than argmax on CPUs

        ending = jax.lax.cond(complete.any(), best, lambda logits: jnp.zeros_like(tokens[..., :1]), logits)
        return jnp.concatenate([tokens, jnp.where(complete, ending, NONE)], axis=-1)


@dataclass(frozen=True)
class ConstrainedBeam(BeamSearch):
    """The strategy of a beam search with terms.

    Args:
      terms: the hook that says which there must be.
      index: of its state in that of `Hooks`.
    """

    terms: Any = None
    index: int = 0

    def state(self, slots: Slots) -> Progress:
        """The progress of all beams."""
        progress: Progress = slots.hooks.value[self.index]
        return progress

    def met(self, state: Progress, parent: Int[Array, "b c"], token: Int[Array, "b c"]) -> Int[Array, "b c"]:
        """The number of tokens of phrases that continuations of the beams have: their banks."""
        return state.after(parent, token, self.terms.ends(token)).met

    def candidates(self, slots: Slots, predicted: Predicted) -> Candidates:
        """The 2n that come first, when the banks take turns."""
        state = self.state(slots)
        rows, n = slots.live.shape
        terms = self.terms
        logits = predicted.logits
        best, token, log_normaliser = predicted.best(2 * n)
        continuations = terms.continuations(logits, state)
        more = jnp.take_along_axis(logits, jnp.maximum(continuations, 0), axis=-1)
        more = jnp.where((continuations == NONE) | _repeated(continuations, token), NEVER, more)
        values, token = (jnp.concatenate(x, axis=-1) for x in ((best, more), (token, continuations)))
        log_p = (slots.live[:, :, None] + values - log_normaliser).reshape(rows, -1)
        parent = jnp.repeat(jnp.arange(n), token.shape[-1])[None].repeat(rows, axis=0)
        token = token.reshape(rows, -1)
        met = self.met(state, parent, token)
        early = (token == terms.special.eos) & (met < state.total[:, None])
        log_p = jnp.where(early, NEVER, log_p)  # also at the last step
        order = _turns(log_p, met)
        _, chosen = jax.lax.top_k(order, min(2 * n, order.shape[1]))
        return Candidates(*(jnp.take_along_axis(x, chosen, axis=1) for x in (log_p, parent, token)))


def _repeated(continuations: Int[Array, "b n w"], token: Int[Array, "b n k"]) -> Bool[Array, "b n w"]:
    """Whether a continuation is also among the best tokens, or occurs before."""
    width = continuations.shape[-1]
    before = jnp.tril(jnp.ones((width, width), bool), -1)
    twice = ((continuations[..., :, None] == continuations[..., None, :]) & before).any(axis=-1)
    return twice | (continuations[..., :, None] == token[..., None, :]).any(axis=-1)


def _turns(log_p: Float[Array, "b c"], met: Int[Array, "b c"]) -> Float[Array, "b c"]:
    """A number for each candidate, the larger the earlier it comes: by its rank in its bank, then by bank."""
    index = jnp.arange(log_p.shape[1])
    one, other = log_p[:, :, None], log_p[:, None, :]
    better = (other > one) | ((other == one) & (index < index[:, None]))
    rank = (better & (met[:, :, None] == met[:, None, :])).sum(axis=-1)
    banks = LONGEST * SIZES[-1] + 1
    order = (met - rank * banks).astype(jnp.float32)
    return jnp.where(log_p == NEVER, NEVER, order)
