"""Position schemes that act in attention, against their definitions."""

from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init

from transformer import Transformer, TransformerConfig, beam_search
from transformer.model.attention import MECHANISMS, DotProductAttention
from transformer.model.masks import Mask
from transformer.model.positions import SCHEMES
from transformer.model.variants.positions import Alibi, Relative, Rotary, shifted, slopes


def test_rotary_positions_multiply_complex_numbers(tiny):
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 8), np.float32)
    positions = np.array([[0, 1, 2, 3, 4, 5, 6], [9, 3, 0, 0, 20, 1, 2]])
    rotated = Rotary(tiny()).apply({}, jnp.asarray(x), jnp.asarray(positions), method="keys")
    # Su et al. 2021, section 3.2.1: coordinates 2i and 2i+1 are one complex number, times e^(i m theta_i)
    theta = 10_000.0 ** (-2 * np.arange(4) / 8)
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * positions[:, None, :, None] * theta)
    np.testing.assert_allclose(rotated[..., ::2], turned.real, atol=1e-5)
    np.testing.assert_allclose(rotated[..., 1::2], turned.imag, atol=1e-5)


def test_the_slopes_of_alibi_are_the_published_ones():
    # Press et al. 2022, section 3: for 8 heads 1/2, 1/4, ..., 1/256; for 16 heads also those between
    assert slopes(8) == [2.0**-k for k in range(1, 9)]
    assert slopes(16) == pytest.approx([2 ** (-k / 2) for k in range(1, 17)])
    # footnote: for 12 heads those of 8 heads, then every other one of 16
    assert slopes(12) == pytest.approx([*slopes(8), *(2 ** (-k / 2) for k in (1, 3, 5, 7))])


def test_alibi_subtracts_the_distance_times_the_slope(tiny):
    query = jnp.zeros((1, 2, 3, 8))
    positions = jnp.asarray([4, 5, 6]), jnp.arange(7)
    scores = Alibi(tiny()).apply({}, query, positions, True, method="scores")
    for head, slope in enumerate(slopes(2)):
        for row, position in enumerate((4, 5, 6)):
            for key in range(7):
                assert scores[0, head, row, key] == pytest.approx(-slope * abs(position - key))


