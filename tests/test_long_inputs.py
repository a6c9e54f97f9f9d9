"""Attention of long inputs computes some queries at a time, and no array of all pairs."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.model import masks
from transformer.model.attention import attention_weights
from transformer.model.kernels import runs_fused
from transformer.model.layers import drop, keep_mask
from transformer.model.masks import AttentionInputs, Mask
from transformer.model.parameters import tracing_for
from transformer.model.positions import SCHEMES
from transformer.model.transformer import Transformer
from transformer.model.variants import blocks
from transformer.model.variants.positions import by_distances

LENGTHS = 37, 29  # of sources and targets: parts of 8 queries overlap
ROWS = 2


def sentences():
    """Sources and targets, some padded."""
    rng = np.random.default_rng(0)
    source, target = (jnp.asarray(rng.integers(4, 20, (ROWS, length))) for length in LENGTHS)
    return source.at[1, 30:].set(0), target.at[1, 20:].set(0)


def packed():
    """The segments of rows with several sentences."""
    return tuple(jnp.asarray(np.sort(np.random.default_rng(n).integers(1, 4, (ROWS, n)))) for n in LENGTHS)


@pytest.fixture
def in_parts(monkeypatch):
    """Makes these lengths long ones."""

    def change():
        monkeypatch.setitem(masks.MOST_PAIRS, "cpu", 64)
        monkeypatch.setattr(blocks, "LANES", 8)
        monkeypatch.setitem(blocks.MOST_SCORES, "cpu", 1)

    return change


CASES = [(scheme, segments, {}) for scheme, segments in itertools.product(SCHEMES, [None, packed()])]
CASES += [(scheme, None, {"window": 9}) for scheme in ("buckets", "alibi")]
CASES += [("sinusoidal", None, {"wait_k": 2})]
CASES += [("buckets", None, {"remat": True}), ("alibi", packed(), {"remat": True})]


@pytest.mark.by_default("buckets-None-changes12")
@pytest.mark.parametrize(("positions", "segments", "changes"), CASES)
def test_logits_and_gradients_are_those_of_whole_arrays(
    positions, segments, changes, tiny, random_variables, in_parts
):
    model = Transformer(tiny(positions=positions, **changes))
    variables = random_variables(model)
    source, target = sentences()

    def loss(variables):
        logits = model.apply(variables, source, target, segments=segments)
        return (logits**2).mean(where=(target != 0)[:, :, None]), logits

    def program():
        return str(jax.make_jaxpr(lambda variables: loss(variables))(variables))

    assert "scan" not in program()
    (_, expected), expected_gradients = jax.value_and_grad(loss, has_aux=True)(variables)
    in_parts()
    assert "scan" in program()
    if positions != "relative":  # whose scores depend on the queries too
        assert not re.search(rf"f32\[[\d,]*{LENGTHS[0]},{LENGTHS[0]}\]", program())
    (_, logits), gradients = jax.value_and_grad(loss, has_aux=True)(variables)
    np.testing.assert_allclose(logits[0], expected[0], atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients, expected_gradients)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 7), (128, 128), (129, 128), (300, 517)])
def test_terms_of_distances_are_on_diagonals(queries, keys):
    x = np.random.default_rng(0).standard_normal((2, queries + keys - 1), np.float32)
    query, key = np.indices((queries, keys))
    np.testing.assert_array_equal(
        by_distances(jnp.asarray(x), queries, keys), x[:, queries - 1 - query + key]
    )


def test_each_part_drops_weights_of_its_own(in_parts):
    in_parts()
    rng, key, rate = np.random.default_rng(1), jax.random.key(3), 0.3
    query, keys, values = (jnp.asarray(rng.standard_normal((2, 3, n, 4)), jnp.float32) for n in (20, 7, 7))

    def einsums(query, keys, values, mask, bias, key):
        weights = attention_weights(query, keys, mask, bias)
        return drop(weights, key, rate) @ values, weights

    inputs = AttentionInputs(query, keys, values, Mask())
    contexts = blocks.by_queries(inputs, einsums, key)
    starts = (0, 8, 12)  # three parts of 8, of which the last two share some queries
    kept = [keep_mask(jax.random.fold_in(key, first), rate, (2, 3, 8, 7)) for first in starts]
    kept = jnp.concatenate([*kept[:2], kept[2][:, :, 4:]], axis=2)
    weights = attention_weights(query, keys, inputs.allowed())
    np.testing.assert_allclose(contexts, jnp.where(kept, weights / (1 - rate), 0) @ values, atol=1e-6)


def test_what_all_queries_share_is_not_divided(in_parts):
    """As of many beams, which are at the same position."""
    in_parts()
    query, keys, values, bias = (jnp.ones((2, 3, n, 4)) for n in (20, 4, 4, 1))
    mask = Mask(pairs=jnp.array([[[True, True, False, True]]]))
    inputs = AttentionInputs(query, keys, values, mask, bias * jnp.arange(4.0))
    weights = attention_weights(query, keys, inputs.allowed(), inputs.bias)
    values = jnp.asarray(np.random.default_rng(1).standard_normal(values.shape), jnp.float32)

    def einsums(query, keys, values, mask, bias, key):
        return attention_weights(query, keys, mask, bias) @ values, None

    contexts = blocks.by_queries(inputs.replace(values=values), einsums, None)
    np.testing.assert_allclose(contexts, weights @ values, atol=1e-6)


@pytest.mark.parametrize(("queries", "keys", "fused"), [(32, 48, True), (33, 48, False), (32, 47, False)])
def test_cudnn_has_even_lengths_only(queries, keys, fused, tiny):
    """It refuses others where gradients are asked for."""
    query, key = (jnp.zeros((1, 2, length, 8), jnp.bfloat16) for length in (queries, keys))
    with tracing_for("gpu"):
        runs = runs_fused(tiny(dtype="bfloat16"), AttentionInputs(query, key, key, Mask()), 0.0)
    assert runs is fused


def test_a_search_of_long_sources_is_the_same(tiny, random_variables, in_parts):
    model = Transformer(tiny(positions="buckets"))
    variables = random_variables(model)
    source, _ = sentences()

    def encode():
        return model.apply(variables, source, method="encode")

    expected = encode()
    in_parts()
    np.testing.assert_allclose(encode().states[0], expected.states[0], atol=1e-5)
