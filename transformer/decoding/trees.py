"""A hook for parsers: outputs are trees whose leaves are the words of the source (Vinyals et al. 2015).

Tokens are those of `transformer.data.trees.linearised`: a bracket with its label, such as `(NP`, a word, or
`)`. The hook opens and closes one bracket around everything, leaves no bracket empty, and lets each word of
the source follow the one before it. It knows how many tokens may follow, so a tree is always closed in time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.config import SpecialIds
from transformer.decoding.hooks import EqualByContent

NO_WORD = -1


class Progress(NamedTuple):
    """How far a tree is."""

    words: Int[Array, "b *n s"]
    """The tokens of the source's words, then `NO_WORD`."""
    num_words: Int[Array, "b *n"]
    """The number of them."""
    position: Int[Array, "b *n"]
    """How many of them have been output."""
    depth: Int[Array, "b *n"]
    """Of open brackets."""
    opened: Bool[Array, "b *n"]
    """Whether the last token opened one."""


class WellFormedTrees(EqualByContent):
    """Allows trees over the words of the source, and forbids everything else.

    Where the limit of an output is too short for any tree, which needs a bracket, the words and `)`, an
    output may be no tree.

    Args:
      source: the piece of each id of the source's vocabulary; empty for ids that are no words.
      target: that of each id of the target's.
      special: the special ids of both.

    Raises:
      ValueError: the target's vocabulary has no opening or no closing bracket.
    """

    def __init__(self, source: Sequence[str], target: Sequence[str], special: SpecialIds) -> None:
        super().__init__(tuple(source), tuple(target), astuple(special))
        opens = [piece.startswith("(") and len(piece) > 1 for piece in target]
        if ")" not in target or not any(opens):
            raise ValueError("the target's vocabulary has no brackets: it is not that of linearised trees")
        ids = {piece: index for index, piece in enumerate(target) if piece and not opens[index]}
        self._close = ids.pop(")")
        self._opens = np.array(opens)
        self._eos = special.eos
        forms = [ids.get(piece, special.unk) if piece else NO_WORD for piece in source]
        forms[special.unk] = special.unk
        self._forms = np.array(forms, np.int32)

    def init(self, inputs: Mapping[str, Array]) -> Progress:
        """Nothing was output."""
        forms = jnp.asarray(self._forms)[inputs["source"]]
        is_word = forms != NO_WORD
        words = jnp.take_along_axis(forms, jnp.argsort(~is_word, axis=1, stable=True), axis=1)
        zeros = jnp.zeros(len(words), jnp.int32)
        return Progress(words, is_word.sum(axis=1).astype(jnp.int32), zeros, zeros, zeros > 0)

    def filter(
        self, logits: Float[Array, "b n v"], state: Progress, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """Only what continues a tree that can be completed."""
        missing = state.num_words - state.position
        has_begun = (state.depth > 0) | (state.position > 0)
        is_complete = (state.depth == 0) & (missing == 0)
        shortest = jnp.where(has_begun, missing + state.depth, missing + 2)
        spare = steps_left[:, None] - 1 - jnp.where(is_complete, 0, shortest)
        can_open = (missing > 0) & ((state.depth > 0) | ~has_begun)
        can_open &= (spare >= 2) | (~has_begun & (spare >= 0))
        can_close = (state.depth > 0) & ~state.opened & ((state.depth > 1) | (missing == 0))
        can_be_word = (state.depth > 0) & (missing > 0)
        vocabulary = jnp.arange(logits.shape[-1])
        position = jnp.minimum(state.position, state.words.shape[-1] - 1)[..., None]
        word = jnp.take_along_axis(state.words, position, axis=-1)
        is_allowed = jnp.asarray(self._opens) & can_open[..., None]
        is_allowed |= (vocabulary == self._close) & can_close[..., None]
        is_allowed |= (vocabulary == word) & can_be_word[..., None]
        is_allowed |= (vocabulary == self._eos) & is_complete[..., None]
        is_impossible = (spare < 0)[..., None] | ~is_allowed.any(axis=-1, keepdims=True)
        return jnp.where(is_allowed | is_impossible, logits, -jnp.inf)

    def advance(self, tokens: Int[Array, "b n"], state: Progress) -> Progress:
        """The tree after these tokens."""
        opened = jnp.asarray(self._opens)[tokens]
        closed = tokens == self._close
        is_word = ~opened & ~closed & (tokens != self._eos)
        return state._replace(
            position=jnp.minimum(state.position + is_word, state.num_words),
            depth=jnp.maximum(state.depth + opened - closed, 0),
            opened=opened,
        )
