"""Beam search (section 6.1) as one compiled program, with a cache of fixed size that is never reordered.

A hypothesis has the score log P(Y | X) / lp(|Y|) (Wu et al. 2016, Eq. 14), where |Y| counts <eos>. The
default stopping criterion is exact: log-probabilities only decrease, so a sentence is done as soon as no live
beam could beat the worst finished hypothesis, even at the best length that it can still reach.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.decoding.calls import Inputs, advance, as_variables, begin, special_ids
from transformer.decoding.hooks import NO_HOOK, HookState, SearchHook, allowed, first_states
from transformer.model.cache import ByRows, Cache, States
from transformer.model.parameters import Variables
from transformer.runtime.sharding import on_one_cpu

LengthPenalty = Callable[[Float[Array, "..."]], Float[Array, "..."]]
CHUNKS = (32, 128, 512)  # lengths at which the cache grows; each makes a program larger and slower to compile
FEW_CHUNKS = (128, 512)  # for few rows, whose steps mostly read the weights; these compile faster
MANY = 16  # rows of a large batch, for which narrowing to fewer rows pays
NEVER = -jnp.inf


@struct.dataclass
class SearchResult:
    """Translations, best first. `tokens` end with <eos>, then <pad>. Empty slots have the score -inf."""

    tokens: Int[Array, "batch beam time"]
    scores: Float[Array, "batch beam"]
    """log P(Y | X) / lp(|Y|)."""
    log_probabilities: Float[Array, "batch beam"]
    """log P(Y | X), in nats."""


@functools.lru_cache
def wu_penalty(alpha: float) -> LengthPenalty:
    """lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, Eq. 14)."""
    return lambda length: ((5 + length) / 6) ** alpha


@functools.lru_cache
def power_penalty(alpha: float) -> LengthPenalty:
    """lp(Y) = |Y|^alpha, as in Marian and Hugging Face."""
    return lambda length: length**alpha


@struct.dataclass
class _Finished:
    """The best finished hypotheses so far: each continues live beam `beam` with <eos> at `step`."""

    scores: Float[Array, "b n"]
    step: Int[Array, "b n"]
    beam: Int[Array, "b n"]


@struct.dataclass
class _Past(ByRows):
    """What a search keeps of the past besides tokens: the model's cache, and the hook's states."""

    cache: Cache
    hook: States[HookState]

    def grow(self, length: int) -> "_Past":
        return _Past(self.cache.grow(length), self.hook)


@struct.dataclass
class _Search(ByRows):
    step: Int[Array, ""]
    live: Float[Array, "b n"]  # log-probabilities of the unfinished beams
    newest: Int[Array, "b n"]  # and their last tokens
    tokens: Int[Array, "b t n"]  # the token of each live beam at each step
    parents: Int[Array, "b t n"]  # and the beam that it continued
    finished: _Finished
    done: Bool[Array, " b"]
    limits: Int[Array, " b"]  # maximum length of each translation


def as_penalty(length_penalty: float | LengthPenalty) -> LengthPenalty:
    """The length penalty as a function of |Y|, given that function or alpha of `wu_penalty`."""
    return length_penalty if callable(length_penalty) else wu_penalty(length_penalty)


def in_order(
    tokens: Int[Array, "b n t"], log_p: Float[Array, "b n"], penalty: LengthPenalty, pad: int
) -> SearchResult:
    """Sorts complete translations by score, best first."""
    scores = log_p / penalty(lengths(tokens, pad))
    order = jnp.argsort(-scores, axis=1)
    tokens = jnp.take_along_axis(tokens, order[:, :, None], axis=1)
    return SearchResult(tokens, *(jnp.take_along_axis(x, order, axis=1) for x in (scores, log_p)))


def lengths(tokens: Int[Array, "b n t"], pad: int) -> Float[Array, "b n"]:
    """|Y| of translations, counting <eos>; 1 for empty rows, since it is a divisor."""
    return jnp.maximum((tokens != pad).sum(axis=-1), 1).astype(jnp.float32)


@struct.dataclass
class Limits:
    """The maximum length of each output, counting <eos>."""

    each: Int[Array, " b"]
    """0 for a row that only pads the batch."""
    longest: int = struct.field(pytree_node=False)
    """An upper bound of all, on which the compiled program depends."""


def source_limits(source: Int[Array, "b s"], pad: int, extra_length: int, max_length: int | None) -> Limits:
    """The limits of translations, relative to the lengths of their sources."""
    longest = source.shape[1] + extra_length
    longest = max(1, longest if max_length is None else min(longest, max_length))
    lengths = (source != pad).sum(axis=1)
    return Limits(jnp.where(lengths > 0, jnp.clip(lengths + extra_length, 1, longest), 0), longest)


def chunks(longest: int, rows: int = MANY) -> tuple[int, ...]:
    """The cache lengths of a search: each is a part of the compiled program that runs only if needed."""
    sizes = CHUNKS if rows >= MANY else FEW_CHUNKS
    return (*(size for size in sizes if 1.5 * size <= longest), longest)


def fewer_rows(batch: int) -> tuple[int, ...]:
    """The numbers of rows to which a search narrows as its sentences are done, down to 0. On a CPU the cost
    of a step is proportional to its rows; on accelerators or several devices fewer rows are no faster."""
    narrow = batch >= MANY and on_one_cpu()
    return (batch // 2, batch // 4, batch // 8, 0) if narrow else (0,)


@functools.partial(
    jax.jit, static_argnames=("model", "beam_size", "length_penalty", "stop", "max_length", "extra_length")
)
def beam_search(
    model: nn.Module,
    params: Variables,
    source_ids: Int[Array, "batch s"],
    *,
    beam_size: int = 4,
    length_penalty: float | LengthPenalty = 0.6,
    stop: str = "exact",
    max_length: int | None = None,
    extra_length: int = 50,
) -> SearchResult:
    """The `beam_size` best translations of each sentence.

    Args:
      model: as `search_beams`.
      params: its parameters, or its variables.
      source_ids: each sentence closed by <eos>, then <pad>. Rows of <pad> alone are skipped.
      beam_size: number of live hypotheses, and of translations returned.
      length_penalty: alpha of `wu_penalty`, or a monotonic function of |Y| to divide by.
      stop: "exact", "present" or "full", see `DecodingConfig.stop`.
      max_length: maximum length of a translation, counting <eos>. None: only extra_length limits it.
      extra_length: maximum length relative to the source, counting <eos>.
    """
    limits = source_limits(source_ids, special_ids(model).pad, extra_length, max_length)
    return search_beams(
        model,
        params,
        {"source": source_ids},
        limits,
        beam_size=beam_size,
        length_penalty=length_penalty,
        stop=stop,
    )


@functools.partial(jax.jit, static_argnames=("model", "beam_size", "length_penalty", "stop", "hook"))
def search_beams(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    limits: Limits,
    *,
    beam_size: int = 4,
    length_penalty: float | LengthPenalty = 0.6,
    stop: str = "exact",
    hook: SearchHook = NO_HOOK,
) -> SearchResult:
    """The `beam_size` best outputs for each row of any inputs.

    Args:
      model: anything with `encode`, `init_cache`, `decode_step` and `config.special`
        (`transformer.model.encoder_decoder.EncoderDecoder`).
      params: its parameters, or its variables.
      inputs: the arguments of `encode`.
      limits: the maximum length of each output. Rows with limit 0 are skipped.
      beam_size: number of live hypotheses, and of outputs returned.
      length_penalty: alpha of `wu_penalty`, or a monotonic function of |Y| to divide by.
      stop: "exact", "present" or "full", see `DecodingConfig.stop`.
      hook: restricts the tokens, see `transformer.decoding.hooks`.
    """
    variables, special = as_variables(params), special_ids(model)
    penalty = as_penalty(length_penalty)
    longest, batch, n = limits.longest, limits.each.shape[0], beam_size
    few, *fewer = fewer_rows(batch)

    def enough(
        finished: _Finished, live: Float[Array, "b n"], length: Int[Array, ""], limits: Int[Array, " b"]
    ) -> Bool[Array, " b"]:
        """Whether the search of each sentence can stop."""
        worst = finished.scores.min(axis=1)
        match stop:
            case "full":
                return worst > NEVER
            case "present":
                best_penalty = penalty(length.astype(jnp.float32))
            case _:  # the penalty is monotonic: the best reachable length is the next one or the last one
                best_penalty = jnp.maximum(penalty(length + 1.0), penalty(jnp.maximum(limits, length + 1.0)))
        return worst >= live.max(axis=1) / best_penalty

    def step(search: _Search, past: _Past) -> tuple[_Search, _Past]:
        logits, cache = advance(model, variables, past.cache, search.newest)
        log_normaliser = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        length, limits, rows = search.step + 1, search.limits, len(search.live)
        best, token = top_k(allowed(hook, logits, past.hook.value, special, length >= limits), 2 * n)
        candidates = (search.live[:, :, None] + best - log_normaliser).reshape(rows, -1)
        scores, chosen = jax.lax.top_k(candidates, min(2 * n, candidates.shape[1]))
        parent = chosen // token.shape[-1]
        token = jnp.take_along_axis(token.reshape(rows, -1), chosen, axis=1)

        ended = token == special.eos
        # <eos> counts only among the n best candidates
        complete = ended & (jnp.arange(scores.shape[1]) < n) & ~search.done[:, None]
        normalised = jnp.where(complete, scores, NEVER) / penalty(length.astype(jnp.float32))
        finished = _merge(search.finished, _Finished(normalised, jnp.full_like(parent, search.step), parent))

        live, going_on = jax.lax.top_k(jnp.where(ended, NEVER, scores), n)
        parent, token = (jnp.take_along_axis(x, going_on, axis=1) for x in (parent, token))
        search = _Search(
            step=length,
            live=live,
            newest=token,
            tokens=search.tokens.at[:, search.step].set(token),
            parents=search.parents.at[:, search.step].set(parent),
            finished=finished,
            done=search.done | enough(finished, live, length, limits) | (length >= limits),
            limits=limits,
        )
        hooked = States(hook.advance(token, past.hook.select(parent).value))
        return search, _Past(cache.select(parent), hooked)

    def loop(search: _Search, past: _Past, length: int, rows: int) -> tuple[_Search, _Past]:
        """Runs steps while the cache has room and more than `rows` sentences are not done."""

        def going_on(carry: tuple[_Search, _Past]) -> Array:
            return (carry[0].step < length) & ((~carry[0].done).sum() > rows)

        return jax.lax.while_loop(going_on, lambda carry: step(*carry), (search, past))

    def run(search: _Search, past: _Past, lengths: tuple[int, ...]) -> tuple[_Search, Any]:
        """Continues with a cache of lengths[0] steps, then with longer ones while many sentences are not
        done. Also returns the last few of these separately."""
        search, past = loop(search, past, lengths[0], few)

        def stop() -> tuple[_Search, Any]:
            return search, narrowed(search, past.grow(longest), few) if few else ()

        if len(lengths) == 1:
            return stop()
        longer = functools.partial(run, search, past.grow(lengths[1]), lengths[1:])
        return jax.lax.cond((~search.done).sum() > few, longer, stop)

    def narrowed(search: _Search, past: _Past, size: int) -> tuple[Array, _Search, _Past]:
        """Selects `size` sentences, including all that are not done: their rows, search and cache."""
        rows = jnp.argsort(search.done)[:size]
        return rows, search.take_rows(rows), past.take_rows(rows)

    def rest(search: _Search, rows: Array, part: _Search, past: _Past, few: int, *fewer: int) -> _Search:
        """Continues with these rows alone, and narrows again when at most `few` are not done."""
        part, past = loop(part, past, longest, few)
        if few:
            part = rest(part, *narrowed(part, past, few), *fewer)
        return search.put_rows(rows, part)

    sizes = chunks(longest, batch)
    cache = begin(model, variables, inputs, n, sizes[0])
    zeros = jnp.zeros((batch, n), jnp.int32)
    start = _Search(
        step=jnp.zeros((), jnp.int32),
        live=jnp.full((batch, n), NEVER).at[:, 0].set(0.0),  # all beams are equal at first
        newest=jnp.full((batch, n), special.bos, jnp.int32),
        tokens=jnp.zeros((batch, longest, n), jnp.int32),
        parents=jnp.zeros((batch, longest, n), jnp.int32),
        finished=_Finished(jnp.full((batch, n), NEVER), zeros, zeros),
        done=limits.each == 0,
        limits=limits.each,
    )
    search, last = run(start, _Past(cache, States(first_states(hook, inputs, n))), sizes)
    if few:
        search = rest(search, *last, *fewer)
    tokens, scores = _trace_back(search, special.eos, special.pad), search.finished.scores
    return SearchResult(tokens, scores, scores * penalty(lengths(tokens, special.pad)))


def _merge(kept: _Finished, new: _Finished) -> _Finished:
    """The best of both, as many as in `kept`; ties go to the older."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), kept, new)
    scores, chosen = jax.lax.top_k(both.scores, kept.scores.shape[1])
    step, beam = (jnp.take_along_axis(x, chosen, axis=1) for x in (both.step, both.beam))
    return _Finished(scores, step, beam)


