"""The loss: compared with the explicit distribution, and sliced compared with whole.

Tolerances: float32 sums of numbers around 1, which another order of summation changes by about 1e-6.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.training import slices
from transformer.training.cross_entropy import cross_entropy, output_cross_entropy


def smoothed(targets, classes, smoothing):
    """The distribution q, explicitly."""
    q = np.full((*targets.shape, classes), smoothing / (classes - 1))
    np.put_along_axis(q, targets[..., None], 1 - smoothing, axis=-1)
    return q


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_cross_entropy_against_the_explicit_distribution(smoothing, shift):
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((4, 5, 11)) + shift).astype(np.float32)
    targets = rng.integers(0, 11, (4, 5))
    exact = logits.astype(float)
    log_p = exact - np.log(np.exp(exact - shift).sum(axis=-1, keepdims=True)) - shift
    expected = -(smoothed(targets, 11, smoothing) * log_p).sum(axis=-1)
    if not smoothing:
        np.testing.assert_allclose(expected, -np.take_along_axis(log_p, targets[..., None], -1)[..., 0])
    # the loss is a difference of numbers as large as the logits, in float32
    tolerance = 1e-5 + 4e-7 * shift
    computed = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), smoothing)
    np.testing.assert_allclose(computed, expected, atol=tolerance)


def test_cross_entropy_is_least_at_the_smoothed_distribution():
    targets = np.array([3])
    best = np.log(smoothed(targets, 7, 0.1)).astype(np.float32)
    loss = jax.jit(lambda logits: cross_entropy(logits, jnp.asarray(targets), 0.1).sum())
    assert loss(best) == pytest.approx(-(np.exp(best) * best).sum(), abs=1e-6)  # its entropy
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(best)), 0, atol=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(10):
        assert loss(best + rng.standard_normal(best.shape, np.float32)) > loss(best)


# --- from hidden states, in slices ---

SHAPES = [(3, 7), (1, 13), (5, 1)]


def problem(rows, time, classes=11, width=4):
    rng = np.random.default_rng(rows)
    hidden, table = rng.standard_normal((rows, time, width)), rng.standard_normal((classes, width))
    weights = rng.integers(0, 2, (rows, time)).astype(np.float32)
    targets = jnp.asarray(rng.integers(0, classes, (rows, time)), jnp.int32)
    return jnp.asarray(hidden, jnp.float32), jnp.asarray(table, jnp.float32), targets, jnp.asarray(weights)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logits_at_once", [1, 11 * 3 * 2, 10**6])
def test_sliced_loss_and_gradients_are_those_of_the_whole(shape, smoothing, logits_at_once, monkeypatch):
    for platform in slices.SLICE:
        monkeypatch.setitem(slices.SLICE, platform, logits_at_once)
    hidden, table, targets, weights = problem(*shape)

    def whole(hidden, table):
        logits = hidden @ table.T
        nll = (cross_entropy(logits, targets) * weights).sum()
        correct = ((logits.argmax(-1) == targets) * weights).sum()
        return 3 * (cross_entropy(logits, targets, smoothing) * weights).sum(), (nll, correct)

    def sliced(hidden, table):
        loss, nll, correct = output_cross_entropy(hidden, table, targets, weights, smoothing)
        return 3 * loss, (nll, correct)

    expected, computed = (
        jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(hidden, table)
        for loss in (whole, sliced)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5), expected, computed)
    without_gradient = jax.jit(sliced)(hidden, table)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), computed[0], without_gradient)


def test_no_array_of_all_logits_exists(monkeypatch):
    monkeypatch.setitem(slices.SLICE, "cpu", 4 * 1000)
    hidden, table, targets, weights = problem(4, 32, classes=1000)

    def loss(hidden, table):
        return output_cross_entropy(hidden, table, targets, weights, 0.1)[0]

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(hidden, table).compile()
    assert program.memory_analysis().temp_size_in_bytes < targets.size * 1000 * 4 / 2


def test_bfloat16_states_give_float32_sums_and_gradients_of_their_own_types():
    hidden, table, targets, weights = problem(3, 7)
    arguments = hidden.astype(jnp.bfloat16), table
    grad = jax.value_and_grad(lambda *x: output_cross_entropy(*x, targets, weights, 0.1)[0], argnums=(0, 1))
    loss, (of_hidden, of_table) = jax.jit(grad)(*arguments)
    assert (loss.dtype, of_hidden.dtype, of_table.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    logits = arguments[0].astype(jnp.float32) @ table.astype(jnp.bfloat16).astype(jnp.float32).T
    expected = (cross_entropy(logits, targets, 0.1) * weights).sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)  # products of bfloat16 are exact in float32
