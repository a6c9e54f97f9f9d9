"""Hooks for outputs with structure: trees whose leaves are the words of the source (Vinyals et al. 2015), and
sets, in which nothing is output twice.

Tokens are those of `transformer.data.trees.linearised`: a bracket with its label, such as `(NP`, a word, or
`)`. The hook opens and closes one bracket around everything, leaves no bracket empty, and lets each word of
the source follow the one before it. If the training trees have a part of speech around each word, outputs
have too, and a frequent word has one of those that it has there; and outputs open no more brackets in a row
than those trees. It knows how many tokens may follow, so a tree is always closed in time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import SpecialIds
from transformer.data.trees import DEEPEST, BracketKinds
from transformer.decoding.hooks import EqualByContent, SearchHook

# A hook for sets of labels: none is output twice.


class EachOnce(EqualByContent, SearchHook):
    """Forbids tokens of a set that were output before. All others, such as separators and <eos>, are free.
    Labels must be single tokens, as they are with --data.tokenizer word or whitespace.

    Args:
      tokens: the ids of the set.
      size: of the vocabulary.
    """

    def __init__(self, tokens: Sequence[int], size: int) -> None:
        super().__init__(tuple(tokens), size)
        self._number = len(set(tokens))
        self._column = np.full(size, self._number, np.int32)
        self._column[sorted(set(tokens))] = np.arange(self._number)

    def init(self, inputs: Mapping[str, Array]) -> Bool[Array, "b tokens"]:
        """Which tokens of the set were output: none; a last column stands for all others."""
        rows = len(next(iter(inputs.values())))
        return jnp.zeros((rows, self._number + 1), bool)

    def filter(
        self, logits: Float[Array, "b n v"], state: Bool[Array, "b n tokens"], steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The logits without those of the set that were output."""
        return jnp.where(state[..., self._column], -jnp.inf, logits)

    def advance(
        self, tokens: Int[Array, "b n"], state: Bool[Array, "b n tokens"]
    ) -> Bool[Array, "b n tokens"]:
        """The set after these tokens."""
        column = jnp.asarray(self._column)[tokens][..., None]
        is_chosen = (jnp.arange(self._number + 1) == column) & (column < self._number)
        return state | is_chosen


NO_WORD = -1
ANY_BRACKETS = BracketKinds((), (), DEEPEST)


class Progress(NamedTuple):
    """How far a tree is."""

    words: Int[Array, "b *n s"]
    """The tokens of the source's words, then `NO_WORD`."""
    num_words: Int[Array, "b *n"]
    """The number of them."""
    position: Int[Array, "b *n"]
    """How many of them have been output."""
    depth: Int[Array, "b *n"]
    """The number of open brackets."""
    chain: Int[Array, "b *n"]
    """How many brackets the last tokens opened; 0 if the last token is none."""
    last: Int[Array, "b *n"]
    """The last token."""


