"""Greedy search and sampling, with the cache of beam search."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.beam import (
    NEVER,
    LengthPenalty,
    Limits,
    SearchResult,
    as_penalty,
    chunks,
    in_order,
    source_limits,
)
from transformer.decoding.calls import Inputs, advance, as_variables, begin, special_ids
from transformer.decoding.hooks import NO_HOOK, SearchHook, allowed, first_states
from transformer.model.parameters import Variables


def restrict(
    logits: Float[Array, "... v"],
    temperature: float | Float[Array, ""] = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Float[Array, "... v"]:
    """Logits of the distribution to sample from: divided by the temperature, restricted to the top_k highest
    (0: all; Fan et al. 2018), then to the smallest set of tokens whose probabilities add up to top_p (nucleus
    sampling, Holtzman et al. 2020). Ties are kept or removed together."""
    logits = logits / temperature
    if top_k:
        lowest = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
        logits = jnp.where(logits < lowest, NEVER, logits)
    if top_p < 1:
        ordered = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        lowest = jnp.where(before < top_p, ordered, jnp.inf).min(axis=-1, keepdims=True)
        logits = jnp.where(logits < lowest, NEVER, logits)
    return logits


@functools.partial(jax.jit, static_argnames=("model", "length_penalty", "max_length", "extra_length"))
def greedy_search(
    model: nn.Module,
    params: Variables,
    source_ids: Int[Array, "batch s"],
    *,
    length_penalty: float | LengthPenalty = 0.6,
    max_length: int | None = None,
    extra_length: int = 50,
) -> SearchResult:
    """Outputs the most probable token at every step, like `beam_search` with beam_size 1 and no penalty.

    Arguments as in `beam_search`. The beam axis is 1, and the penalty only divides the score.
    """
    limits = source_limits(source_ids, special_ids(model).pad, extra_length, max_length)
    return search_greedily(model, params, {"source": source_ids}, limits, length_penalty=length_penalty)


@functools.partial(
    jax.jit,
    static_argnames=("model", "samples", "top_k", "top_p", "length_penalty", "max_length", "extra_length"),
)
def sample(
    model: nn.Module,
    params: Variables,
    source_ids: Int[Array, "batch s"],
    *,
    key: Array,
    lines: Int[Array, " batch"] | None = None,
    samples: int = 1,
    temperature: float | Float[Array, ""] = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length_penalty: float | LengthPenalty = 0.6,
    max_length: int | None = None,
    extra_length: int = 50,
) -> SearchResult:
    """Samples translations from the model.

    Args:
      model: as in `beam_search`.
      params: as in `beam_search`.
      source_ids: as in `beam_search`.
      key: a jax.random key.
      lines: a number for each sentence, folded into the key, so that a sample does not depend on the rest of
        the batch. None: 0, 1, 2, ...
      samples: number of samples per sentence: the beam axis of the result, in order of score.
      temperature: see `restrict`.
      top_k: restricts samples to the k most probable tokens. 0: all.
      top_p: restricts samples to the most probable tokens with this total probability.
      length_penalty: as in `beam_search`. It does not affect the samples.
      max_length: as in `beam_search`.
      extra_length: as in `beam_search`.

    Returns:
      Translations with their log-probabilities under the unrestricted model.
    """
    limits = source_limits(source_ids, special_ids(model).pad, extra_length, max_length)
    return draw_samples(
        model,
        params,
        {"source": source_ids},
        limits,
        key=key,
        lines=lines,
        samples=samples,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        length_penalty=length_penalty,
    )


@functools.partial(jax.jit, static_argnames=("model", "length_penalty", "hook"))
def search_greedily(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    limits: Limits,
    *,
    length_penalty: float | LengthPenalty = 0.6,
    hook: SearchHook = NO_HOOK,
) -> SearchResult:
    """`greedy_search` for any inputs. Arguments as in `search_beams`."""
    tokens, log_p = _continue(
        model, params, inputs, limits, hook, lambda logits, step: logits.argmax(-1), samples=1
    )
    return in_order(tokens, log_p, as_penalty(length_penalty), special_ids(model).pad)


@functools.partial(jax.jit, static_argnames=("model", "samples", "top_k", "top_p", "length_penalty", "hook"))
def draw_samples(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    limits: Limits,
    *,
    key: Array,
    lines: Int[Array, " batch"] | None = None,
    samples: int = 1,
    temperature: float | Float[Array, ""] = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length_penalty: float | LengthPenalty = 0.6,
    hook: SearchHook = NO_HOOK,
) -> SearchResult:
    """`sample` for any inputs. Arguments as in `sample` and `search_beams`."""
    lines = jnp.arange(limits.each.shape[0]) if lines is None else lines
    keys = jax.vmap(lambda line: jax.random.fold_in(key, line))(lines)

    def draw(logits: Float[Array, "b n v"], step: Int[Array, ""]) -> Int[Array, "b n"]:
        now = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
        return jax.vmap(jax.random.categorical)(now, restrict(logits, temperature, top_k, top_p))

    tokens, log_p = _continue(model, params, inputs, limits, hook, draw, samples)
    return in_order(tokens, log_p, as_penalty(length_penalty), special_ids(model).pad)


def _continue(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    limits: Limits,
    hook: SearchHook,
    choose: Callable[[Float[Array, "b n v"], Int[Array, ""]], Int[Array, "b n"]],
    samples: int,
) -> tuple[Int[Array, "b n t"], Float[Array, "b n"]]:
    """Generates the tokens that `choose(logits, step)` returns, until every hypothesis has ended."""
    variables, special = as_variables(params), special_ids(model)
    batch, longest, n = limits.each.shape[0], limits.longest, samples

    def step(carry: Any) -> Any:
        at, (cache, state), newest, tokens, scores, ended = carry
        logits, cache = advance(model, variables, cache, newest)
        log_normaliser = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        logits = allowed(hook, logits, state, special, at + 1 >= limits.each)
        token = choose(logits, at)
        gained = jnp.take_along_axis(logits - log_normaliser, token[:, :, None], axis=-1)[:, :, 0]
        scores = scores + jnp.where(ended, 0.0, gained)
        tokens = tokens.at[:, :, at].set(jnp.where(ended, special.pad, token))
        past = cache, hook.advance(token, state)
        return at + 1, past, token, tokens, scores, ended | (token == special.eos)

    sizes = chunks(longest, batch)
    carry = (
        jnp.zeros((), jnp.int32),
        (begin(model, variables, inputs, n, sizes[0]), first_states(hook, inputs, n)),
        jnp.full((batch, n), special.bos, jnp.int32),
        jnp.full((batch, n, longest), special.pad, jnp.int32),
        jnp.zeros((batch, n)),
        jnp.broadcast_to((limits.each == 0)[:, None], (batch, n)),
    )

    def run(carry: Any, sizes: tuple[int, ...]) -> Any:
        carry = jax.lax.while_loop(lambda c: (c[0] < sizes[0]) & ~c[-1].all(), step, carry)
        at, (cache, state), *rest = carry
        if len(sizes) == 1:
            return rest

        def longer() -> Any:
            return run((at, (cache.grow(sizes[1]), state), *rest), sizes[1:])

        return jax.lax.cond(rest[-1].all(), lambda: rest, longer)

    _, tokens, scores, _ = run(carry, sizes)
    return tokens, scores
