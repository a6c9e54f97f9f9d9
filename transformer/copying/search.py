"""Searching with a model that copies, and what it makes of a given translation."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import DecodingConfig
from transformer.copying.model import CopyingTransformer
from transformer.copying.objective import forced
from transformer.decoding.beam import SearchResult
from transformer.decoding.search import autoregressive_search


def copying_search(
    model: CopyingTransformer,
    variables: Any,
    source: Int[Array, "b s"],
    lines: Int[Array, " b"],
    options: DecodingConfig,
) -> SearchResult:
    """`autoregressive_search`, its copied words named as the source names them."""
    found = autoregressive_search(model, variables, source, lines, options)
    return found.replace(tokens=named(found.tokens, source, model.config.output_size))  # type: ignore[attr-defined]


@functools.partial(jax.jit, static_argnums=2)
def named(tokens: Int[Array, "b n t"], source: Int[Array, "b s"], vocab_size: int) -> Int[Array, "b n t"]:
    """Ids at or above the vocabulary's size, places of the source, as the ids that stand there."""
    place = jnp.clip(tokens - vocab_size, 0, source.shape[1] - 1)
    there = jnp.take_along_axis(source[:, None, :], place, axis=2)
    return jnp.where(tokens >= vocab_size, there, tokens)


def copying_scores(
    model: CopyingTransformer, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, " b"]:
    """log P(target | source) in nats, <eos> counted."""
    log_p, _, _ = forced(model, variables, source, target)
    return (log_p * (target != model.config.special.pad)).sum(axis=1)


def pointers(
    model: CopyingTransformer, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, "b t s"]:
    """Where each token of a translation would be copied from."""
    _, _, mixture = forced(model, variables, source, target)
    return mixture.pointer
