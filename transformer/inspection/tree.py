"""The beam search of one sentence, repeated step by step on the host, with all candidates.

`beam_search` is one compiled program and stores only what it needs. This search runs the same model step by
step and records everything. Both return the same hypotheses, as a test shows.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config import Option
from transformer.decoding.beam import source_limits
from transformer.decoding.calls import advance, as_variables, begin
from transformer.decoding.hooks import NO_OUTPUT
from transformer.decoding.search import length_penalty
from transformer.errors import UserError
from transformer.inspection.attention import check_inspectable
from transformer.model.cache import Cache
from transformer.model.parameters import Variables
from transformer.systems.copying.search import named
from transformer.translator.translator import Translator

Fate = Literal["live", "finished", "pruned"]


@dataclass(frozen=True)
class Candidate:
    """A continuation of a live beam that a step of the search considered."""

    step: int
    """Its length in tokens, counting <eos>; from 1."""
    rank: int
    """Its rank among the candidates of its step, from 0."""
    parent: int | None
    """Index in the tree of the candidate that it continues. None: <s>."""
    token: str
    log_p: float
    """log P of all its tokens, in nats."""
    gained: float
    """log P of its last token, given the previous ones, in nats."""
    fate: Fate
    """live: the search continues it; finished: it ends in <eos> and is among the beam_size best of its step;
    pruned: others were better."""
    score: float | None = None
    """log_p divided by the length penalty, for finished candidates."""
    place: int | None = None
    """Rank among the returned hypotheses, from 0. None: it is not one of them."""


@dataclass(frozen=True)
class SearchTree:
    """All candidates of a beam search, step by step, best first in each step."""

    candidates: tuple[Candidate, ...]
    beam_size: int

    def hypotheses(self) -> list[Candidate]:
        """The last candidate of each hypothesis that the search returned, best first."""
        kept = [candidate for candidate in self.candidates if candidate.place is not None]
        return sorted(kept, key=lambda candidate: candidate.place or 0)

    def path(self, candidate: Candidate) -> list[Candidate]:
        """The candidates from the first token to this one."""
        path = [candidate]
        while path[-1].parent is not None:
            path.append(self.candidates[path[-1].parent])
        return path[::-1]


@dataclass
class _Expanded:
    """The candidates of a step with finite log-probability, best first."""

    log_p: Float[np.ndarray, " c"]
    gained: Float[np.ndarray, " c"]
    beam: Int[np.ndarray, " c"]
    token: Int[np.ndarray, " c"]


def search_tree(translator: Translator, source: str, **options: Option) -> SearchTree:
    """The beam search of `translator.search([source], **options)`, with all its candidates.

    Args:
      source: the sentence.
      options: any field of `DecodingConfig`.

    Raises:
      UserError: as `attention_of`; or the options select another search method.
    """
    check_inspectable(translator, source)
    settings = translator.settings(None, options)
    if settings.method != "beam":
        raise UserError(f"--decoding.method {settings.method}: only a beam search has a tree, choose beam")
    special, n = translator.task.special, settings.beam_size
    penalty: Any = length_penalty(settings)  # given a plain number, it returns one
    row = jnp.asarray(translator.source_row(source, **options))
    limits = source_limits(row, special.pad, settings.extra_length, settings.max_length)
    limit = int(limits.each[0])

    cache = _begin(translator.model, as_variables(translator.variables), row, n, limits.longest)
    live, newest = np.full(n, -np.inf, np.float32), np.full((1, n), special.bos, np.int32)
    live[0] = 0.0
    above: list[int | None] = [None] * n  # the index of the candidate of each beam
    candidates: list[Candidate] = []
    tokens: list[int] = []
    kept: list[int] = []  # the indices of the finished hypotheses, best first
    for length in range(1, limit + 1):
        step = _step(translator.model, as_variables(translator.variables), cache, newest)
        (logits, log_normaliser), cache = (np.asarray(x)[0] for x in step[:2]), step[2]
        only = special.eos if length == limit else None
        expanded = _expand(logits, log_normaliser, live, (special.pad, special.bos), only)
        going_on: list[int] = []
        for rank, token in enumerate(expanded.token):
            # <eos> counts only among the n best candidates
            fate: Fate = "pruned"
            score = None
            if token == special.eos and rank < n:
                fate, score = "finished", float(expanded.log_p[rank] / penalty(length))
            elif token != special.eos and len(going_on) < n:
                fate = "live"
                going_on.append(rank)
            beam = expanded.beam[rank]
            log_p, gained = float(expanded.log_p[rank]), float(expanded.gained[rank])
            candidates.append(Candidate(length, rank, above[beam], "", log_p, gained, fate, score))
            tokens.append(int(token))
            if fate == "finished":
                kept.append(len(candidates) - 1)
        first = len(candidates) - len(expanded.token)
        # ties go to the older; the sort is stable
        kept = sorted(kept, key=lambda index: -_score(candidates[index]))[:n]
        parents = np.zeros((1, n), np.int32)
        live, above = np.full(n, -np.inf, np.float32), [None] * n
        for beam, rank in enumerate(going_on):
            live[beam], above[beam] = expanded.log_p[rank], first + rank
            parents[0, beam], newest[0, beam] = expanded.beam[rank], expanded.token[rank]
        worst = _score(candidates[kept[-1]]) if len(kept) == n else -np.inf
        if _enough(settings.stop, worst, live, length, limit, penalty):
            break
        cache = cache.select(jnp.asarray(parents))
    if not kept:
        raise UserError(NO_OUTPUT)

    ids = np.array(tokens, np.int32)
    size = translator.config.model.output_size
    if (ids >= size).any():  # copied words are still positions of the source
        ids = np.asarray(named(jnp.asarray(ids)[None, None], row, size))[0, 0]
    pieces = translator.tokenizers[1].for_source(source).pieces([int(index) for index in ids])
    places = {index: place for place, index in enumerate(kept)}
    return SearchTree(
        tuple(
            dataclasses.replace(candidate, token=piece, place=places.get(index))
            for index, (candidate, piece) in enumerate(zip(candidates, pieces, strict=True))
        ),
        n,
    )


def _expand(
    logits: Float[np.ndarray, "n v"],
    log_normaliser: Float[np.ndarray, "n 1"],
    live: Float[np.ndarray, " n"],
    never: tuple[int, int],
    only: int | None,
) -> _Expanded:
    """The 2n most likely continuations of n live beams. At the maximum length, `only` is the only token."""
    allowed = np.full(logits.shape[1], only is None)
    allowed[list(never)] = False
    if only is not None:
        allowed[only] = True
    # the same order of operations as in beam_search, for the same rounding
    log_p = live[:, None] + np.where(allowed, logits, -np.inf) - log_normaliser
    flat = log_p.reshape(-1)
    chosen = np.argsort(-flat, kind="stable")[: 2 * len(live)]
    chosen = chosen[np.isfinite(flat[chosen])]
    beam, token = np.divmod(chosen, logits.shape[1])
    return _Expanded(flat[chosen], logits[beam, token] - log_normaliser[beam, 0], beam, token)


def _score(candidate: Candidate) -> float:
    return -np.inf if candidate.score is None else candidate.score


def _enough(
    stop: str, worst: float, live: np.ndarray, length: int, limit: int, penalty: Callable[[float], float]
) -> bool:
    """Whether the search can stop, by the criterion `DecodingConfig.stop`."""
    if stop == "full":
        return worst > -np.inf
    lengths = [length] if stop == "present" else [length + 1, max(limit, length + 1)]
    best_penalty = max(penalty(each) for each in lengths)
    return worst >= live.max() / best_penalty


@functools.partial(jax.jit, static_argnames=("model", "beam_size", "length"))
def _begin(
    model: nn.Module, variables: Variables, source: Int[Array, "1 s"], beam_size: int, length: int
) -> Any:
    return begin(model, variables, {"source": source}, beam_size, length)


@functools.partial(jax.jit, static_argnames="model")
def _step(
    model: nn.Module, variables: Variables, cache: Cache, tokens: Int[Array, "1 n"]
) -> tuple[Float[Array, "1 n v"], Float[Array, "1 n 1"], Cache]:
    """The logits of the next token of each beam, their log-normalisers (logsumexp), and the cache."""
    logits, cache = advance(model, variables, cache, tokens)
    return logits, jax.nn.logsumexp(logits, axis=-1, keepdims=True), cache
