"""Rules that hold for every output of a search: tokens and phrases that never occur, length, repetition.

Each is a part of one hook, since all but one of them read the tokens of the beam so far. What the rules say
is read with the inputs, so outputs with different rules are searched together, by the same programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.config.decoding import DecodingConfig
from transformer.config.model import SpecialIds
from transformer.data.sequences import Field, Fields
from transformer.decoding.hooks import SearchHook
from transformer.decoding.scores import Limits

NONE = -1  # stands for no token
PREFIX = "steer_rules_"  # of the names of what is read
IDS, PHRASES, TOKENS = 16, 16, 8
"""The least room of a program for ids that are suppressed, for phrases, and for the tokens of each."""


@struct.dataclass
class RowRules:
    """The rules of each output. r, p and t are the room for ids, phrases and their tokens."""

    min_length: Int[Array, "*b"]
    penalty: Float[Array, "*b"]
    """The factor on log-probabilities of tokens that the output has already."""
    ngram: Int[Array, "*b"]
    """The length of sequences that do not occur twice; 0: all may."""
    suppress: Int[Array, "*b r"]
    """Ids that never occur; -1 is none."""
    suppress_first: Int[Array, "*b r"]
    """Ids that are not the first one."""
    started: Int[Array, "*b p t"]
    """The tokens of phrases but the last one, at the end; -1 before them."""
    last: Int[Array, "*b p"]
    """The last token of each phrase; -1: there is no phrase."""


@struct.dataclass
class History:
    """The rules of each beam, and its tokens so far."""

    rules: RowRules
    tokens: Int[Array, "*b h"]
    """The tokens of each beam, in order. What follows the last has no meaning: slots are padded with 0."""
    length: Int[Array, "*b"]
    repeated: Int[Array, "*b h"]
    """How many tokens up to each one, which is not the last, are those up to the last."""

    @classmethod
    def empty(cls, rules: RowRules, longest: int) -> "History":
        """The history before the first token."""
        length = jnp.zeros_like(rules.ngram)
        tokens = jnp.zeros((*length.shape, longest), jnp.int32)
        return cls(rules, tokens, length, tokens)

    @property
    def generated(self) -> Int[Array, "b n h"]:
        """The tokens; -1 after the last."""
        return jnp.where(jnp.arange(self.tokens.shape[-1]) < self.length[..., None], self.tokens, NONE)

    @property
    def _before(self) -> Int[Array, "b n h"]:
        """`repeated` of the token before each one."""
        return jnp.pad(self.repeated, ((0, 0), (0, 0), (1, 0)))[..., :-1]

    def append(self, tokens: Int[Array, "b n"]) -> "History":
        """The history with one more token for each beam."""
        positions, length = jnp.arange(self.tokens.shape[-1]), self.length[..., None]
        same = (self.tokens == tokens[..., None]) & (positions < length)
        after = jnp.where(positions == length, tokens[..., None], self.tokens)
        repeated = jnp.where(same, self._before + 1, 0)
        return replace(self, tokens=after, length=self.length + 1, repeated=repeated)

    def last(self, count: int) -> Int[Array, "b n count"]:
        """The last tokens, in order; -1 before the first."""
        positions = self.length[..., None] - count + jnp.arange(count)
        tokens = jnp.take_along_axis(self.tokens, jnp.maximum(positions, 0), axis=-1)
        return jnp.where(positions < 0, NONE, tokens)

    def repeating(self) -> Int[Array, "b n h"]:
        """The tokens that would end a sequence that occurred before, as long as the rules say; -1 is none."""
        size = self.rules.ngram[..., None]
        return jnp.where((size > 0) & (self._before >= size - 1), self.generated, NONE)

    def completing(self) -> Int[Array, "b n p"]:
        """The last tokens of the phrases of which all others have just been generated; -1 is none."""
        started = self.rules.started
        recent = self.last(started.shape[-1])[..., None, :]
        matches = ((recent == started) | (started == NONE)).all(axis=-1)
        return jnp.where(matches, self.rules.last, NONE)


@dataclass(frozen=True)
class Rules(SearchHook):
    """A hook for the rules of `DecodingConfig`.

    Args:
      special: the special ids.
      limits: as of `AutoregressiveSearch`.
      room: for ids that are suppressed, for phrases, and for the tokens of each.
      ranks: whether there may be a repetition penalty: it changes the probability of tokens that are
        allowed.
      opening: number of tokens that outputs are forced to begin with.
      options: of the program, which give the longest output.
    """

    special: SpecialIds
    limits: Any
    room: tuple[int, int, int] = (IDS, PHRASES, TOKENS)
    ranks: bool = False
    opening: int = 0
    options: DecodingConfig | None = None

    @classmethod
    def of(
        cls,
        options: DecodingConfig,
        special: SpecialIds,
        limits: Any,
        phrases: Sequence[Sequence[int]] = (),
        opening: int = 0,
    ) -> "Rules":
        """With room for some rules, and for others like them.

        Args:
          options: the rules.
          special: as of the hook, and so are `limits` and `opening`.
          limits: see there.
          phrases: the sequences of tokens of the forbidden phrases.
          opening: see there.
        """
        ids = max(len(options.suppress), len(options.suppress_first))
        tokens = max(map(len, phrases), default=1) - 1
        room = _tier(ids, IDS), _tier(len(phrases), PHRASES), _tier(tokens, TOKENS)
        return cls(special, limits, room, options.repetition_penalty != 1, opening)

    def within(self, options: DecodingConfig) -> "Rules":
        """The rules for a program with these options."""
        return replace(self, options=options.shared())

    @property
    def fields(self) -> Fields:
        """What the search reads of each input."""
        ids, phrases, tokens = self.room
        fields = {
            "min_length": Field(padded=False),
            "penalty": Field("float32", padded=False),
            "ngram": Field(padded=False),
            "suppress": Field(fill=NONE, shape=(ids,), padded=False),
            "suppress_first": Field(fill=NONE, shape=(ids,), padded=False),
            "started": Field(fill=NONE, shape=(phrases, tokens), padded=False),
            "last": Field(fill=NONE, shape=(phrases,), padded=False),
        }
        return {PREFIX + name: field for name, field in fields.items()}

    def example(self, options: DecodingConfig, phrases: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """The arrays of one input.

        Args:
          options: its rules.
          phrases: the sequences of tokens of its forbidden phrases.
        """
        ids, num_phrases, tokens = self.room
        started, last = np.full((num_phrases, tokens), NONE, np.int32), np.full(num_phrases, NONE, np.int32)
        for row, (*before, token) in enumerate(phrases):
            started[row, tokens - len(before) :] = before
            last[row] = token
        rules = {
            "min_length": options.min_length,
            "penalty": options.repetition_penalty,
            "ngram": options.no_repeat_ngram,
            "suppress": _filled(options.suppress, ids),
            "suppress_first": _filled(options.suppress_first, ids),
            "started": started,
            "last": last,
        }
        return {PREFIX + name: value for name, value in rules.items()}

    def init(self, inputs: Mapping[str, Array]) -> History:
        limits: Limits = self.limits(inputs, self.special, self.options)
        rules = RowRules(**{name.removeprefix(PREFIX): inputs[name] for name in self.fields})
        return History.empty(rules, limits.longest)

    def filter(
        self, logits: Float[Array, "b n v"], state: History, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The logits that the rules leave. With a repetition penalty they are log-probabilities."""
        rules = state.rules
        if self.ranks:  # log-probabilities, which are negative
            log_p = jnp.take_along_axis(logits, jnp.maximum(state.generated, 0), axis=-1)
            logits = _put(logits, state.generated, log_p * rules.penalty[..., None])
        first = jnp.where((state.length == self.opening)[..., None], rules.suppress_first, NONE)
        eos = jnp.where(state.length < rules.min_length, self.special.eos, NONE)[..., None]
        logits = _put(logits, jnp.concatenate([rules.suppress, first, eos], axis=-1), -jnp.inf)

        def without_phrases(logits: Array) -> Array:
            return _put(logits, state.completing(), -jnp.inf)

        def without_repeating(logits: Array) -> Array:
            return _put(logits, state.repeating(), -jnp.inf)

        logits = jax.lax.cond((rules.last != NONE).any(), without_phrases, lambda x: x, logits)
        return jax.lax.cond((rules.ngram > 0).any(), without_repeating, lambda x: x, logits)

    def advance(self, tokens: Int[Array, "b n"], state: History) -> History:
        return state.append(tokens)