class WellFormedTrees(EqualByContent, SearchHook):
    """Allows trees over the words of the source, and forbids everything else.

    Where the limit of an output is too short for trees with parts of speech, they may lack them. Where it is
    too short for any tree, which needs a bracket, the words and `)`, an output may be no tree.

    Args:
      source: the piece of each id of the source's vocabulary; empty for ids that are no words.
      target: that of each id of the target's.
      special: the special ids of both.
      kinds: what outputs have in common with the training trees.

    Raises:
      ValueError: the target's vocabulary has no opening or no closing bracket.
    """

    def __init__(
        self,
        source: Sequence[str],
        target: Sequence[str],
        special: SpecialIds,
        kinds: BracketKinds = ANY_BRACKETS,
    ) -> None:
        super().__init__(tuple(source), tuple(target), astuple(special), kinds)
        opens = [piece.startswith("(") and len(piece) > 1 for piece in target]
        if ")" not in target or not any(opens):
            raise ValueError("the target's vocabulary has no brackets: it is not that of linearised trees")
        ids = {piece: index for index, piece in enumerate(target) if piece and not opens[index]}
        self._close = ids.pop(")")
        self._eos = special.eos
        self._opens = np.array(opens)
        self._parts = np.array([piece[1:] in kinds.parts_of_speech for piece in target]) & self._opens
        self._phrases = np.array([piece[1:] in kinds.phrases for piece in target]) & self._opens
        self._longest = kinds.longest_chain
        self._part = np.cumsum(self._parts) * self._parts  # the number of each part of speech; 0: it is none
        self._fits = np.ones((len(target), self._part.max() + 1), bool)
        for word, parts in kinds.of_words.items():
            if word in ids:
                known = {
                    number for number, piece in zip(self._part, target, strict=True) if piece[1:] in parts
                }
                self._fits[ids[word], 1:] = [number + 1 in known for number in range(self._part.max())]
        forms = [ids.get(piece, special.unk) if piece else NO_WORD for piece in source]
        forms[special.unk] = special.unk
        self._forms = np.array(forms, np.int32)

    def init(self, inputs: Mapping[str, Array]) -> Progress:
        forms = jnp.asarray(self._forms)[inputs["source"]]
        is_word = forms != NO_WORD
        words = jnp.take_along_axis(forms, jnp.argsort(~is_word, axis=1, stable=True), axis=1)
        zeros = jnp.zeros(len(words), jnp.int32)
        return Progress(words, is_word.sum(axis=1).astype(jnp.int32), zeros, zeros, zeros, zeros + self._eos)

    def filter(
        self, logits: Float[Array, "b n v"], state: Progress, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """Only what continues a tree that can be completed."""
        following = steps_left[:, None] - 2  # tokens after this one, without <eos>
        allowed = self._in_any_bracket(state, following)
        if self._parts.any():
            tagged = self._in_parts_of_speech(state, following)
            allowed = jnp.where(tagged.any(axis=-1, keepdims=True), tagged, allowed)
        is_complete = (state.depth == 0) & (state.position == state.num_words) & (following >= -1)
        allowed |= is_complete[..., None] & (jnp.arange(logits.shape[-1]) == self._eos)
        return jnp.where(allowed | ~allowed.any(axis=-1, keepdims=True), logits, -jnp.inf)

    def _in_any_bracket(self, state: Progress, following: Int[Array, "b 1"]) -> Bool[Array, "b n v"]:
        """What leaves room for each missing word and the `)` of each open bracket."""
        missing, depth = state.num_words - state.position, state.depth
        spare = following - missing - depth
        may_open = (missing > 0) & ((depth > 0) | (state.position == 0)) & (state.chain < self._longest)
        return self._tokens(
            state,
            brackets=jnp.asarray(self._opens) & (may_open & (spare >= 1))[..., None],
            word=(missing > 0) & (depth > 0) & (spare >= -1),
            close=(state.chain == 0) & self._may_close(state) & (spare >= -1),
        )

    def _in_parts_of_speech(self, state: Progress, following: Int[Array, "b 1"]) -> Bool[Array, "b n v"]:
        """What leaves room for each missing word with its part of speech, `(DT the )`, and for the `)` of
        each open bracket."""
        missing, depth, just_opened = state.num_words - state.position, state.depth, state.chain > 0
        spare = following - 3 * missing - depth
        opens, parts, phrases = (jnp.asarray(labels) for labels in (self._opens, self._parts, self._phrases))
        after_word = (state.position > 0) & ~opens[state.last] & (state.last != self._close)
        may_open = (missing > 0) & ((depth > 0) | (state.position == 0))
        may_open &= jnp.where(just_opened, phrases[state.last], ~after_word)
        phrase = may_open & (state.chain + 1 < self._longest) & (spare >= 1)
        part = may_open & (state.chain < self._longest) & (spare >= -1) & ((depth > 0) | (missing == 1))
        numbers, fits = jnp.asarray(self._part), jnp.asarray(self._fits)[self._next_word(state)]
        has_bracket = just_opened & parts[state.last] & ((depth > 1) | (missing == 1))
        has_bracket &= jnp.take_along_axis(fits, numbers[state.last][..., None], axis=-1)[..., 0]
        return self._tokens(
            state,
            brackets=(phrases & phrase[..., None]) | (parts & part[..., None] & fits[..., numbers]),
            word=(missing > 0) & has_bracket & (spare >= -3),
            close=~just_opened & self._may_close(state) & (spare >= -1),
        )

    @staticmethod
    def _next_word(state: Progress) -> Int[Array, "b n"]:
        """The token of the first word that has not been output."""
        position = jnp.minimum(state.position, state.words.shape[-1] - 1)[..., None]
        return jnp.take_along_axis(state.words, position, axis=-1)[..., 0]

    @staticmethod
    def _may_close(state: Progress) -> Bool[Array, "b n"]:
        """Whether a bracket is open, and is not the outermost one while words are missing."""
        return (state.depth > 0) & ((state.depth > 1) | (state.position == state.num_words))

    def _tokens(
        self,
        state: Progress,
        brackets: Bool[Array, "b n v"],
        word: Bool[Array, "b n"],
        close: Bool[Array, "b n"],
    ) -> Bool[Array, "b n v"]:
        """These brackets, and where they are allowed, the next word of the source and `)`."""
        tokens = jnp.arange(brackets.shape[-1])
        return (
            brackets
            | ((tokens == self._next_word(state)[..., None]) & word[..., None])
            | ((tokens == self._close) & close[..., None])
        )

    def advance(self, tokens: Int[Array, "b n"], state: Progress) -> Progress:
        """The tree after these tokens."""
        opened = jnp.asarray(self._opens)[tokens]
        closed = tokens == self._close
        is_word = ~opened & ~closed & (tokens != self._eos)
        return state._replace(
            position=jnp.minimum(state.position + is_word, state.num_words),
            depth=jnp.maximum(state.depth + opened - closed, 0),
            chain=jnp.where(opened, state.chain + 1, 0),
            last=tokens,
        )
