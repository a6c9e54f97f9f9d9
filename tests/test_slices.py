"""Sums over the logits of a batch, slice by slice."""

import jax
import jax.numpy as jnp
import pytest

from transformer.training import cross_entropy as slices
from transformer.training.cross_entropy import in_slices, sums_in_slices

ROWS, TIME, VOCABULARY, WIDTH = 3, 7, 11, 4


def apart(logits, words):
    """Something that depends on all logits of two states."""
    first, second = map(jax.nn.log_softmax, logits)
    return (jnp.exp(first) * (first - second) * words[..., None]).sum()


def loss_and_grad(platform, logits, words):
    loss, gradients = jax.value_and_grad(apart)(logits, words)
    return {"loss": loss, "words": words.sum()}, gradients


@pytest.mark.by_default("132")
@pytest.mark.parametrize("size", [1, 4 * ROWS * VOCABULARY, 10**6])  # a slice has 1, 2 and all positions
def test_sums_and_gradients_of_slices_are_those_of_the_whole(monkeypatch, size):
    monkeypatch.setitem(slices.SLICE, "cpu", size)
    keys = jax.random.split(jax.random.key(1), 3)
    table = jax.random.normal(keys[0], (VOCABULARY, WIDTH))
    states = tuple(jax.random.normal(key, (ROWS, TIME, WIDTH)) for key in keys[1:])
    words = jnp.arange(TIME)[None] < jnp.asarray([[7], [3], [0]])
    words = words.astype(jnp.float32)

    def whole(table, states):
        return 0.5 * apart([jnp.einsum("btm,vm->btv", x, table) for x in states], words)

    def sliced(table, states):
        sums = sums_in_slices(loss_and_grad, table, states, words)
        return 0.5 * sums["loss"], sums["words"]

    (found, count), gradients = jax.value_and_grad(sliced, (0, 1), has_aux=True)(table, states)
    expected, wanted = jax.value_and_grad(whole, (0, 1))(table, states)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert float(count) == 10
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
        assert jnp.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.by_default("66")
@pytest.mark.parametrize("size", [1, 2 * ROWS * VOCABULARY, 10**6])
def test_a_function_of_slices_is_that_of_the_whole(monkeypatch, size):
    monkeypatch.setitem(slices.SLICE, "cpu", size)
    states = jax.random.normal(jax.random.key(2), (ROWS, TIME, WIDTH))
    words = jnp.arange(ROWS * TIME).reshape(ROWS, TIME)

    def function(states, words):
        return {"sum": jnp.exp(states).sum(axis=-1), "words": words + 1}

    def total(states):
        found = in_slices(function, VOCABULARY, states, words)
        return found["sum"].sum(), found

    (_, found), gradient = jax.value_and_grad(total, has_aux=True)(states)
    assert jnp.allclose(found["sum"], jnp.exp(states).sum(axis=-1), rtol=1e-5)
    assert (found["words"] == words + 1).all()
    assert jnp.allclose(gradient, jnp.exp(states), rtol=1e-5)


@pytest.mark.parametrize("platform", ["cpu", "default"])
def test_slices_are_few_and_hardly_padded(platform):
    """Against all lengths that a slice may have."""
    tile = 1 if platform == "cpu" else slices.TILE
    for time in (1, 127, 128, 300, 1000, 4096):
        for most in (1, 100, 128, 200, 640, 5000):
            width = slices._width(time, most, platform)
            fewest = -(-time // most)
            least = min(length for length in range(1, most + 1) if -(-time // length) == fewest)
            if least < tile or platform == "cpu":
                assert width == least
                continue
            tiles = min(most // tile, -(-time // (2 * tile)))
            lengths = [tile * count for count in range(tiles // 2 + 1, tiles + 1)]
            padded = {length: -(-time // length) * length for length in lengths}
            assert width == max(length for length in lengths if padded[length] == min(padded.values()))
            assert time == tile or width < time


@pytest.mark.parametrize("logits", [1, 10, 33, 100])
def test_a_slice_has_no_more_logits_than_fit(monkeypatch, logits):
    monkeypatch.setitem(slices.SLICE, "cpu", 100)
    (states,) = slices._split_time((jnp.zeros((3, 7, 2)),), logits, "cpu")
    _, _, rows, width, _ = states.shape
    assert width == 1 or rows * width * logits <= 100
    assert states.shape[0] == -(-7 // width)
    assert logits < 34 or width == 1
    assert logits > 1 or width == 7