def _tier(count: int, least: int) -> int:
    """Room for so many: there are few sizes, so that there are few programs."""
    while least < count:
        least *= 16
    return least


def _filled(ids: Sequence[int], size: int) -> Int[np.ndarray, " r"]:
    return np.array([*ids, *[NONE] * (size - len(ids))], np.int32)


def _put(logits: Float[Array, "b n v"], tokens: Int[Array, "b n k"], values: Any) -> Float[Array, "b n v"]:
    """The logits with these values at these tokens; -1 is none."""
    rows, beams, width = logits.shape
    column = jnp.where(tokens == NONE, width, tokens)  # beyond the last: dropped
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[None, :, None]
    return logits.at[row, beam, column].set(values, mode="drop")


def segmentations(text: str, pieces: Mapping[str, int], limit: int = 256) -> list[tuple[int, ...]]:
    """All divisions of a text into pieces, as ids; the shortest `limit`.

    Args:
      text: in the form of the pieces, such as with U+2581 for a space.
      pieces: of the vocabulary.
      limit: how many are returned.
    """
    longest = max(map(len, pieces), default=0)
    divisions: list[list[tuple[int, ...]]] = [[()], *([] for _ in text)]
    for end in range(1, len(text) + 1):
        for start in range(max(0, end - longest), end):
            if (piece := pieces.get(text[start:end])) is not None:
                divisions[end] += [(*before, piece) for before in divisions[start]]
        divisions[end] = sorted(divisions[end], key=len)[:limit]
    return divisions[-1]
