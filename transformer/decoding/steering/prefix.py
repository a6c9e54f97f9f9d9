"""Outputs that begin with given tokens, such as the code of their language, or with given words, of which the
last may be a part; and times among the tokens.

The tokens of all whole words are forced. The subwords of an incomplete last word would be a bad beginning:
"hel" is not how "hello" is divided. So its boundary is reopened, and any token may follow that continues its
letters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import SpecialIds
from transformer.data.sequences import Field
from transformer.decoding.hooks import EqualByContent, Hooks, SearchHook, Term

# Outputs that begin with given tokens, such as the code of their language: these cost nothing.


OPENING, OPENING_COUNT = "steer_opening", "steer_opening_count"
OPENING_FIELDS = {OPENING: Field(fill=0), OPENING_COUNT: Field(padded=False)}
"""What a search reads of each input: the first tokens of its output, and their number."""


@struct.dataclass
class OpeningState:
    """The first tokens of each beam, and how many tokens it has."""

    tokens: Int[Array, "b n s"]
    count: Int[Array, "b n"]
    length: Int[Array, "b n"]


@dataclass(frozen=True)
class Opening(Term):
    """A hook that forces first tokens. Their log-probability is 0, as they are no choice of the model.

    Args:
      size: number of tokens.
      is_counted: whether length penalties count them.
    """

    size: int
    is_counted: bool = True

    def init(self, inputs: Mapping[str, Array]) -> OpeningState:
        count = inputs[OPENING_COUNT]
        return OpeningState(inputs[OPENING], count, jnp.zeros_like(count))

    def forced_mask(self, state: OpeningState) -> Bool[Array, "b n"]:
        """Where one of the first tokens comes next."""
        return state.length < state.count

    def filter(
        self, logits: Float[Array, "b n v"], state: OpeningState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """Only the next of the first tokens, while there is one."""
        position = jnp.minimum(state.length, state.tokens.shape[-1] - 1)[..., None]
        token = jnp.take_along_axis(state.tokens, position, axis=-1)
        only = jnp.where(jnp.arange(logits.shape[-1]) == token, 0, -jnp.inf)
        return jnp.where(self.forced_mask(state)[..., None], only, logits)

    def advance(self, tokens: Int[Array, "b n"], state: OpeningState) -> OpeningState:
        return replace(state, length=state.length + 1)


def opening_example(tokens: Sequence[int]) -> dict[str, Any]:
    """The arrays of one input."""
    return {OPENING: list(tokens) or [0], OPENING_COUNT: len(tokens)}


def opening_of(hooks: Hooks) -> Opening:
    """What hooks force outputs to begin with."""
    openings = (hook for hook in hooks.each if isinstance(hook, Opening))
    return next(openings, Opening(0))


LETTERS = 24  # the longest incomplete word
TOKENS, COUNT, WORD = "steer_prefix", "steer_prefix_count", "steer_prefix_word"
FIELDS = {
    TOKENS: Field(fill=0),
    COUNT: Field(padded=False),
    WORD: Field(shape=(LETTERS,), padded=False),
}
"""What a search with prefixes reads of each input: the forced ids, their number, and the letters of the last
word, which may continue."""


@struct.dataclass
class PrefixState:
    """The prefix of each beam, and how much of it has been generated."""

    tokens: Int[Array, "b n s"]
    count: Int[Array, "b n"]
    word: Int[Array, "b n letters"]
    length: Int[Array, "b n"]
    """The number of generated tokens."""
    spelled: Int[Array, "b n"]
    """Letters of the word that they spell."""


class Prefix(EqualByContent, SearchHook):
    """A hook that forces prefixes.

    Args:
      pieces: what each id spells; empty for special ids.
      special: the special ids.
      joined: whether several pieces may spell a word; otherwise each is a whole one.
      mark: what begins a word in the pieces; empty if nothing does.
    """

    def __init__(self, pieces: Sequence[str], special: SpecialIds, joined: bool, mark: str) -> None:
        self._codes = np.zeros((len(pieces), LETTERS), np.int32)
        self._lengths = np.array([len(piece) for piece in pieces], np.int32)
        for row, piece in enumerate(pieces):
            self._codes[row, : min(len(piece), LETTERS)] = list(map(ord, piece[:LETTERS]))
        self._special = special
        self._joined = joined
        self._mark = mark
        super().__init__(self._codes.tobytes(), special, joined, mark)

    def init(self, inputs: Mapping[str, Array]) -> PrefixState:
        count = inputs[COUNT]
        return PrefixState(inputs[TOKENS], count, inputs[WORD], jnp.zeros_like(count), jnp.zeros_like(count))

    def filter(
        self, logits: Float[Array, "b n v"], state: PrefixState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """Forbids tokens that do not continue the prefix."""
        vocabulary = jnp.arange(logits.shape[-1])
        position = jnp.minimum(state.length, state.tokens.shape[-1] - 1)[..., None]
        next_token = jnp.take_along_axis(state.tokens, position, axis=-1)
        forced = state.length < state.count
        logits = jnp.where(forced[..., None] & (vocabulary != next_token), -jnp.inf, logits)
        open_ = ~forced & (state.spelled < self._size(state))

        def continuing(logits: Array) -> Array:
            return jnp.where(open_[..., None] & ~self._continues(state, len(vocabulary)), -jnp.inf, logits)

        return jax.lax.cond(open_.any(), continuing, lambda logits: logits, logits)

    def advance(self, tokens: Int[Array, "b n"], state: PrefixState) -> PrefixState:
        letters = jnp.asarray(self._lengths)[jnp.minimum(tokens, len(self._lengths) - 1)]
        spelled = jnp.where(state.length < state.count, 0, state.spelled + letters)
        return replace(state, length=state.length + 1, spelled=jnp.minimum(spelled, LETTERS))

    def _size(self, state: PrefixState) -> Int[Array, "b n"]:
        return (state.word != 0).sum(axis=-1)

    def _continues(self, state: PrefixState, size: int) -> Bool[Array, "b n v"]:
        """The tokens that spell what is left of the word, or begin with it, or begin it."""
        left = (self._size(state) - state.spelled)[..., None]
        lengths = jnp.zeros(size, jnp.int32).at[: len(self._lengths)].set(self._lengths)
        codes = jnp.zeros((size, LETTERS), jnp.int32).at[: len(self._codes)].set(self._codes)
        same = (lengths > 0) & (left > 0)
        if not self._joined:
            same &= lengths >= left
        for letter in range(LETTERS):
            position = jnp.minimum(state.spelled + letter, LETTERS - 1)[..., None]
            next_letter = jnp.take_along_axis(state.word, position, axis=-1)
            same &= (letter >= lengths) | (letter >= left) | (codes[:, letter] == next_letter)
        # a complete word: the next one begins, or nothing follows
        whole = (state.word[..., :1] == ord(self._mark or "\0")) & (self._size(state) == 1)[..., None]
        return same | (whole & (jnp.arange(size) == self._special.eos))


def example(forced: Sequence[int], word: str) -> dict[str, Any]:
    """The arrays of one input."""
    letters = np.zeros(LETTERS, np.int32)
    letters[: len(word)] = list(map(ord, word))
    return {TOKENS: list(forced) or [0], COUNT: len(forced), WORD: letters}


# Times among the tokens of an output: when its segments begin and end (Whisper, Radford et al. 2022).


@struct.dataclass
class Times:
    """What is known of the tokens of each beam."""

    left: Int[Array, "b n"]
    """Tokens of the opening that are still to come; negative after it."""
    last: Bool[Array, "b n"]
    """Whether the last token of a beam was a time."""
    before: Bool[Array, "b n"]
    """Whether the one before it was a time, or there is none."""
    latest: Int[Array, "b n"]
    """The last time so far; less than all if there is none."""


@dataclass(frozen=True)
class Timestamps(SearchHook):
    """A hook: outputs are segments, each with its begin before and its end after its text, so that times are
    in pairs between segments, and never decrease. Where all times together are more probable than any other
    token, a time comes next.

    Args:
      first: the id of the first time. All ids from it are times.
      eos: the id of <eos>. Ids below it are text.
      latest: the largest number of the first time.
    """

    first: int
    eos: int
    latest: int | None = None

    def init(self, inputs: Mapping[str, Array]) -> Times:
        left = inputs[OPENING_COUNT].astype(jnp.int32)
        no = jnp.zeros(left.shape, bool)
        return Times(left, no, ~no, jnp.full_like(left, self.first - 1))

    def filter(
        self, logits: Float[Array, "b n v"], state: Times, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """Forbids tokens that cannot follow."""
        token = jnp.arange(logits.shape[-1])
        is_time = token >= self.first
        last, before, at_start = (x[..., None] for x in (state.last, state.before, state.left == 0))
        earliest = state.latest[..., None] + jnp.where(
            last & ~before, 0, 1
        )  # a segment begins where one ends
        banned = is_time & ((token < earliest) | last & before)
        banned |= last & ~before & (token < self.eos)
        banned |= at_start & ~is_time
        if self.latest is not None:
            banned |= at_start & (token > self.first + self.latest)
        banned |= token == self.first - 1  # <|notimestamps|>
        left = jnp.where(banned, -jnp.inf, logits)
        times = jax.nn.logsumexp(jnp.where(is_time, left, -jnp.inf), axis=-1, keepdims=True)
        texts = jnp.where(is_time, -jnp.inf, left).max(axis=-1, keepdims=True)
        left = jnp.where((times > texts) & ~is_time, -jnp.inf, left)
        return jnp.where((state.left > 0)[..., None], logits, left)

    def advance(self, tokens: Int[Array, "b n"], state: Times) -> Times:
        is_time = (tokens >= self.first) & (state.left <= 0)
        latest = jnp.where(is_time, tokens, state.latest)
        return replace(
            state, left=state.left - 1, last=is_time, before=state.last | (state.left >= 0), latest=latest
        )
