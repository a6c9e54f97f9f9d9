"""Shallow fusion: an n-gram language model of the output in the search (Gulcehre et al. 2015).

Beams are ranked by log P(Y|X) + weight * log p(Y), where p is the language model. Its n-grams are a trie in
sorted arrays: a beam's state is the longest context that the model knows of its last tokens, and a step reads
the continuations of that context and of the shorter ones to which it backs off.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.data.sequences import Field
from transformer.decoding.beside.arpa import END, NEVER, START, UNKNOWN, NGrams
from transformer.decoding.hooks import EqualByContent, Term
from transformer.decoding.steering.names import arc_of, with_arcs

WEIGHT = "steer_language_model"
FIELDS = {WEIGHT: Field("float32", padded=False)}
"""What a search with a language model reads of each input: its weight."""
BEGIN = -1
"""The id of <s>, which is no token."""


class Trie:
    """The n-grams of the tokens of a vocabulary, as arrays.

    Args:
      grams: the model.
      names: of the tokens, by id; empty for those that the model does not see.
      eos: the id of the end.

    Attributes:
      known: the number of tokens that the model has, without the end.
    """

    def __init__(self, grams: NGrams, names: Sequence[str], eos: int) -> None:
        self.unknown = len(names)  # a token more stands for all that the model has not
        ids = {name: index for index, name in enumerate(names) if name}
        ids |= {END: eos, START: BEGIN, UNKNOWN: self.unknown}
        entries = [
            (tuple(ids[word] for word in gram), *values)
            for order in grams.orders
            for gram, values in order.items()
            if all(word in ids for word in gram)
        ]
        highest = len(grams.orders)
        contexts: dict[tuple[int, ...], int] = {(): 0}
        for gram, _, _ in entries:
            if len(gram) < highest:
                contexts[gram] = len(contexts)

        def known_end(gram: tuple[int, ...]) -> int:
            """The longest context that ends an n-gram."""
            return next(contexts[gram[start:]] for start in range(len(gram) + 1) if gram[start:] in contexts)

        self.order, self.start = highest, contexts.get((BEGIN,), 0)
        self.suffix = np.array([known_end(gram[1:]) for gram in contexts], np.int32)
        self.backoff = np.zeros(len(contexts), np.float32)
        self.single = np.full(len(names) + 1, np.nan, np.float32)
        self.after_single = np.zeros(len(names) + 1, np.int32)
        longer: list[tuple[int, int, float, int]] = []
        for gram, log_p, backoff in entries:
            *before, token = gram
            if gram in contexts:
                self.backoff[contexts[gram]] = backoff
            if token == BEGIN:
                continue
            if not before:
                self.single[token], self.after_single[token] = log_p, known_end(gram)
            else:
                longer.append((contexts[tuple(before)], token, log_p, known_end(gram)))
        if np.isnan(self.single[-1]):
            self.single[-1] = min(log_p for log_p, _ in grams.orders[0].values() if log_p > NEVER)
        self.missing = np.isnan(self.single)
        self.known = int((~self.missing[:-1]).sum() - (not self.missing[eos]))
        longer.sort()
        columns = list(zip(*longer, strict=True)) or [(), (), (), ()]
        parents, tokens, log_ps, after = map(np.array, columns)
        self.first, self.last = (
            np.searchsorted(parents, np.arange(len(contexts)), side).astype(np.int32)
            for side in ("left", "right")
        )
        self.tokens = np.append(tokens, self.unknown).astype(np.int32)
        self.log_p = np.append(log_ps, 0).astype(np.float32) * np.float32(math.log(10))
        self.after = np.append(after, 0).astype(np.int32)
        self.single *= np.float32(math.log(10))
        self.backoff *= np.float32(math.log(10))

    def digest(self) -> str:
        """A hash of all that it consists of."""
        digest = hashlib.blake2b(digest_size=16)
        for name, value in sorted(vars(self).items()):
            digest.update(
                name.encode() + (value.tobytes() if isinstance(value, np.ndarray) else b"%d" % value)
            )
        return digest.hexdigest()


@struct.dataclass
class FusionState:
    """The weight of the language model for each beam, and the context that it has reached."""

    weight: Float[Array, "*b"]
    context: Int[Array, "*b"]


class ShallowFusion(EqualByContent, Term):
    """A hook that adds the weighted log-probabilities of a language model.

    Args:
      trie: the model.
      silent: the tokens that are no text, such as codes of languages. They cost nothing, and the context is
        as before.
    """

    def __init__(self, trie: Trie, silent: Bool[np.ndarray, " v"]) -> None:
        self._trie, self._silent = trie, np.append(silent, False)
        super().__init__(trie.digest(), self._silent.tobytes())

    def init(self, inputs: Mapping[str, Array]) -> FusionState:
        """The state at the beginning of a sentence."""
        weight = inputs[WEIGHT]
        return FusionState(weight, jnp.full(weight.shape, self._trie.start, jnp.int32))

    def filter(
        self, logits: Float[Array, "b n v"], state: FusionState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """log P with the weighted log-probabilities of the language model added."""
        return logits + state.weight[..., None] * self.log_p(state.context, logits.shape[-1])

    def advance(self, tokens: Int[Array, "b n"], state: FusionState) -> FusionState:
        """With the longest context that the model has of the tokens so far."""
        trie = self._trie
        tokens = jnp.minimum(tokens, trie.unknown)
        silent = jnp.asarray(self._silent)[tokens]
        tokens = jnp.where(jnp.asarray(trie.missing)[tokens], trie.unknown, tokens)
        after = jnp.asarray(trie.after_single)[tokens]
        for context in reversed(self._contexts(state.context)):
            entry, is_there = self._entry(context, tokens)
            after = jnp.where(is_there, jnp.asarray(trie.after)[entry], after)
        return replace(state, context=jnp.where(silent, state.context, after))

    def log_p(self, context: Int[Array, "b n"], size: int) -> Float[Array, "b n v"]:
        """The log-probability of each of the first `size` tokens after a context."""
        trie = self._trie
        first, last, tokens, values = map(jnp.asarray, (trie.first, trie.last, trie.tokens, trie.log_p))
        log_p = jnp.broadcast_to(jnp.asarray(np.nan_to_num(trie.single)), (*context.shape, trie.unknown + 1))
        for shorter in reversed(self._contexts(context)):
            log_p = log_p + jnp.asarray(trie.backoff)[shorter][..., None]
            log_p = with_arcs(log_p, first[shorter], last[shorter], tokens, values)
        unknown = log_p[..., trie.unknown :]
        log_p = jnp.where(jnp.asarray(trie.missing), unknown, log_p)
        log_p = jnp.where(jnp.asarray(self._silent), 0, jnp.minimum(log_p, 0))
        more = size - trie.unknown  # tokens beyond the vocabulary, such as words that are copied
        beyond = jnp.broadcast_to(jnp.minimum(unknown, 0), (*context.shape, max(more, 0)))
        return jnp.concatenate([log_p[..., : min(size, trie.unknown)], beyond], axis=-1)

    def _contexts(self, context: Int[Array, "b n"]) -> list[Int[Array, "b n"]]:
        """A context and the shorter ones, as many as there may be; the empty one, which has no continuations
        and costs nothing, at the end."""
        contexts = [context]
        for _ in range(self._trie.order - 2):
            contexts.append(jnp.asarray(self._trie.suffix)[contexts[-1]])
        return contexts if self._trie.order > 1 else []

    def _entry(
        self, context: Int[Array, "b n"], token: Int[Array, "b n"]
    ) -> tuple[Int[Array, "b n"], Bool[Array, "b n"]]:
        """Where a token is stored among the continuations of a context, and whether it is."""
        trie = self._trie
        max_arcs = int((trie.last - trie.first).max())
        first, last, tokens = map(jnp.asarray, (trie.first, trie.last, trie.tokens))
        return arc_of(first[context], last[context], tokens, token, max_arcs)


def example(weight: float) -> dict[str, Any]:
    """The arrays of one input."""
    return {WEIGHT: weight}
