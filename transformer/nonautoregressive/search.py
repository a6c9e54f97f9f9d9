"""Finding translations with parallel decoders: plan, draft, and for masks refine again and again."""

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
    in_order,
    length_limits,
)
from transformer.decoding.search import length_penalty
from transformer.errors import UserError
from transformer.model.transformer import Memory
from transformer.nonautoregressive.config import NonAutoregressiveDecodingConfig
from transformer.nonautoregressive.model import NonAutoregressiveTransformer, copied_places

Apply = Callable[..., Any]
"""A method of the model, by name, on its variables."""


def nonautoregressive_search(
    model: NonAutoregressiveTransformer,
    params: Any,
    source: Int[Array, "b s"],
    lines: Int[Array, " b"],
    options: NonAutoregressiveDecodingConfig,
) -> SearchResult:
    """Translations of every sentence, the candidates in order of score. A log-probability is the sum
    over the words, each as likely as when it was decided.

    Args:
      source: ids, each sentence closed by <eos>, then <pad>.
      lines: the numbers of the input lines, folded into the key that draws fertilities.
    """
    key = jax.random.key(options.seed)
    return _search(model, params, source, lines, key, options.static())


@functools.partial(jax.jit, static_argnames=("model", "options"))
def _search(
    model: NonAutoregressiveTransformer,
    params: Any,
    source: Int[Array, "b s"],
    lines: Int[Array, " b"],
    key: Array,
    options: NonAutoregressiveDecodingConfig,
) -> SearchResult:
    variables, c = as_variables(params), model.config
    penalty = length_penalty(options)
    if options.iterations > 1 and c.decoder_input != "masked":
        raise UserError(f"--decoding.iterations: a decoder fed with {c.decoder_input} says everything once")
    if options.length_scale != 1 and c.decoder_input == "bos":
        raise UserError("--decoding.length-scale: a decoder fed with bos predicts no length")
    apply: Any = functools.partial(model.apply, variables)
    limits, longest = length_limits(source, c.special.pad, options.extra_length, options.max_length)
    memory = apply(source, method="encode")
    if c.decoder_input == "bos":
        draft = jnp.full((source.shape[0], c.bos_length), c.special.bos)
        tokens, log_p = cut_at_eos(apply(memory, draft, method="logits")[:, :longest], limits, c.special)
        return in_order(tokens[:, None], log_p[:, None], penalty, c.special.pad)
    plan = apply(memory, method="plan")
    n = 1 if options.method == "greedy" else options.beam_size
    if c.decoder_input == "fertility":
        fertilities = draw_fertilities(plan, source != c.special.pad, lines, n, key)
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
        tokens, log_p = predict(apply, c.special, rows, draft, lengths)
        if c.decoder_input == "masked":
            tokens, log_p = refine(apply, c.special, rows, tokens, log_p, lengths, options.iterations)
        padded = jnp.pad(tokens, ((0, 0), (0, longest - size)), constant_values=c.special.pad)
        return padded, (log_p * places).sum(axis=1)

    # as many places as the longest candidate needs, not as any sentence might
    sizes = chunks(longest)
    needed = (lengths.max() > jnp.asarray(sizes)).sum()
    tokens, log_p = jax.lax.switch(needed, [functools.partial(draft_of, size) for size in sizes])
    return in_order(tokens.reshape(batch, n, -1), log_p.reshape(batch, n), penalty, c.special.pad)


def predict(
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


def refine(
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
        said, said_log_p = predict(apply, special, memory, draft, lengths)
        return jnp.where(masked, said, tokens), jnp.where(masked, said_log_p, log_p)

    return jax.lax.fori_loop(1, iterations, again, (tokens, log_p))


def draw_fertilities(
    logits: Float[Array, "b s f"],
    words: Bool[Array, "b s"],
    lines: Int[Array, " b"],
    n: int,
    key: Array,
) -> Int[Array, "b n s"]:
    """The likeliest fertilities, and n - 1 times drawn ones (Gu et al. 2018, section 4.2)."""

    def draw(line: Array, logits: Array) -> Array:
        mine = jax.random.fold_in(key, line)
        return jax.random.categorical(mine, logits, shape=(n - 1, logits.shape[0]))

    likeliest = logits.argmax(axis=-1)[:, None, :]
    drawn = jnp.concatenate([likeliest, jax.vmap(draw)(lines, logits)], axis=1)
    return jnp.where(words[:, None, :], drawn, 0)


def cut_at_eos(
    logits: Float[Array, "b t v"], limits: Int[Array, " b"], special: SpecialIds
) -> tuple[Int[Array, "b t"], Float[Array, " b"]]:
    """The likeliest word at every place up to the first <eos>, and the sum of their log-probabilities."""
    vocabulary, at = jnp.arange(logits.shape[-1]), jnp.arange(logits.shape[1])
    silent = (vocabulary == special.pad) | (vocabulary == special.bos)
    tokens = jnp.where(silent, NEVER, logits).argmax(axis=-1)
    tokens = jnp.where(at >= jnp.minimum(limits, at.size)[:, None] - 1, special.eos, tokens)
    lengths = (tokens == special.eos).argmax(axis=1) + 1
    inside = at < lengths[:, None]
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
    return jnp.where(inside, tokens, special.pad), (log_p * inside).sum(axis=1)
