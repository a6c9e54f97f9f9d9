"""Beam search agrees with exhaustive and slow searches, independently of the rest of the batch."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from reference_search import (
    MODEL,
    SOURCES,
    Scored,
    enumerate_all,
    hypotheses,
    next_log_p,
    random_variables,
    search_steps,
    slow_search,
)

from transformer.config.model import SpecialIds
from transformer.config.transformer import TransformerConfig
from transformer.decoding.beam import beam_search
from transformer.decoding.sampling import greedy_search
from transformer.decoding.scores import SearchResult, wu_penalty
from transformer.model.transformer import Transformer

SPECIAL = MODEL.config.special
# Other ids, normalisation, positions and embeddings than MODEL has, and two layers.
TINY = Transformer(
    TransformerConfig(
        vocab_size=6,
        num_layers=2,
        d_model=8,
        d_ff=16,
        num_heads=2,
        norm="pre",
        positions="learned",
        max_positions=22,
        special=SpecialIds(pad=5, bos=2, eos=3, unk=0),
    )
)
TINY_SOURCES = np.array([[0, 1, 4, 3], [4, 3, 5, 5]], np.int32)
# beam size: (max_length, extra_length); the sources have 2, 4, 5 and 6 tokens
LIMITS = {1: (None, 4), 3: (7, 4), 4: (1, 5), 5: (None, 0)}


@functools.partial(jax.jit, static_argnames=("model", "beam_size", "max_length", "extra_length", "stop"))
def search(
    model: Transformer,
    params: Any,
    sources: Any,
    alpha: float = 0.0,
    power: float = 0.0,
    *,
    beam_size: int,
    max_length: int | None,
    extra_length: int,
    stop: str = "exact",
) -> SearchResult:
    """`beam_search` with a length penalty whose exponents are data, so that all share one program."""
    return beam_search.__wrapped__(
        model,
        params,
        sources,
        beam_size=beam_size,
        length_penalty=lambda length: ((5 + length) / 6) ** alpha * length**power,
        stop=stop,
        max_length=max_length,
        extra_length=extra_length,
    )


def search_like(beam_size: int, params: Any, sources: Any = SOURCES, *exponents: float) -> SearchResult:
    max_length, extra_length = LIMITS[beam_size]
    return search(
        MODEL,
        params,
        sources,
        *exponents,
        beam_size=beam_size,
        max_length=max_length,
        extra_length=extra_length,
    )


def limit_of(source: np.ndarray, beam_size: int) -> int:
    max_length, extra_length = LIMITS[beam_size]
    longest = int((source != SPECIAL.pad).sum()) + extra_length
    return longest if max_length is None else min(longest, max_length)


def assert_same(found: list[Scored], expected: list[Scored]) -> None:
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    np.testing.assert_allclose(
        [score for score, _ in found], [score for score, _ in expected], rtol=1e-4, atol=1e-4
    )


@pytest.mark.thorough
def test_a_beam_as_wide_as_the_space_ranks_all_there_is() -> None:
    special, best = TINY.config.special, set()
    for seed in range(4):
        variables = random_variables(TINY, seed)
        everything = [
            enumerate_all(next_log_p(TINY, variables, source), [0, 1, 4], special.eos, limit=4)
            for source in TINY_SOURCES
        ]
        for alpha in (0.0, 0.6, 1.0, 3.0, -1.0):
            result = search(TINY, variables, TINY_SOURCES, alpha, beam_size=40, max_length=4, extra_length=9)
            for row, sentences in enumerate(everything):
                ranked = [(log_p / wu_penalty(alpha)(len(y)), y) for log_p, y in sentences]
                assert_same(hypotheses(result, row, special), sorted(ranked, reverse=True))
                best.add(max(ranked)[1])
    assert len({len(tokens) for tokens in best}) > 1


@pytest.mark.slow
def test_a_model_that_begins_with_eos_can_end() -> None:
    """Its first decoder input is predicted, at the end; padding still is not."""
    special = SpecialIds(pad=5, bos=3, eos=3, unk=0)
    model = Transformer(dataclasses.replace(TINY.config, special=special))
    variables = random_variables(model, 0)
    result = beam_search(model, variables, TINY_SOURCES, beam_size=100, max_length=4, extra_length=9)
    for row, source in enumerate(TINY_SOURCES):
        everything = enumerate_all(next_log_p(model, variables, source), [0, 1, 2, 4], special.eos, limit=4)
        expected = sorted(((p / wu_penalty(0.6)(len(y)), y) for p, y in everything), reverse=True)
        found = zip(np.asarray(result.tokens)[row], np.asarray(result.scores)[row], strict=True)
        ended = [(float(score), ids.tolist()) for ids, score in found if np.isfinite(score)]
        sentences = [(score, tuple(ids[: ids.index(special.eos) + 1])) for score, ids in ended]
        assert_same(sentences, expected)


@pytest.mark.by_default("4")
@pytest.mark.parametrize("beam_size", LIMITS)
def test_agrees_with_the_slow_search(beam_size: int) -> None:
    lengths, cut = set(), 0
    for seed in range(3):
        variables = random_variables(MODEL, seed)
        # half of the searches are given the parameters alone
        given = variables if beam_size % 2 else variables["params"]
        asks = [next_log_p(MODEL, variables, source) for source in SOURCES]
        for alpha, power in [(0.0, 0.0), (0.6, 0.0), (1.0, 0.0), (-0.5, 0.0), (0.0, 1.0)]:
            result = search_like(beam_size, given, SOURCES, alpha, power)
            for row, (source, ask) in enumerate(zip(SOURCES, asks, strict=True)):

                def penalty(length: float, alpha: float = alpha, power: float = power) -> float:
                    return ((5 + length) / 6) ** alpha * length**power

                limit = limit_of(source, beam_size)
                found = hypotheses(result, row, SPECIAL)
                assert_same(found, slow_search(ask, SPECIAL, beam_size, penalty, limit))
                assert len({tokens for _, tokens in found}) == len(found)
                assert found == sorted(found, reverse=True, key=lambda scored: scored[0])
                for _, tokens in found:
                    assert len(tokens) <= limit
                    lengths.add(len(tokens))
                    cut += len(tokens) == limit
    # the comparison proves little if all translations are similar
    assert len(lengths) >= min(4, limit)
    assert cut


@pytest.mark.slow
def test_one_beam_without_penalty_is_greedy_search() -> None:
    max_length, extra_length = LIMITS[1]
    for seed in range(8):
        variables = random_variables(MODEL, seed)
        found = search_like(1, variables)
        limits = {"max_length": max_length, "extra_length": extra_length}
        greedy = greedy_search(MODEL, variables, SOURCES, length_penalty=0.0, **limits)
        np.testing.assert_array_equal(found.tokens, greedy.tokens)
        np.testing.assert_allclose(found.scores, greedy.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_empty_row_is_not_searched_for() -> None:
    variables = random_variables(MODEL, 0)
    filled = np.concatenate([SOURCES, np.full_like(SOURCES[:1], SPECIAL.pad)])
    for by in (functools.partial(search_like, 3), functools.partial(greedy_search, MODEL)):
        found, alone = by(variables, filled), by(variables, SOURCES)
        assert (np.asarray(found.tokens[-1]) == SPECIAL.pad).all()
        for row in range(len(SOURCES)):
            assert_same(hypotheses(found, row, SPECIAL), hypotheses(alone, row, SPECIAL))


@pytest.mark.slow
def test_a_sentence_does_not_see_its_neighbours() -> None:
    max_length, extra_length = LIMITS[3]
    for seed in range(4):
        variables = random_variables(MODEL, seed)
        together = search_like(3, variables, SOURCES, 0.6)
        order = [2, 0, 3, 1]
        moved = search_like(3, variables, SOURCES[order], 0.6)
        repeated = search_like(3, variables, SOURCES[[1, 1, 1, 1]], 0.6)
        # fewer rows, more padding; and the penalty as a number instead of a function
        padded = beam_search(
            MODEL,
            variables,
            np.pad(SOURCES[[3, 0]], ((0, 0), (0, 3))),
            beam_size=3,
            length_penalty=0.6,
            max_length=max_length,
            extra_length=extra_length,
        )
        for place, row in enumerate(order):
            assert_same(hypotheses(moved, place, SPECIAL), hypotheses(together, row, SPECIAL))
        for place in range(4):
            assert_same(hypotheses(repeated, place, SPECIAL), hypotheses(together, 1, SPECIAL))
        for place, row in enumerate([3, 0]):
            assert_same(hypotheses(padded, place, SPECIAL), hypotheses(together, row, SPECIAL))


class CountingTransformer(Transformer):
    """Records every step that is executed in `executed`."""

    def decode_step(self, cache: Any, tokens: Any) -> Any:
        jax.debug.callback(lambda column: executed.append(int(column)), cache.column)
        return super().decode_step(cache, tokens)


executed: list[int] = []


@pytest.mark.thorough
@pytest.mark.parametrize("stop", ["exact", "present"])
def test_stops_as_soon_as_nothing_better_can_come(stop: str) -> None:
    """`exact` compares with the best that live beams can become, `present` with what they are."""
    # no other test searches with this model, so its programs are compiled here
    model = CountingTransformer(MODEL.config)
    penalty, steps = wu_penalty(0.6), set()
    for seed in range(6):
        variables = random_variables(MODEL, seed)
        executed.clear()
        limits = {"max_length": None, "extra_length": 15}
        result = search(model, variables, SOURCES, 0.6, beam_size=2, stop=stop, **limits)
        jax.block_until_ready(result)
        jax.effects_barrier()
        needed = 0
        for row, source in enumerate(SOURCES):
            limit = int((source != SPECIAL.pad).sum()) + 15
            searched = list(search_steps(next_log_p(MODEL, variables, source), SPECIAL, 2, penalty, limit))
            for step, (finished, live) in enumerate(searched, start=1):
                longest = limit if stop == "exact" else step
                if step == limit or (len(finished) == 2 and finished[-1][0] >= live[0][0] / penalty(longest)):
                    break
            needed = max(needed, step)
            assert_same(hypotheses(result, row, SPECIAL), searched[step - 1][0])
            assert stop == "present" or searched[step - 1][0] == searched[-1][0]
        assert sorted(executed) == list(range(needed))
        steps.add(needed)
    assert len(steps) > 1
