"""Search, scores and alignments of pointer-generator models."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.calls import Inputs
from transformer.decoding.scores import SearchResult
from transformer.decoding.search import AutoregressiveSearch
from transformer.model.parameters import Variables
from transformer.systems.copying.model import CopyingTransformer
from transformer.systems.copying.objective import forced


@functools.partial(jax.jit, static_argnums=2)
def named(tokens: Int[Array, "b n t"], source: Int[Array, "b s"], vocab_size: int) -> Int[Array, "b n t"]:
    """Replaces ids at or above the vocabulary size, which are source positions, by the ids there."""
    place = jnp.clip(tokens - vocab_size, 0, source.shape[1] - 1)
    there = jnp.take_along_axis(source[:, None, :], place, axis=2)
    return jnp.where(tokens >= vocab_size, there, tokens)


def _copied_words(model: CopyingTransformer, found: SearchResult, inputs: Inputs) -> SearchResult:
    """The source's ids for copied words."""
    return replace(found, tokens=named(found.tokens, inputs["source"], model.config.output_size))


copying_search = AutoregressiveSearch(named=_copied_words)


def copying_scores(
    model: CopyingTransformer, variables: Variables, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, " b"]:
    """log P(target | source) in nats, including <eos>."""
    log_p, _, _ = forced(model, variables, source, target)
    return (log_p * (target != model.config.special.pad)).sum(axis=1)


def pointers(
    model: CopyingTransformer, variables: Variables, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, "b t s"]:
    """The pointer distribution over the source for each token of a translation."""
    _, _, mixture = forced(model, variables, source, target)
    return mixture.pointer
