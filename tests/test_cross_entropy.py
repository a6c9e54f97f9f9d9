"""The loss: compared with the explicit distribution, and sliced compared with whole.

Tolerances: float32 sums of numbers around 1, which another order of summation changes by about 1e-6.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.training import cross_entropy as slices
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
LOGITS = [1, 11 * 3 * 2, 10**6]
"""At once."""


def problem(rows, time, classes=11, width=4):
    rng = np.random.default_rng(rows)
    hidden, table = rng.standard_normal((rows, time, width)), rng.standard_normal((classes, width))
    weights = rng.integers(0, 2, (rows, time)).astype(np.float32)
    targets = jnp.asarray(rng.integers(0, classes, (rows, time)), jnp.int32)
    return jnp.asarray(hidden, jnp.float32), jnp.asarray(table, jnp.float32), targets, jnp.asarray(weights)


def as_on(platform, monkeypatch):
    """The programs of a platform, one of `SLICE`, run here."""
    monkeypatch.setattr(slices, "_by_platform", lambda on, *arrays: on(platform, *arrays))


PROGRAMS = [("cpu", False), ("default", False), ("default", True), ("cuda", False), ("cuda", True)]
"""A platform, and whether rows are sharded."""


def cases():
    """All combinations, of which the default tier has every pair of values."""
    for each in itertools.product(enumerate(PROGRAMS), enumerate(SHAPES), (0.0, 0.1), enumerate(LOGITS)):
        (program, _), (shape, _), smoothing, (logits, _) = each
        quick = (program + logits) % 3 == shape and (program + logits // 2) % 2 == (smoothing > 0)
        values = [value[1] if isinstance(value, tuple) else value for value in each]
        yield pytest.param(*values, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("program", "shape", "smoothing", "logits_at_once"), list(cases()))
def test_sliced_loss_and_gradients_are_those_of_the_whole(
    program, shape, smoothing, logits_at_once, monkeypatch
):
    platform, sharded = program
    as_on(platform, monkeypatch)
    shards = {"rows": shape[0]} if sharded else {}
    monkeypatch.setattr(slices, "shards_of", lambda name="rows": shards.get(name, 1))
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


@pytest.mark.parametrize("tokens", [(25, 128), (195, 128), (96, 256), (30, 128), (1, 4000)])
def test_slices_of_accelerators_are_whole_tiles_with_little_filling(tokens, monkeypatch):
    as_on("default", monkeypatch)
    rows, time = tokens
    monkeypatch.setitem(slices.SLICE, "default", 1500)
    (cut,) = slices._split_time(slices._lined_up((jnp.ones((rows, time)),), "default"), 1, "default")
    count, _, _, width = cut.shape
    assert width <= 1500
    assert width % slices.TILE == 0
    assert count >= 2
    assert count * width <= 1.08 * rows * time


def targets_that_are(far):
    """States and a table for which the target of each token is so many nats behind another one."""
    hidden, table = jnp.ones((1, 2, 1)), jnp.asarray([[0.0], [float(far)], [1.0]])
    return hidden, table, jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2))


@pytest.mark.parametrize("platform", ["default", "cuda"])
@pytest.mark.parametrize("far", [-1e4, -50, 0, 30, 69, 1e6])
def test_accelerators_compute_the_loss_of_surprising_targets_too(far, platform, monkeypatch):
    as_on(platform, monkeypatch)
    hidden, table, *given = targets_that_are(far)
    logits = np.asarray([0.0, far, 1.0])
    expected = np.log(np.exp(logits - logits.max()).sum()) + logits.max()
    loss, nll, correct = output_cross_entropy(hidden, table, *given, 0.0)
    assert float(loss) == pytest.approx(2 * expected, rel=1e-6)
    assert (float(nll), float(correct)) == (float(loss), 0)


@pytest.mark.parametrize("platform", ["default", "cuda"])
def test_an_impossible_target_has_a_finite_gradient_towards_it(platform, monkeypatch):
    as_on(platform, monkeypatch)
    hidden, table, *given = targets_that_are(1e6)
    of_table = jax.grad(lambda table: output_cross_entropy(hidden, table, *given, 0.1)[0])(table)
    assert np.isfinite(of_table).all()
    assert of_table[0] < 0 < of_table[1]


def test_no_array_of_all_logits_exists(monkeypatch):
    monkeypatch.setitem(slices.SLICE, "cpu", 4 * 1000)
    hidden, table, targets, weights = problem(4, 32, classes=1000)

    def loss(hidden, table):
        return output_cross_entropy(hidden, table, targets, weights, 0.1)[0]

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(hidden, table).compile()
    assert program.memory_analysis().temp_size_in_bytes < targets.size * 1000 * 4 / 2


@pytest.mark.slow
def test_bfloat16_states_give_float32_sums_and_gradients_of_their_own_types():
    hidden, table, targets, weights = problem(3, 7)
    arguments = hidden.astype(jnp.bfloat16), table
    grad = jax.value_and_grad(lambda *x: output_cross_entropy(*x, targets, weights, 0.1)[0], argnums=(0, 1))
    loss, (of_hidden, of_table) = jax.jit(grad)(*arguments)
    assert (loss.dtype, of_hidden.dtype, of_table.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    logits = arguments[0].astype(jnp.float32) @ table.astype(jnp.bfloat16).astype(jnp.float32).T
    expected = (cross_entropy(logits, targets, 0.1) * weights).sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)  # products of bfloat16 are exact in float32
