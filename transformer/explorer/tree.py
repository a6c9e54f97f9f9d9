"""The beam search of one sentence, step by step, with all candidates."""

import functools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer.config.decoding import DecodingConfig
from transformer.config.ranges import Option
from transformer.decoding.beam import BeamSearch, Candidates
from transformer.decoding.calls import Inputs, as_variables, special_ids
from transformer.decoding.hooks import NO_HOOKS, NO_OUTPUT
from transformer.decoding.scores import NEVER, SearchResult
from transformer.decoding.searches.search import (
    AutoregressiveSearch,
    RowOptions,
    length_penalty,
    noise_of,
    penalty_of,
    row_limits,
    strategy_of,
)
from transformer.decoding.slots import Slots, init_slots
from transformer.decoding.steering.terms import ConstrainedBeam
from transformer.decoding.steps import Selection, extend, predict
from transformer.explorer.attention import check_inspectable
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.tasks.texts.requests import TranslationRequest
from transformer.translator.decoder import Decoder
from transformer.translator.search_inputs import search_of_one
from transformer.translator.translator import Translator

Fate = Literal["live", "finished", "pruned"]


@dataclass(frozen=True)
class Candidate:
    """A continuation of a live beam that a step of the search considered."""

    step: int
    """The length of the candidate in tokens, counting <eos>; from 1."""
    rank: int
    """Its rank among the candidates of its step, from 0: by log-probability, with the repetition penalty and
    under the noise of the search; with terms, banks take turns."""
    parent: int | None
    """Index in the tree of the candidate that it continues. None: <s>."""
    token: str
    log_p: float
    """log P of all its tokens under the model, in nats."""
    gained: float
    """log P of its last token, given the previous ones, in nats."""
    fate: Fate
    """live: the search continues it; finished: it ends in <eos> and is among the beam_size best of its step;
    pruned: others were better."""
    score: float | None = None
    """The score of a finished candidate, as `Hypothesis.score`. None: it is not finished."""
    place: int | None = None
    """Rank among the returned hypotheses, from 0. None: it is not one of them."""
    why: str = ""
    """Why it was kept or dropped."""
    completes: tuple[str, ...] = ()
    """The terms of which it is the last token."""


@dataclass(frozen=True)
class SearchTree:
    """All candidates of a beam search, step by step, best first in each step."""

    candidates: tuple[Candidate, ...]
    beam_size: int

    def hypotheses(self) -> list[Candidate]:
        """The last candidate of each hypothesis that the search returned, best first."""
        finished = [candidate for candidate in self.candidates if candidate.place is not None]
        return sorted(finished, key=lambda candidate: candidate.place or 0)

    def path(self, candidate: Candidate) -> list[Candidate]:
        """The candidates from the first token to this one."""
        path = [candidate]
        while path[-1].parent is not None:
            path.append(self.candidates[path[-1].parent])
        return path[::-1]


def search_tree(
    translator: Decoder[Any],
    source: str,
    *,
    prefix: str = "",
    terms: Sequence[str] = (),
    **options: Option,
) -> SearchTree:
    """The beam search of `translator.search([source], **options)`, or of a prompt, with all its candidates.

    Args:
      translator: an autoregressive Transformer.
      source: the sentence, or the prompt.
      prefix: what the translation must start with.
      terms: words and phrases that must occur in it.
      options: any field of `DecodingConfig`.

    Raises:
      UserError: as `attention_of`; or the options select another search method.
    """
    check_inspectable(translator, source)
    settings = translator.settings(None, options)
    request: Any = (
        TranslationRequest(source, "", prefix, tuple(terms)) if isinstance(translator, Translator) else source
    )
    system, task = translator.system, translator.task
    search, inputs = search_of_one(system, task, request, settings, translator.language_model)
    strategy: Any = strategy_of(settings, getattr(search, "hooks", NO_HOOKS))
    if not isinstance(strategy, BeamSearch):
        raise UserError(
            f"--decoding.method {settings.method}: only a beam search without groups has a tree, choose beam"
        )
    penalty = length_penalty(settings, getattr(search, "hooks", NO_HOOKS))
    phrases = dict[str, tuple[int, ...]]()
    forced = 0
    if isinstance(translator, Translator):
        steering = translator.task.text_steering
        phrases = {term: steering.term(term) for term in terms}
        forced = len(translator.task.forced_ids(request)) + len(steering.split_prefix(prefix)[0])
    elif prefix or terms:
        raise UserError("a prefix and terms are for sentences with a source: begin the prompt with them")
    job = translator.model, search, settings.shared(), translator.variables
    row_options = jax.tree.map(jnp.asarray, RowOptions.of([settings], [1], 1))  # as the first line
    slots = _first_slot(*job, inputs, row_options)
    eos = translator.task.special.eos
    candidates: list[Candidate] = []
    tokens: list[int] = []
    above: list[int | None] = [None] * strategy.beam_size  # the candidate that each beam is
    ends: dict[tuple[int, int], int] = {}  # the candidate that ends a beam at a step
    ids: list[tuple[int, ...]] = [()] * strategy.beam_size  # of each beam
    while not slots.done[0]:
        step = int(slots.length[0])
        before = np.asarray((slots.log_p or slots).live[0])
        slots, step_candidates, log_p_of, met, chosen = _step(*job, slots)
        live = {
            (int(parent), int(token)): beam
            for beam, (parent, token) in enumerate(zip(chosen.parents[0], chosen.tokens[0], strict=True))
            if chosen.live[0, beam] > NEVER
        }
        beams: list[int | None] = [None] * strategy.beam_size
        new_ids = list(ids)
        columns = step_candidates.log_p, step_candidates.parent, step_candidates.token, met
        rows = list(zip(*(np.asarray(x[0]) for x in columns), strict=True))
        reason_of = _reasons(strategy.beam_size, step < forced, bool(phrases), rows, live)
        for rank, (total, parent, token, bank) in enumerate(rows):
            if total == NEVER:
                break
            fate: Fate = "pruned"
            score = None
            if token == eos and rank < strategy.beam_size:
                fate = "finished"
                score = float(total / penalty(np.float32(step + 1)))
                ends[step, int(parent)] = len(candidates)
            elif (int(parent), int(token)) in live:
                fate = "live"
                beam = live[int(parent), int(token)]
                beams[beam] = len(candidates)
                new_ids[beam] = (*ids[parent], int(token))
            log_p = float(log_p_of[0, rank])
            so_far = (*ids[parent], int(token))
            why = reason_of(fate, float(total), bool(token == eos), int(bank))
            done = tuple(term for term, phrase in phrases.items() if so_far[-len(phrase) :] == phrase)
            reached = above[parent], "", log_p, log_p - float(before[parent]), fate, score
            candidates.append(Candidate(step + 1, rank, *reached, why=why, completes=done))
            tokens.append(int(token))
        above = beams
        ids = new_ids
    scores, steps, parents = (np.asarray(x[0]) for x in jax.tree.leaves(slots.finished))
    returned = [rank for rank in np.argsort(-scores, kind="stable") if scores[rank] > NEVER]
    if not returned:
        raise UserError(NO_OUTPUT)
    positions = {
        ends[int(steps[rank]), int(parents[rank])]: position for position, rank in enumerate(returned)
    }
    pieces = translator.task.pieces(_named(*job[:2], tokens, inputs), request)
    return SearchTree(
        tuple(
            replace(candidate, token=piece, place=positions.get(index))
            for index, (candidate, piece) in enumerate(zip(candidates, pieces, strict=True))
        ),
        strategy.beam_size,
    )