def one_by_one(variables, query, key, at, of):
    """Dai et al. 2019, section 3.3: the four terms of each score, one pair of positions after the other."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    projection, u, v = (params[name] for name in ("distance", "content_bias", "distance_bias"))
    width = projection.shape[0]
    scores = np.zeros((*query.shape[:3], key.shape[2]))
    for b, h, i, j in np.ndindex(scores.shape):
        distance = at[b, i] - of[b, j]
        angles = distance * 10_000.0 ** (-2 * np.arange(width // 2) / width)
        sinusoid = np.stack([np.sin(angles), np.cos(angles)], axis=1).reshape(-1)
        relative = sinusoid @ projection[:, h]
        content = query[b, h, i] @ key[b, h, j] + u[h] @ key[b, h, j]
        scores[b, h, i, j] = (content + query[b, h, i] @ relative + v[h] @ relative) / np.sqrt(u.shape[1])
    return scores


@pytest.mark.parametrize(
    ("at", "of", "causal"),
    [
        (np.arange(5), np.arange(5), False),
        (np.arange(5), np.arange(5), True),
        (np.arange(4, 7), np.arange(7), True),  # with a memory of four
        (np.array([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]]), np.array([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]]), True),
        (np.array([[6], [3]]), np.array([[5, 6, 0, 1, 2, 3, 4], [3, -3, -2, -1, 0, 1, 2]]), False),  # a ring
    ],
)
def test_relative_positions_are_the_four_terms_of_transformer_xl(tiny, random_variables, at, of, causal):
    scheme = Relative(tiny())
    random = np.random.default_rng(1)
    query = random.standard_normal((2, 2, at.shape[-1], 8)).astype(np.float32)
    key = random.standard_normal((2, 2, of.shape[-1], 8)).astype(np.float32)
    positions = jnp.asarray(at), jnp.asarray(of)
    shapes = init(scheme, jax.random.key(0), jnp.asarray(query), positions, causal, method="scores")
    keys = jax.random.split(jax.random.key(2), len(jax.tree.leaves(shapes)))
    drawn = [jax.random.normal(k, x.shape) for k, x in zip(keys, jax.tree.leaves(shapes), strict=True)]
    variables = jax.tree.unflatten(jax.tree.structure(shapes), drawn)
    bias = apply(scheme, variables, jnp.asarray(query), positions, causal, method="scores")
    queries = apply(scheme, variables, jnp.asarray(query), positions[0], method="queries")
    scores = np.einsum("bhqd,bhkd->bhqk", queries, key) / np.sqrt(8) + bias
    at, of = np.broadcast_to(at, (2, at.shape[-1])), np.broadcast_to(of, (2, of.shape[-1]))
    expected = one_by_one(variables, query, key, at, of)
    seen = (at[:, None, :, None] >= of[:, None, None, :]) | np.full(expected.shape, not causal)
    np.testing.assert_allclose(np.where(seen, scores, 0), np.where(seen, expected, 0), atol=1e-4)


@pytest.mark.parametrize("keys", [3, 4, 9])
def test_the_relative_shift_is_naive_indexing(keys):
    queries = 3
    x = np.random.default_rng(0).standard_normal((2, 2, queries, queries + keys - 1)).astype(np.float32)
    result = shifted(jnp.asarray(x), keys)
    for i in range(queries):
        for j in range(keys):
            np.testing.assert_array_equal(result[:, :, i, j], x[:, :, i, queries - 1 - i + j])


@pytest.mark.by_default("alibi")
@pytest.mark.parametrize("scheme", ["rotary", "alibi", "relative"])
def test_relative_schemes_do_not_depend_on_where_a_sentence_starts(tiny, random_variables, scheme):
    model = Transformer(tiny(positions=scheme))
    variables = random_variables(model)
    ids = jnp.asarray([[5, 6, 7, 2]])

    def encoded(shift):
        def run(model):
            embedded, words = model.source_embedding(ids), ids != 0
            return model.encode_embedded(embedded, words, Mask(keys=words), jnp.arange(4) + shift)

        return model.apply(variables, method=run).states

    np.testing.assert_allclose(encoded(0), encoded(100), atol=1e-4)
    order = np.array([1, 0, 2, 3])
    swapped = apply(model, variables, ids[:, order], method="encode").states[:, order]
    assert np.abs(swapped - encoded(0)).max() > 1e-3  # but on the order of the words


def test_the_options_are_the_schemes():
    hints = get_type_hints(TransformerConfig)
    assert get_args(hints["positions"]) == tuple(SCHEMES)


def test_the_states_of_every_layer_are_returned_on_request(tiny, random_variables):
    model = Transformer(tiny(num_layers=3))
    variables = random_variables(model)
    ids = jnp.asarray([[5, 6, 7, 2]])
    assert apply(model, variables, ids, method="encode").layers == ()
    memory = apply(model, variables, ids, every_layer=True, method="encode")
    assert len(memory.layers) == 3
    np.testing.assert_array_equal(memory.layers[-1], memory.states)
    shallow = jax.tree.map(lambda x: x, variables)
    shallow = {"params": {k: v for k, v in shallow["params"].items() if k != "encoder_2"}}
    two = Transformer(tiny(num_layers=2, decoder_layers=3))
    np.testing.assert_allclose(memory.layers[1], apply(two, shallow, ids, method="encode").states, atol=1e-6)


class Counting(DotProductAttention):
    """Dot-product attention that counts the steps of each beam."""

    def init_state(self, rows, beams, keys):
        return {"steps": jnp.zeros((rows, beams), jnp.int32), "keys": jnp.full((rows, beams), keys)}

    def __call__(self, inputs):
        context, weights, state = super().__call__(inputs)
        return context, weights, state and {**state, "steps": state["steps"] + 1}


@pytest.mark.thorough
def test_a_mechanisms_state_passes_from_step_to_step(tiny, random_variables, monkeypatch):
    plain = Transformer(tiny())
    variables, source = random_variables(plain), jnp.asarray([[5, 6, 7, 2], [8, 2, 0, 0]])
    monkeypatch.setitem(MECHANISMS, "dot-product", Counting)
    model = Transformer(tiny(), name="counting")
    memory = apply(model, variables, source, method="encode")
    cache = apply(model, variables, memory, 3, 5, method="init_cache")
    for step in range(4):
        for layer in cache.layers:
            self_state, (cross_state,) = layer.states.value
            for state, keys in ((self_state, 0), (cross_state, 4)):
                assert (state["steps"] == step).all()
                assert (state["keys"] == keys).all()
        _, cache = apply(model, variables, cache, jnp.asarray([[4, 5, 6]] * 2), method="decode_step")
        cache = cache.select(jnp.asarray([[2, 0, 0], [1, 1, 2]]))
    result = beam_search(model, variables, source, beam_size=3, max_length=6)
    monkeypatch.undo()
    expected = beam_search(plain, variables, source, beam_size=3, max_length=6)
    np.testing.assert_array_equal(result.tokens, expected.tokens)
