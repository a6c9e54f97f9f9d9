"""The most probable tokens of a step are exact, however they are found."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import MODEL, SOURCES, hypotheses, next_log_p, random_variables, slow_search, with_rules
from tiers import combinations

from transformer.config.decoding import BeamConfig
from transformer.config.model import SpecialIds
from transformer.decoding import steps
from transformer.decoding.beam import beam_search
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.strides import top_k_of_strides
from transformer.decoding.top_k import Unrestricted, best_in_one_pass, best_of_whole, top_k

SPECIAL = SpecialIds(pad=1, bos=3, eos=0, unk=2)


def logits_of(width: int, seed: int) -> list[jax.Array]:
    """Logits of which all are different, many the same, few possible, or only the last."""
    rng = np.random.default_rng(width + seed)
    values = [
        rng.normal(size=(2, 3, width)),
        rng.integers(0, 4, (2, 3, width)) / 4,
        np.where(rng.random((2, 3, width)) < 3 / width, 1.0, -np.inf),
        np.where(np.arange(width) == width - 1, np.ones((2, 3, width)), -np.inf),
    ]
    return [jnp.asarray(each, jnp.float32) for each in values]


@pytest.mark.parametrize(("width", "k"), combinations([5000, 16001], [1, 8, 40]))
def test_top_k_is_exact(width: int, k: int) -> None:
    for x in logits_of(width, k):
        for found, expected in zip(top_k(x, k), jax.lax.top_k(x, k), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("width", "k"), combinations([5000, 16001, 37000], [1, 8, 16]))
def test_the_top_k_of_tpus_is_exact(width: int, k: int) -> None:
    for x in logits_of(width, k):
        best, columns = top_k_of_strides(k, x)
        np.testing.assert_array_equal(best, jax.lax.top_k(x, k)[0])
        np.testing.assert_array_equal(best, np.take_along_axis(np.asarray(x), np.asarray(columns), -1))
        assert all(len(set(row)) == k for row in np.asarray(columns).reshape(-1, k))
    np.testing.assert_array_equal(columns[..., 0], width - 1)


def test_top_k_of_fewer_is_all_of_them() -> None:
    values, indices = top_k(jnp.asarray([[[1.0, 3.0, 2.0]]]), 5)
    np.testing.assert_array_equal(values, [[[3, 2, 1]]])
    np.testing.assert_array_equal(indices, [[[1, 2, 0]]])


def best_of_gpus(unrestricted: Unrestricted, k: int) -> Any:
    log_normaliser = jax.nn.logsumexp(unrestricted.logits, axis=-1, keepdims=True)
    return *best_of_whole(unrestricted, k), log_normaliser


@pytest.mark.thorough
@pytest.mark.by_default("best_of_gpus-5000-8")
@pytest.mark.parametrize(("width", "k"), combinations([9, 5000, 16001, 37000], [1, 8, 16]))
@pytest.mark.parametrize("best_of", [best_in_one_pass, best_of_gpus])
def test_accelerators_find_the_best_that_are_allowed(best_of: Any, width: int, k: int) -> None:
    if best_of is best_of_gpus and width < k + 2:
        pytest.skip("narrow rows are sorted whole")
    never, compared = [SPECIAL.pad, SPECIAL.bos], 0
    for x in [*logits_of(width, k), *logits_of(width, k + 1)]:
        x = x.at[0, 0, jnp.array(never)].set(9.0).at[0, 1, SPECIAL.pad].set(9.0)  # the best are forbidden
        last = jnp.array([False, True])
        best, tokens, log_normaliser = map(np.asarray, best_of(Unrestricted(x, last, SPECIAL), k))
        allowed = np.array(x, np.float64)
        allowed[..., never] = -np.inf
        allowed[1, :, 1:] = -np.inf  # all but <eos>
        expected = np.full((2, 3, k), -np.inf)
        expected[..., :width] = -np.sort(-allowed)[..., :k]
        np.testing.assert_array_equal(best, expected)
        there = best > -np.inf
        np.testing.assert_array_equal(best[there], np.take_along_axis(allowed, tokens, -1)[there])
        for row, certain in zip(tokens.reshape(-1, k), there.reshape(-1, k), strict=True):
            assert len(set(row[certain])) == certain.sum()
        with np.errstate(divide="ignore"):
            summed = np.log(np.exp(np.array(x, np.float64)).sum(axis=-1, keepdims=True))
        np.testing.assert_allclose(log_normaliser, summed, rtol=1e-6, atol=1e-6)
        compared += there.sum()
    assert compared > 6 * k


@pytest.mark.slow
def test_one_pass_of_very_different_logits_does_not_overflow() -> None:
    x = jnp.linspace(-3e4, 3e4, 9000).reshape(1, 1, -1).at[..., 5].set(-jnp.inf)
    _, tokens, log_normaliser = best_in_one_pass(Unrestricted(x, jnp.array([False]), SPECIAL), 2)
    np.testing.assert_array_equal(tokens, [[[8999, 8998]]])
    np.testing.assert_allclose(log_normaliser, jax.nn.logsumexp(x, axis=-1, keepdims=True))
    none = jnp.full((1, 1, 9000), -jnp.inf)
    _, _, log_normaliser = best_in_one_pass(Unrestricted(none, jnp.array([False]), SPECIAL), 2)
    assert (log_normaliser < -1e30).all()


@pytest.mark.by_default("3")
@pytest.mark.parametrize("beams", [1, 3, 5])
def test_a_search_in_one_pass_agrees_with_the_slow_search(beams: int, monkeypatch: Any) -> None:
    """With a vocabulary of few tokens, of which there are fewer than a search asks for."""
    calls = []

    def one_pass(unrestricted: Unrestricted, k: int, *plain: Any) -> Any:
        calls.append(k)
        return best_in_one_pass(unrestricted, k)

    monkeypatch.setattr(steps, "best_of", one_pass)
    limits = {"max_length": None, "extra_length": 2}
    sources = jnp.asarray(SOURCES)
    found_by = jax.jit(
        lambda v: beam_search.__wrapped__(MODEL, v, sources, beam_size=beams, length_penalty=0.6, **limits)
    )
    for seed in range(2):
        variables = random_variables(MODEL, seed)
        result = found_by(variables)
        for row, source in enumerate(SOURCES):
            limit = int((source != MODEL.config.special.pad).sum()) + 2
            ask = next_log_p(MODEL, variables, source)
            expected = slow_search(
                ask, MODEL.config.special, beams, lambda length: ((5 + length) / 6) ** 0.6, limit
            )
            found = hypotheses(result, row, MODEL.config.special)
            assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
            np.testing.assert_allclose(
                [score for score, _ in found], [score for score, _ in expected], rtol=1e-4, atol=1e-4
            )
    assert calls == [2 * beams]


@pytest.mark.slow
def test_what_hooks_forbid_is_found_by_all_logits(monkeypatch: Any) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(steps, "best_of", never)
    options = BeamConfig(beam_size=2, extra_length=3, min_length=4)
    search, inputs = with_rules(AutoregressiveSearch(), {"source": jnp.asarray(SOURCES)}, options)
    lines = jnp.arange(len(SOURCES))
    found = search(MODEL, random_variables(MODEL, 0), inputs, lines, options)
    for row in range(len(SOURCES)):
        assert all(len(tokens) >= 4 for _, tokens in hypotheses(found, row, MODEL.config.special))
