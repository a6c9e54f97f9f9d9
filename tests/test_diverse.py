"""Diverse beam search against a slow reference, and minimum Bayes risk against sacreBLEU."""

import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import MODEL, SOURCES, NextLogP, Scored, hypotheses, next_log_p, random_variables
from sacrebleu.metrics.chrf import CHRF
from small_translator import small_translator

from transformer import BeamConfig, UserError
from transformer.decoding.searches.search import autoregressive_search
from transformer.tasks.text import expected_chrf, pairwise_chrf

SPECIAL = MODEL.config.special
Lives = list[list[Scored]]


def slow_diverse(ask: NextLogP, size: int, groups: int, strength: float, penalty: Any, limit: int) -> Lives:
    """The finished hypotheses of each group, by whole prefixes."""
    each = size // groups
    live: Lives = [[(0.0, ())] for _ in range(groups)]
    finished: Lives = [[] for _ in range(groups)]
    for length in range(1, limit + 1):
        taken: dict[int, int] = {}
        for group in range(groups):
            if not live[group]:
                continue
            rows = ask([tokens for _, tokens in live[group]])
            candidates = [
                (score + gained - strength * taken.get(token, 0), score + gained, (*tokens, token))
                for (score, tokens), row in zip(live[group], rows, strict=True)
                for token, gained in enumerate(row)
                if token not in (SPECIAL.pad, SPECIAL.bos) and (length < limit or token == SPECIAL.eos)
            ]
            candidates = sorted(candidates, reverse=True)[: 2 * each]
            ended = [(s / penalty(length), t) for _, s, t in candidates[:each] if t[-1] == SPECIAL.eos]
            finished[group] = sorted([*finished[group], *ended], reverse=True)[:each]
            live[group] = [(s, t) for _, s, t in candidates if t[-1] != SPECIAL.eos][:each]
            for _, tokens in live[group]:
                taken[tokens[-1]] = taken.get(tokens[-1], 0) + 1
    return finished


@pytest.mark.by_default("0.7-4-2")
@pytest.mark.parametrize(("size", "groups"), [(4, 2), (4, 4), (6, 2)])
@pytest.mark.parametrize("strength", [0.0, 0.7, 5.0])
def test_diverse_beam_search_equals_the_slow_one(size: int, groups: int, strength: float) -> None:
    variables = random_variables(MODEL, 3)
    options = BeamConfig(beam_size=size, groups=groups, diversity=strength, extra_length=3)
    lines = jnp.arange(len(SOURCES))
    found = autoregressive_search(MODEL, variables, {"source": jnp.asarray(SOURCES)}, lines, options)
    for row, source in enumerate(SOURCES):
        limit, ask = int((source != SPECIAL.pad).sum()) + 3, next_log_p(MODEL, variables, source)
        slow = slow_diverse(ask, size, groups, strength, lambda length: ((5 + length) / 6) ** 0.6, limit)
        wanted = sorted((each for group in slow for each in group), reverse=True)
        ours = hypotheses(found, row, SPECIAL)
        np.testing.assert_allclose([score for score, _ in ours], [score for score, _ in wanted], atol=1e-5)
        assert sorted(tokens for _, tokens in ours) == sorted(tokens for _, tokens in wanted)


@pytest.mark.slow
def test_groups_say_different_things() -> None:
    translator, sources = small_translator(), ["red green blue", "cat dog"]
    options = {"beam_size": 4, "extra_length": 3}
    alike = translator.search(sources, groups=4, diversity=0.0, **options)
    apart = translator.search(sources, groups=4, diversity=100.0, **options)
    for same, different in zip(alike, apart, strict=True):
        assert len({each.text for each in same}) == 1
        assert len({each.tokens[:1] for each in different}) == 4
    with pytest.raises(UserError, match="must divide"):
        translator.search(sources, beam_size=4, groups=3)


@pytest.mark.thorough
def test_what_several_groups_find_is_listed_once() -> None:
    translator = small_translator()
    for several in translator.search(["red green", "cat"], beam_size=6, groups=3, diversity=0.0):
        assert len({each.ids for each in several}) == len(several) == 2
        assert [each.score for each in several] == sorted((each.score for each in several), reverse=True)


@pytest.mark.slow
def test_chrf_of_all_pairs_is_sacrebleus() -> None:
    rng = random.Random(0)
    words = ["red", "green", "blau", "Größe", "a", "ababab", "日本", "über-all", ",", "aa", "aaaa"]
    texts = [" ".join(rng.choices(words, k=rng.randrange(0, 12))) for _ in range(34)]
    texts += ["", "a", "ab cde f"]
    matrix, metric, pairs = pairwise_chrf(texts), CHRF(), 0
    for row, hypothesis in enumerate(texts):
        for column, reference in enumerate(texts):
            if not reference.strip():  # sacreBLEU refuses some of them
                continue
            expected = metric.sentence_score(hypothesis, [reference]).score
            assert matrix[row, column] == pytest.approx(expected, abs=1e-3)
            pairs += 1
    assert pairs > 1000
    assert expected_chrf(["x"]).tolist() == [100]
    assert expected_chrf(["ab", "ab", "zz"]).tolist() == [50, 50, 0]


@pytest.mark.thorough
@pytest.mark.by_default("beam")
@pytest.mark.parametrize("candidates", ["sample", "beam"])
def test_minimum_bayes_risk_chooses_by_expected_chrf(candidates: str) -> None:
    translator, sources = small_translator(), ["red green blue", "cat dog", "", "sings"]
    options = {"method": "mbr", "samples": 5, "candidates": candidates, "extra_length": 3}
    found = translator.search(sources, **options)
    drawn = {"sample": {"method": "sample", "samples": 5}, "beam": {"beam_size": 5}}[candidates]
    every = translator.search(sources, extra_length=3, **drawn)
    for source, best, several in zip(sources, found, every, strict=True):
        if not source:
            assert best[0].text == ""
            continue
        texts = [each.text for each in several]
        utilities = expected_chrf(texts)
        assert best[0].score == pytest.approx(utilities.max())
        assert best[0].text in {texts[i] for i in np.flatnonzero(utilities > utilities.max() - 1e-6)}
        assert {each.text for each in best} == set(texts)
    assert [len(each) for each in translator.search(sources, n_best=1, **options)] == [1] * 4
    with pytest.raises(UserError, match="needs an autoregressive model"):
        small_translator("nonautoregressive").search(sources, method="mbr")