def _reasons(
    beam_size: int,
    is_forced: bool,
    is_divided: bool,
    rows: Sequence[tuple[Any, ...]],
    live: Container[tuple[int, int]],
) -> Callable[[Fate, float, bool, int], str]:
    """Why the candidates of a step were kept or dropped: (fate, log P, whether it ends, how many tokens of
    terms it has) -> the reason in words.

    Args:
      beam_size: number of beams.
      is_forced: whether the prefix decides about this step.
      is_divided: whether the beam is divided by the tokens of terms that hypotheses have (`ConstrainedBeam`).
      rows: log P, parent, token and tokens of terms of each candidate.
      live: parent and token of those that the search continues.
    """
    live_log_p = [log_p for log_p, parent, token, _ in rows if (int(parent), int(token)) in live]

    def reason_of(fate: Fate, log_p: float, ends: bool, met: int) -> str:
        if is_forced and fate == "live":
            return "forced by the prefix"
        reason = {
            "live": f"one of the first {beam_size} that continue",
            "finished": f"ends as one of the first {beam_size}",
            "pruned": f"ends, but {beam_size} come before it"
            if ends
            else f"{beam_size} others continue before it",
        }[fate]
        if not is_divided:
            return reason
        if fate == "live" and sum(other > log_p for other, *_ in rows) >= beam_size:
            return f"kept for its {met} tokens of terms, by which the beam is divided"
        if fate == "pruned" and not ends and any(other < log_p for other in live_log_p):
            return f"the part of the beam for {met} tokens of terms goes to others"
        return f"{reason}; tokens of terms: {met}"

    return reason_of


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _first_slot(
    model: nn.Module,
    search: AutoregressiveSearch,
    options: DecodingConfig,
    variables: Variables,
    inputs: Inputs,
    row_options: RowOptions,
) -> Slots:
    """One slot before its first step."""
    limits = row_limits(search, inputs, special_ids(model), options, row_options)
    model_variables = as_variables(variables)
    return init_slots(
        model,
        model_variables,
        inputs,
        limits,
        limits.longest,
        strategy_of(options, search.hooks).first(),
        penalty_of(options, search.hooks, row_options),
        search.hooks,
        (),
        noise_of(options, row_options),
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _step(
    model: nn.Module,
    search: AutoregressiveSearch,
    options: DecodingConfig,
    variables: Variables,
    slots: Slots,
) -> tuple[Slots, Candidates, Array, Array, Selection]:
    """`transformer.decoding.steps.step`, with its candidates, their log P, their banks, and what it chose of
    them."""
    strategy: Any = strategy_of(options, search.hooks)
    eos = special_ids(model).eos
    predicted = predict(model, as_variables(variables), slots, search.hooks)
    chosen = strategy(slots, predicted, eos)
    step_candidates = strategy.candidates(slots, predicted)
    log_p = step_candidates.log_p
    if slots.log_p is not None and predicted.log_p is not None:
        row = jnp.arange(len(log_p))[:, None]
        log_p = (
            slots.log_p.live[row, step_candidates.parent]
            + predicted.log_p[row, step_candidates.parent, step_candidates.token]
        )
    met = jnp.zeros_like(step_candidates.token)
    if isinstance(strategy, ConstrainedBeam):
        met = strategy.met(strategy.state(slots), step_candidates.parent, step_candidates.token)
    return extend(slots, predicted, chosen, search.hooks, eos), step_candidates, log_p, met, chosen


def _named(model: nn.Module, search: AutoregressiveSearch, tokens: list[int], inputs: Inputs) -> list[int]:
    """The ids that the task reads."""
    none = jnp.zeros((1, 1))
    result = search.named(model, SearchResult(jnp.array(tokens, jnp.int32)[None, None], none, none), inputs)
    return [int(token) for token in np.asarray(result.tokens)[0, 0]]