def _trace_back(search: _Search, eos: int, pad: int) -> Int[Array, "b n t"]:
    """The tokens of the finished hypotheses, traced back from their ends."""
    finished = search.finished
    unfilled = finished.scores == NEVER

    def back(
        beam: Int[Array, "b n"], at: tuple[Array, Array, Array]
    ) -> tuple[Int[Array, "b n"], Int[Array, "b n"]]:
        step, tokens, parents = at
        token = jnp.take_along_axis(tokens, beam, axis=1)
        token = jnp.where(step < finished.step, token, jnp.where(step == finished.step, eos, pad))
        before = jnp.where(step < finished.step, jnp.take_along_axis(parents, beam, axis=1), beam)
        return before, jnp.where(unfilled, pad, token)

    tokens, parents = (jnp.moveaxis(x, 1, 0) for x in (search.tokens, search.parents))
    steps = (jnp.arange(len(tokens)), tokens, parents)
    _, tokens = jax.lax.scan(back, finished.beam, steps, reverse=True)
    return tokens.transpose(1, 2, 0)


def top_k(x: Float[Array, "b n v"], k: int) -> tuple[Float[Array, "b n k"], Int[Array, "b n k"]]:
    """`lax.top_k`, exact, but twice as fast on CPUs for wide rows: the k largest values are in the k blocks
    with the largest maxima, so only those are sorted."""
    width, k = x.shape[-1], min(k, x.shape[-1])
    block = 128
    if width < 2 * k * block or jax.default_backend() != "cpu":
        return tuple(jax.lax.top_k(x, k))  # type: ignore[return-value]
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, -width % block)), constant_values=NEVER)
    blocks = padded.reshape(*x.shape[:-1], -1, block)
    _, winners = jax.lax.top_k(blocks.max(axis=-1), k)
    winners = jnp.sort(winners, axis=-1)  # ties go to the first, as in lax.top_k
    inside = jnp.take_along_axis(blocks, winners[..., None], axis=-2)
    values, places = jax.lax.top_k(inside.reshape(*x.shape[:-1], -1), k)
    winner = jnp.take_along_axis(winners, places // block, axis=-1)
    return values, winner * block + places % block
