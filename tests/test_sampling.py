"""Samples follow the model's distribution, and depend only on the seed and the line."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import MODEL, SOURCES, hypotheses, log_p_of, next_log_p, random_variables

from transformer.decoding.sampling import drawn, greedy_search, restrict, sample
from transformer.decoding.scores import NEVER

SPECIAL = MODEL.config.special
LIMITS = {"max_length": None, "extra_length": 4, "length_penalty": 0.0}


def numpy_restrict(logits: np.ndarray, top_k: int, top_p: float) -> set[int]:
    """The tokens to keep of one distribution, with ties treated alike."""
    kept = set(range(len(logits)))
    if top_k:
        kept = {i for i in kept if (logits > logits[i]).sum() < top_k}
    p = {i: float(np.exp(logits[i])) for i in kept}
    total = sum(p.values())
    return {i for i in kept if top_p == 1 or sum(q for q in p.values() if q > p[i]) < top_p * total}


@pytest.mark.parametrize("top_k", [0, 1, 3, 50])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("tied", [False, True])
def test_restrict_keeps_the_right_tokens(top_k: int, top_p: float, tied: bool) -> None:
    rng = np.random.default_rng(top_k)
    logits = rng.normal(0, 2, (5, 4, 13)).astype(np.float32)
    logits = np.round(logits) if tied else logits
    for temperature in (0.5, 1.0, 2.0):
        found = np.asarray(restrict(jnp.asarray(logits), temperature, top_k, top_p))
        for row in np.ndindex(5, 4):
            kept = numpy_restrict(logits[row].astype(float) / temperature, top_k, top_p)
            assert set(np.flatnonzero(np.isfinite(found[row]))) == kept
            places = sorted(kept)
            np.testing.assert_allclose(found[row][places], logits[row][places] / temperature, rtol=1e-6)


def test_restrict_counts_equals_as_one() -> None:
    logits = jnp.array([2.0, 1.0, 2.0, 1.0, 0.0])
    kept = [
        np.flatnonzero(np.isfinite(restrict(logits, **options))).tolist()
        for options in ({"top_k": 1}, {"top_k": 3}, {"top_p": 0.1}, {"top_k": 3, "top_p": 0.75})
    ]
    assert kept == [[0, 2], [0, 1, 2, 3], [0, 2], [0, 1, 2, 3]]


@pytest.mark.thorough
@pytest.mark.by_default("options1")
@pytest.mark.parametrize("options", [{"temperature": 1e-6, "samples": 2}, {"top_k": 1}])
def test_nothing_left_to_chance_is_greedy_search(options: dict[str, Any]) -> None:
    for seed in range(4):
        variables = random_variables(MODEL, seed)
        drawn = sample(MODEL, variables, SOURCES, key=jax.random.key(seed), **options, **LIMITS)
        greedy = greedy_search(MODEL, variables, SOURCES, **LIMITS)
        for draw in range(options.get("samples", 1)):
            np.testing.assert_array_equal(drawn.tokens[:, draw], greedy.tokens[:, 0])
            np.testing.assert_allclose(drawn.scores[:, draw], greedy.scores[:, 0], atol=1e-4)


def test_greedy_search_says_the_likeliest_and_scores_it() -> None:
    lengths = set()
    for seed in range(8):
        variables = random_variables(MODEL, seed)
        result = greedy_search(MODEL, variables, SOURCES, **LIMITS | {"length_penalty": 0.6})
        for row, source in enumerate(SOURCES):
            ask, limit = next_log_p(MODEL, variables, source), (source != SPECIAL.pad).sum() + 4
            ((score, tokens),) = hypotheses(result, row, SPECIAL)
            penalty = ((5 + len(tokens)) / 6) ** 0.6
            assert score == pytest.approx(log_p_of(tokens, ask) / penalty, abs=1e-4)
            log_p = ask([tokens[:length] for length in range(len(tokens))])
            log_p[:, [SPECIAL.pad, SPECIAL.bos]] = -np.inf
            expected = [*log_p.argmax(axis=1)]
            if len(tokens) == limit:
                expected[-1] = SPECIAL.eos
            assert list(tokens) == expected
            assert len(tokens) <= limit
            lengths.add(len(tokens))
    assert len(lengths) >= 4


@pytest.mark.thorough
def test_first_tokens_are_as_frequent_as_the_model_says() -> None:
    variables, temperature = random_variables(MODEL, 5), 1.5
    same = SOURCES[[0, 0, 0, 0]]
    drawn = sample(
        MODEL,
        variables,
        same,
        key=jax.random.key(0),
        samples=500,
        temperature=temperature,
        max_length=2,
    )
    counts = np.bincount(np.asarray(drawn.tokens)[:, :, 0].ravel(), minlength=11)
    log_p = next_log_p(MODEL, variables, SOURCES[0])([()])[0] / temperature
    log_p[[SPECIAL.pad, SPECIAL.bos]] = -np.inf
    expected = np.exp(log_p) / np.exp(log_p).sum() * counts.sum()
    assert counts[expected == 0].sum() == 0
    likely = expected >= 5
    assert likely.sum() >= 4
    observed = [*counts[likely], counts[~likely].sum()]
    predicted = [*expected[likely], max(expected[~likely].sum(), 1.0)]
    chi_square = sum((o - e) ** 2 / e for o, e in zip(observed, predicted, strict=True))
    assert chi_square < 37  # 10 degrees of freedom at most: exceeded once in 20 000 seeds


@pytest.mark.slow
def test_a_draw_depends_on_the_seed_and_the_line_alone() -> None:
    options = {"samples": 3, "temperature": 1.3, "top_k": 8, "top_p": 0.95}
    variables = random_variables(MODEL, 5)

    def draw(sources: Any, lines: Any, seed: int = 0, given: Any = variables) -> Any:
        key = jax.random.key(seed)
        return sample(MODEL, given, sources, key=key, lines=jnp.asarray(lines), **options, **LIMITS)

    def drawn(result: Any, row: int) -> list[tuple[int, ...]]:
        return [tokens for _, tokens in hypotheses(result, row, SPECIAL)]

    lines = [11, 12, 13, 14]
    together = draw(SOURCES, lines)
    order = [2, 0, 3, 1]
    moved = draw(SOURCES[order], [lines[row] for row in order])
    for place, row in enumerate(order):
        assert drawn(moved, place) == drawn(together, row)
    # fewer rows, more padding, parameters alone
    padded = draw(np.pad(SOURCES[[3]], ((0, 0), (0, 3))), lines[3:], given=variables["params"])
    assert drawn(padded, 0) == drawn(together, 3)
    repeated = draw(SOURCES[[2, 2, 2, 2]], lines)
    assert drawn(repeated, 2) == drawn(together, 2)
    assert len({tuple(drawn(repeated, row)) for row in range(4)}) == 4
    other_seed = draw(SOURCES, lines, seed=1)
    assert all(drawn(other_seed, row) != drawn(together, row) for row in (0, 2, 3))

    for row, source in enumerate(SOURCES):
        ask = next_log_p(MODEL, variables, source)
        found = hypotheses(together, row, SPECIAL)
        assert [score for score, _ in found] == sorted((score for score, _ in found), reverse=True)
        for score, tokens in found:
            assert score == pytest.approx(log_p_of(tokens, ask), abs=1e-4)
            assert len(tokens) <= (source != SPECIAL.pad).sum() + 4


@pytest.mark.parametrize("classes", [1, 2, 3, 10, 17])
def test_draws_are_where_the_sum_of_probabilities_passes_the_random_number(classes: int) -> None:
    rng = np.random.default_rng(classes)
    logits = rng.normal(size=(2, 3, classes)).astype(np.float32) * 3
    uniform = rng.uniform(size=(2, 3)).astype(np.float32)
    p = np.exp(logits.astype(np.float64))
    sums = (p / p.sum(axis=-1, keepdims=True)).cumsum(axis=-1)
    expected = (sums <= uniform[..., None]).sum(axis=-1)
    found = jax.jit(drawn)(jnp.asarray(uniform), jnp.asarray(logits))
    assert (np.asarray(found) == expected).all()


@pytest.mark.slow
def test_what_has_no_probability_is_never_drawn() -> None:
    """At both ends of the random numbers, and of the blocks."""
    uniform = jnp.asarray([0, 0.25, 0.5, 0.75, 1 - 2**-24])
    for classes in (4, 9, 50, 1000):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            possible = rng.uniform(size=classes) < 0.1
            possible[rng.integers(classes)] = True
            logits = np.where(possible, rng.normal(size=classes), NEVER).astype(np.float32)
            found = np.asarray(drawn(uniform, jnp.broadcast_to(jnp.asarray(logits), (5, classes))))
            assert possible[found].all()
            assert found[0] == possible.argmax()
            assert found[-1] == classes - 1 - possible[::-1].argmax()


@pytest.mark.thorough
def test_draws_are_as_frequent_as_their_probability() -> None:
    logits = jax.random.normal(jax.random.key(5), (300,)) * 2
    count = 2**17
    uniform = (jnp.arange(count) + 0.5) / count
    found = np.bincount(np.asarray(drawn(uniform, jnp.broadcast_to(logits, (count, 300)))), minlength=300)
    np.testing.assert_allclose(found / count, jax.nn.softmax(logits), atol=2 / count)
