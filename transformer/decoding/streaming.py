"""Generation without an end: token by token, in memory of constant size.

A search stores its hypotheses in rings as long as its longest output. Here the host takes each token as it
comes, so the ring of keys and values is only as long as attention reaches, and its oldest column is written
next.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.calls import special_ids
from transformer.decoding.sampling import draw_next, restrict
from transformer.decoding.scores import NEVER
from transformer.model.cache import Cache
from transformer.model.parameters import Variables


@dataclass(frozen=True)
class Draw:
    """How each token is chosen."""

    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False
    """The most probable one."""


def streamed(
    model: nn.Module,
    variables: Variables,
    prompt: Int[Array, "1 s"],
    columns: int,
    draw: Draw,
    key: Array,
    temperature: float,
    num_generated: int = 0,
) -> Iterator[tuple[int, float]]:
    """Yields tokens and their log-probabilities in nats, without end: the caller stops at <eos>.

    Args:
      model: with `encode`, `init_cache` and `decode_step`.
      variables: of the model.
      prompt: ids, <pad> after them.
      columns: of the ring; as many as a token attends to, itself included.
      draw: how tokens are chosen.
      key: a random key; the number of tokens before is folded into it.
      temperature: of sampling.
      num_generated: how many tokens were generated before the prompt, for the key.
    """
    token = jnp.full((1, 1), special_ids(model).bos, jnp.int32)
    cache = _init_cache(model, variables, prompt, columns)
    while True:
        cache, token, log_p = _next(model, draw, variables, cache, token, key, num_generated, temperature)
        num_generated += 1
        yield int(token[0, 0]), float(log_p)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _init_cache(model: nn.Module, variables: Variables, prompt: Int[Array, "1 s"], columns: int) -> Cache:
    memory = model.apply(variables, prompt, method="encode")
    cache: Cache = model.apply(variables, memory, 1, columns, method="init_cache")  # type: ignore[assignment]
    return jax.tree.map(jnp.copy, cache)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _next(
    model: nn.Module,
    draw: Draw,
    variables: Variables,
    cache: Cache,
    token: Int[Array, "1 1"],
    key: Array,
    num_generated: Int[Array, ""] | int,
    temperature: Float[Array, ""] | float,
) -> tuple[Cache, Int[Array, "1 1"], Float[Array, ""]]:
    """The token after this one."""
    special = special_ids(model)
    output: tuple[Array, Cache] = model.apply(variables, cache, token, method="decode_step")  # type: ignore[assignment]
    logits, cache = output
    log_p = jax.nn.log_softmax(logits[0])
    possible = logits[0].at[:, jnp.asarray(special.never_predicted)].set(NEVER)
    if draw.greedy:
        chosen = possible.argmax(axis=-1)
    else:
        possible = restrict(possible, temperature, draw.top_k, draw.top_p)
        chosen = draw_next(key, num_generated, possible)
    return cache, chosen[None].astype(jnp.int32), log_p[0, chosen[0]]
