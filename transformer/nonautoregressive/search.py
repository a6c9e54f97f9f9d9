"""Finding translations with parallel decoders: plan, draft, and for masks mend again and again."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config import SpecialIds
from transformer.decoding.beam import (
    NEVER,
    SearchResult,
    as_variables,
    chunks,
    empty_rows,
    length_limits,
)
from transformer.errors import UserError
from transformer.model.transformer import Memory
from transformer.nonautoregressive.config import ParallelDecodingConfig
from transformer.nonautoregressive.model import ParallelTransformer, copied_places

Apply = Callable[..., Any]
"""A method of the model, by name, on its variables."""


@functools.partial(jax.jit, static_argnames=("model", "options"))
def parallel_search(
    model: ParallelTransformer,
    params: Any,
    source: Int[Array, "b s"],
    lines: Int[Array, " b"],
    options: ParallelDecodingConfig,
) -> SearchResult:
    """Translations of every sentence, the candidates in order of score: the mean log-probability of
    a candidate's words, in nats.

    Args:
      source: ids, each sentence closed by <eos>, then <pad>.
      lines: the numbers of the input lines, folded into the key that draws fertilities.
    """
    variables, c = as_variables(params), model.config
    if options.iterations > 1 and c.fed != "masked":
        raise UserError(f"--decoding.iterations: a decoder fed with {c.fed} says everything once")
    if options.length_scale != 1 and c.fed == "bos":
        raise UserError("--decoding.length-scale: a decoder fed with bos predicts no length")
    apply: Any = functools.partial(model.apply, variables)
    limits, longest = length_limits(source, c.special.pad, options.extra_length, options.max_length)
    memory = apply(source, method="encode")
    if c.fed == "bos":
        draft = jnp.full((source.shape[0], c.places), c.special.bos)
        return cut_at_eos(apply(memory, draft, method="logits")[:, :longest], limits, c.special)
    plan = apply(memory, method="plan")
    n = 1 if options.method == "greedy" else options.beam_size
    if c.fed == "fertility":
        fertilities = draw_fertilities(plan, source != c.special.pad, lines, n, options.seed)
        lengths = fertilities.sum(axis=-1)
    else:
        fertilities = None
        n = min(n, plan.shape[-1])
        _, classes = jax.lax.top_k(plan, n)
        lengths = (source != c.special.pad).sum(axis=1)[:, None] + classes - c.length_span
    lengths = jnp.clip(jnp.round(lengths * options.length_scale).astype(jnp.int32), 1, limits[:, None])
    lengths = jnp.where(empty_rows(source, c.special.pad)[:, None], 1, lengths)

    # candidates become rows: the decoder knows nothing of beams
    batch = source.shape[0]
    rows = jax.tree.map(lambda x: jnp.repeat(x, n, axis=0), memory)
    lengths = lengths.reshape(-1)

    def draft_of(size: int) -> Any:
        places = jnp.arange(size) < lengths[:, None]
        if fertilities is None:
            draft = jnp.where(places, c.special.bos, c.special.pad)
        else:
            draft = copied_places(
                jnp.repeat(source, n, axis=0), fertilities.reshape(batch * n, -1), places, c.special.pad
            )
        tokens, log_p = say(apply, c.special, rows, draft, lengths)
        if c.fed == "masked":
            tokens, log_p = mend(apply, c.special, rows, tokens, log_p, lengths, options.iterations)
        score = (log_p * places).sum(axis=1) / lengths
        return jnp.pad(tokens, ((0, 0), (0, longest - size)), constant_values=c.special.pad), score

    # as many places as the longest candidate needs, not as any sentence might
    sizes = chunks(longest)
    needed = (lengths.max() > jnp.asarray(sizes)).sum()
    tokens, scores = jax.lax.switch(needed, [functools.partial(draft_of, size) for size in sizes])
    return _in_order(tokens.reshape(batch, n, -1), scores.reshape(batch, n))


def say(
    apply: Apply,
    special: SpecialIds,
    memory: Memory,
    draft: Int[Array, "b t"],
    lengths: Int[Array, " b"],
) -> tuple[Int[Array, "b t"], Float[Array, "b t"]]:
    """The likeliest word at every place of the draft, and its log-probability: <eos> at the last
    place, a word before it, <pad> after it."""
    logits = apply(memory, draft, method="logits")
    vocabulary, at = jnp.arange(logits.shape[-1]), jnp.arange(draft.shape[1])
    silent = (vocabulary == special.pad) | (vocabulary == special.bos)
    last = (at == lengths[:, None] - 1)[..., None]
    allowed = jnp.where(last, vocabulary == special.eos, ~silent & (vocabulary != special.eos))
    tokens = jnp.where(allowed, logits, NEVER).argmax(axis=-1)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
    return jnp.where(at < lengths[:, None], tokens, special.pad), log_p


def mend(
    apply: Apply,
    special: SpecialIds,
    memory: Memory,
    tokens: Int[Array, "b t"],
    log_p: Float[Array, "b t"],
    lengths: Int[Array, " b"],
    iterations: int,
) -> tuple[Int[Array, "b t"], Float[Array, "b t"]]:
    """Mask-predict (Ghazvininejad et al. 2019, section 3): the least certain words are masked and
    said anew, fewer each time: N (T - t) / T of N words in iteration t of T."""
    places = jnp.arange(tokens.shape[1]) < lengths[:, None]

    def again(t: Array, drafted: tuple[Array, Array]) -> tuple[Array, Array]:
        tokens, log_p = drafted
        number = lengths * (iterations - t) // iterations
        rank = jnp.argsort(jnp.argsort(jnp.where(places, log_p, jnp.inf), axis=1), axis=1)
        masked: Bool[Array, "b t"] = places & (rank < number[:, None])
        draft = jnp.where(masked, special.bos, tokens)
        said, said_log_p = say(apply, special, memory, draft, lengths)
        return jnp.where(masked, said, tokens), jnp.where(masked, said_log_p, log_p)

    return jax.lax.fori_loop(1, iterations, again, (tokens, log_p))


def draw_fertilities(
    logits: Float[Array, "b s f"],
    words: Bool[Array, "b s"],
    lines: Int[Array, " b"],
    n: int,
    seed: int,
) -> Int[Array, "b n s"]:
    """The likeliest fertilities, and n - 1 times drawn ones (Gu et al. 2018, section 4.2)."""

    def draw(line: Array, logits: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), line)
        return jax.random.categorical(key, logits, shape=(n - 1, logits.shape[0]))

    likeliest = logits.argmax(axis=-1)[:, None, :]
    drawn = jnp.concatenate([likeliest, jax.vmap(draw)(lines, logits)], axis=1)
    return jnp.where(words[:, None, :], drawn, 0)


def cut_at_eos(logits: Float[Array, "b t v"], limits: Int[Array, " b"], special: SpecialIds) -> SearchResult:
    """The likeliest word at every place up to the first <eos>; one candidate."""
    vocabulary, at = jnp.arange(logits.shape[-1]), jnp.arange(logits.shape[1])
    silent = (vocabulary == special.pad) | (vocabulary == special.bos)
    tokens = jnp.where(silent, NEVER, logits).argmax(axis=-1)
    tokens = jnp.where(at >= jnp.minimum(limits, at.size)[:, None] - 1, special.eos, tokens)
    lengths = (tokens == special.eos).argmax(axis=1) + 1
    inside = at < lengths[:, None]
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
    scores = (log_p * inside).sum(axis=1) / lengths
    return SearchResult(jnp.where(inside, tokens, special.pad)[:, None], scores[:, None])


def _in_order(tokens: Int[Array, "b n t"], scores: Float[Array, "b n"]) -> SearchResult:
    order = jnp.argsort(-scores, axis=1)
    return SearchResult(
        jnp.take_along_axis(tokens, order[:, :, None], axis=1), jnp.take_along_axis(scores, order, axis=1)
    )
