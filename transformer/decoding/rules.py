"""Rules that hold for every output of a search: tokens and phrases that never occur, length, repetition.

Each is a part of one hook, since all but one of them read the tokens of the beam so far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config import DecodingConfig, SpecialIds
from transformer.decoding.limits import Limits

NONE = -1  # stands for no token


@struct.dataclass
class History:
    """The tokens of each beam so far."""

    tokens: Int[Array, "b n h"]
    """In order. What follows the last has no meaning: slots are padded with zeros."""
    length: Int[Array, "b n"]

    @classmethod
    def empty(cls, rows: int, longest: int) -> "History":
        """Before the first token, for one beam of each row: arrays `[b, ...]`."""
        return cls(jnp.zeros((rows, longest), jnp.int32), jnp.zeros(rows, jnp.int32))

    @property
    def generated(self) -> Int[Array, "b n h"]:
        """The tokens; -1 after the last."""
        return jnp.where(jnp.arange(self.tokens.shape[-1]) < self.length[..., None], self.tokens, NONE)

    def append(self, tokens: Int[Array, "b n"]) -> "History":
        """With a token more."""
        here = jnp.arange(self.tokens.shape[-1]) == self.length[..., None]
        return History(jnp.where(here, tokens[..., None], self.tokens), self.length + 1)

    def last(self, count: int) -> Int[Array, "b n count"]:
        """The last tokens, in order; -1 before the first."""
        positions = self.length[..., None] - count + jnp.arange(count)
        tokens = jnp.take_along_axis(self.tokens, jnp.maximum(positions, 0), axis=-1)
        return jnp.where(positions < 0, NONE, tokens)


@dataclass(frozen=True)
class Rules:
    """A hook for the rules of `DecodingConfig`.

    Args:
      options: the rules.
      special: the special ids.
      limits: as of `AutoregressiveSearch`: gives the longest output.
      phrases: the sequences of tokens of the forbidden phrases.
      opening: number of tokens that outputs are forced to begin with.
    """

    options: DecodingConfig
    special: SpecialIds
    limits: Any
    phrases: tuple[tuple[int, ...], ...] = ()
    opening: int = 0

    @property
    def penalises(self) -> bool:
        """Whether it changes the probability of tokens that are allowed."""
        return self.options.repetition_penalty != 1

    def init(self, inputs: Mapping[str, Array]) -> History:
        """Nothing yet."""
        limits: Limits = self.limits(inputs, self.special, self.options)
        return History.empty(len(limits.each), limits.longest)

    def filter(
        self, logits: Float[Array, "b n v"], state: History, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The logits that the rules leave. With a repetition penalty they are log-probabilities."""
        o = self.options
        vocabulary = jnp.arange(logits.shape[-1])
        if o.repetition_penalty != 1:  # of log-probabilities, which are negative
            log_p = jnp.take_along_axis(logits, jnp.maximum(state.generated, 0), axis=-1)
            logits = _put(logits, state.generated, log_p * o.repetition_penalty)
        never = jnp.isin(vocabulary, jnp.array(o.suppress, jnp.int32))
        first = never | jnp.isin(vocabulary, jnp.array(o.suppress_first, jnp.int32))
        banned = jnp.where((state.length == self.opening)[..., None], first, never)
        if o.min_length:
            short = (state.length < o.min_length)[..., None]
            banned |= short & (vocabulary == self.special.eos)
        logits = jnp.where(banned, -jnp.inf, logits)
        if o.no_repeat_ngram:
            logits = _put(logits, _repeating(state, o.no_repeat_ngram), -jnp.inf)
        if self.phrases:
            logits = _put(logits, _completing(state, self.phrases), -jnp.inf)
        return logits

    def advance(self, tokens: Int[Array, "b n"], state: History) -> History:
        """With the new tokens."""
        return state.append(tokens)


def _put(logits: Float[Array, "b n v"], tokens: Int[Array, "b n k"], values: Any) -> Float[Array, "b n v"]:
    """The logits with these values at these tokens; -1 is none."""
    rows, beams, width = logits.shape
    at = jnp.where(tokens == NONE, width, tokens)  # beyond the last: dropped
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[None, :, None]
    return logits.at[row, beam, at].set(values, mode="drop")


def _repeating(state: History, size: int) -> Int[Array, "b n h"]:
    """The tokens that would end a sequence of `size` tokens that occurred before; -1 is none."""
    tokens = state.tokens
    before = state.last(size - 1)
    positions = jnp.arange(tokens.shape[-1] - size + 1)
    same: Bool[Array, "b n h"] = jnp.ones((*tokens.shape[:2], len(positions)), bool)
    for offset in range(size - 1):
        same &= tokens[..., offset : offset + len(positions)] == before[..., offset, None]
    same &= (positions + size - 1) < state.length[..., None]
    return jnp.where(same, tokens[..., size - 1 :], NONE)


def _completing(state: History, phrases: Sequence[Sequence[int]]) -> Int[Array, "b n p"]:
    """The last tokens of the phrases of which all others have just been generated; -1 is none."""
    longest = max(map(len, phrases))
    started = np.full((len(phrases), longest - 1), NONE, np.int32)
    for row, phrase in enumerate(phrases):
        started[row, longest - len(phrase) :] = phrase[:-1]
    recent = state.last(longest - 1)[:, :, None, :]
    matches = ((recent == started) | (started == NONE)).all(axis=-1)
    return jnp.where(matches, np.array([phrase[-1] for phrase in phrases], np.int32), NONE)


def segmentations(text: str, pieces: Mapping[str, int], most: int = 256) -> list[tuple[int, ...]]:
    """All divisions of a text into pieces, as ids; the shortest `most`.

    Args:
      text: in the form of the pieces, such as with U+2581 for a space.
      pieces: of the vocabulary.
      most: limit.
    """
    longest = max(map(len, pieces), default=0)
    divisions: list[list[tuple[int, ...]]] = [[()], *([] for _ in text)]
    for end in range(1, len(text) + 1):
        for start in range(max(0, end - longest), end):
            if (piece := pieces.get(text[start:end])) is not None:
                divisions[end] += [(*before, piece) for before in divisions[start]]
        divisions[end] = sorted(divisions[end], key=len)[:most]
    return divisions[-1]
