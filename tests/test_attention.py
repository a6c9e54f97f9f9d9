"""Masks, and attention compared with loops. Tolerances as in test_model.py."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from toy_sentences import SOURCE, TARGET

from transformer.decoding.forced import sown_attention
from transformer.model.attention import attention_weights
from transformer.model.cache import join_heads
from transformer.model.masks import AttentionInputs, Mask
from transformer.model.parameters import tracing_for
from transformer.model.stack import EncoderLayer
from transformer.model.transformer import Transformer, cross_attention
from transformer.model.variants.heads import with_joined_heads

# --- masks: the gradient of a masked position is exactly zero ---


def influence(compute, variables, table, ids):
    """[b, t, b', t']: how much the output at (b, t) depends on the token at (b', t'). All ids are different,
    so that each row of the embedding belongs to one position."""
    embedded = {"params": {**variables["params"]}}

    def of_table(rows):
        embedded["params"][table] = {"table": rows}
        return compute(embedded)

    @jax.jit
    def gradients(rows):
        outputs, pull = jax.vjp(of_table, rows)
        weights = jax.random.normal(jax.random.key(0), outputs.shape[-1:])
        places = jnp.eye(math.prod(outputs.shape[:2])).reshape(-1, *outputs.shape[:2])
        moved = jax.vmap(lambda place: pull(place[..., None] * weights)[0])(places)
        return jnp.abs(moved).sum(axis=-1).reshape(*outputs.shape[:2], -1)

    return np.asarray(gradients(variables["params"][table]["table"]))[:, :, ids]


@pytest.mark.by_default("1")
@pytest.mark.parametrize("window", [None, 1])
def test_causality_by_gradient(tiny, random_variables, window):
    model = Transformer(tiny(share_embeddings="none", vocab_size=40, window=window))
    variables = random_variables(model)
    target = np.arange(4, 4 + 2 * 8).reshape(2, 8)
    source = jnp.asarray(SOURCE[:2])
    moved = influence(
        lambda v: model.apply(v, source, jnp.asarray(target)), variables, "target_embedding", target
    )
    reach = target.shape[1] if window is None else window * model.config.num_layers
    for sentence, t, other, earlier in np.ndindex(moved.shape):
        seen = sentence == other and 0 <= t - earlier <= reach
        assert (moved[sentence, t, other, earlier] > 0) == seen


@pytest.mark.by_default("1")
@pytest.mark.parametrize("window", [None, 1])
def test_the_encoder_sees_its_own_sentence_without_padding(tiny, random_variables, window):
    model = Transformer(tiny(vocab_size=40, window=window))
    variables = random_variables(model)
    source = np.arange(4, 4 + 3 * 6).reshape(3, 6)
    # all padding has the same id, and so one row of the table: its column below is that of <pad>
    source[1, 4:], source[2, 1:] = 0, 0
    words = source != 0
    moved = influence(
        lambda v: model.apply(v, jnp.asarray(source), method="encode").states,
        variables,
        "source_embedding",
        source,
    )
    reach = source.shape[1] if window is None else window * model.config.num_layers
    for sentence, s, other, place in np.ndindex(moved.shape):
        if words[sentence, s]:
            seen = words[other, place] and sentence == other and abs(s - place) <= reach
            assert (moved[sentence, s, other, place] > 0) == seen


@pytest.mark.slow
@pytest.mark.parametrize(("window", "length"), [(1, 64), (5, 71), (20, 90)])
def test_restricted_attention_in_blocks_is_the_whole_product_masked(tiny, random_variables, window, length):
    model = Transformer(tiny(vocab_size=40, window=window))
    variables = random_variables(model)
    ids = np.random.default_rng(0).integers(4, 40, (2, 3, length))
    ids[0, 0, length - 9 :] = 0
    segments = np.ones((2, 3, length), np.int32)
    segments[:, 1, 30:], segments[1, 2, 40:] = 2, 2
    ids = jnp.asarray(ids)
    for others in ({}, {"segments": tuple(map(jnp.asarray, segments))}):
        # with the weights requested, attention is not computed in blocks
        whole, _ = apply(model, variables, *ids, **others, mutable=["intermediates"])
        np.testing.assert_allclose(apply(model, variables, *ids, **others), whole, atol=2e-5)


@pytest.mark.thorough
def test_logits_depend_on_the_words_of_their_source_and_not_on_padding(tiny, random_variables):
    model = Transformer(tiny(share_embeddings="target"))
    variables = random_variables(model)
    moved = influence(
        lambda v: model.apply(v, jnp.asarray(SOURCE), jnp.asarray(TARGET)),
        variables,
        "source_embedding",
        np.arange(model.config.vocab_size),
    )
    for sentence, words in enumerate(SOURCE):
        inside = np.isin(np.arange(model.config.vocab_size), words[words != 0])
        assert (moved[sentence][:, inside] > 0).all()
        assert (moved[sentence][:, ~inside] == 0).all()


def test_logits_are_the_product_that_the_loss_multiplies_in_slices(tiny, random_variables):
    for bias in (False, True):
        model = Transformer(tiny(output_bias=bias))
        hidden = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 16), np.float32))
        variables = random_variables(model)
        states, table = apply(model, variables, hidden, method="output_factors")
        logits = apply(model, variables, hidden, method="output")
        np.testing.assert_allclose(np.einsum("btf,vf->btv", states, table), logits, atol=1e-5)
        if bias:
            assert np.abs(np.asarray(logits) - np.asarray(hidden) @ np.asarray(table)[:, :16].T).max() > 0.1


# --- attention, compared with loops ---


def layer_norm(x, parameters):
    scale, bias = (np.asarray(parameters["norm"][name], float) for name in ("scale", "bias"))
    deviation = x - x.mean(-1, keepdims=True)
    return deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-6) * scale + bias


def multi_head(x, parameters, mask):
    """Eq. 1 and section 3.2.2 in float64, one number at a time."""
    p = {name: np.asarray(value, float) for name, value in parameters.items()}
    result = np.zeros_like(x)
    for b, q, head in np.ndindex(x.shape[0], x.shape[1], p["query"].shape[1]):

        def projected(name, place, b=b, head=head):
            return x[b, place] @ p[name][:, head] + p[f"{name}_bias"][head, 0]

        seen = [k for k in range(x.shape[1]) if mask[b, 0, q, k]]
        query = projected("query", q)
        scores = [query @ projected("key", k) / math.sqrt(len(query)) for k in seen]
        total = sum(math.exp(score) for score in scores)
        for score, k in zip(scores, seen, strict=True):
            result[b, q] += math.exp(score) / total * projected("value", k) @ p["out"][head]
    return result + p["out_bias"]


def feed_forward(x, parameters):
    """Eq. 2."""
    inner, outer = (
        {name: np.asarray(value, float) for name, value in parameters[layer].items()}
        for layer in ("inner", "outer")
    )
    return np.maximum(0, x @ inner["kernel"] + inner["bias"]) @ outer["kernel"] + outer["bias"]


@pytest.mark.by_default("pre")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_layer_against_loops(tiny, norm):
    config = tiny(norm=norm, attention_bias=True, d_k=6, d_v=10)
    layer = EncoderLayer(config)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, config.d_model), np.float32)
    mask = (rng.random((2, 1, 5, 5)) < 0.5) | np.eye(5, dtype=bool)
    words = jnp.ones((2, 5), bool)
    inputs = jnp.asarray(x), words, Mask(pairs=jnp.asarray(mask[:, 0])), jnp.arange(5), True
    variables = jax.jit(layer.init, static_argnums=5)(jax.random.key(0), *inputs)
    variables = jax.tree.map(lambda leaf: leaf + 0.1 * rng.standard_normal(leaf.shape, np.float32), variables)
    p = variables["params"]

    def around(x, name, sublayer):
        norm_of = p[name]["norm"]
        if norm == "pre":
            return x + sublayer(layer_norm(x, norm_of))
        return layer_norm(x + sublayer(x), norm_of)

    expected = around(x.astype(float), "self_residual", lambda x: multi_head(x, p["self_attention"], mask))
    expected = around(expected, "feed_forward_residual", lambda x: feed_forward(x, p["feed_forward"]))
    computed = jax.jit(layer.apply, static_argnums=5)(variables, *inputs)
    np.testing.assert_allclose(computed, expected, atol=1e-5, rtol=1e-5)


def test_attention_weights_sum_to_one_and_are_zero_where_masked():
    rng = np.random.default_rng(0)
    query, key = (jnp.asarray(10 * rng.standard_normal((2, 3, n, 8), np.float32)) for n in (5, 7))
    mask = jnp.asarray(rng.random((2, 1, 5, 7)) < 0.4).at[..., 0].set(True)
    weights = attention_weights(query, key, mask)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
    assert (np.asarray(weights)[~np.broadcast_to(mask, weights.shape)] == 0).all()


@pytest.mark.slow
def test_cross_attention_rows_sum_to_one(tiny, random_variables):
    model = Transformer(tiny(attention="fused"))
    look = jax.jit(partial(sown_attention, cross_attention, model))
    looked = look(random_variables(model), {"source": jnp.asarray(SOURCE)}, jnp.asarray(TARGET))
    assert looked.shape == (3, 5, 7)
    np.testing.assert_allclose(looked.sum(axis=-1), 1, atol=1e-6)
    assert (np.asarray(looked).swapaxes(1, 2)[SOURCE == 0] == 0).all()


@pytest.mark.thorough
@pytest.mark.by_default("False")
@pytest.mark.parametrize("biased", [False, True])
def test_joined_heads_give_the_contexts_and_weights_of_separate_ones(biased):
    (rows, heads, queries, places), rng = (2, 3, 4, 10), np.random.default_rng(0)
    shapes = (queries, 5), (places, 5), (places, 6), (queries, places)
    drawn = (jnp.asarray(rng.standard_normal((rows, heads, *shape)), jnp.float32) for shape in shapes)
    query, keys, values, bias = drawn
    mask = Mask(pairs=jnp.asarray(rng.random((rows, queries, places)) < 0.5).at[..., 0].set(True))
    bias = bias if biased else None
    expected = attention_weights(query, keys, mask.dense(queries, places), bias)
    joined = AttentionInputs(query, join_heads(keys), join_heads(values), mask, bias)
    context, weights = with_joined_heads(joined)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_array_equal(weights == 0, expected == 0)
    np.testing.assert_allclose(context, expected @ values, atol=1e-6)


@pytest.mark.by_default("gpu-changes5-4-joined5")
@pytest.mark.parametrize(
    ("platform", "changes", "beams", "joined"),
    [
        ("tpu", {}, 4, {1}),
        ("tpu", {}, 17, {2}),  # each query is multiplied as often as there are heads
        ("tpu", {"num_heads": 16}, 4, {16}),
        ("tpu", {"cross_mechanism": "additive"}, 4, {1, 2}),
        ("cpu", {}, 4, {2}),
        ("gpu", {}, 4, {2}),
    ],
)
def test_when_heads_are_joined(tiny, random_variables, platform, changes, beams, joined):
    model = Transformer(tiny(**changes))
    variables, source = random_variables(model), jnp.asarray(SOURCE)
    memory = apply(model, variables, source, method="encode")
    with tracing_for(platform):  # which a compiled program would not ask again
        cache = model.apply(variables, memory, beams, 5, method="init_cache")
    source = [keys_values for views in cache.source[0] for keys_values in views]
    cached = [*(layer.past for layer in cache.layers), *source]
    assert {x.shape[1] for keys_values in cached for x in (keys_values.keys, keys_values.values)} == joined


@pytest.fixture
def fused_calls(monkeypatch):
    """A list that grows with every call of the fused kernel."""
    calls, kernel = [], jax.nn.dot_product_attention

    def counted(*args, **kwargs):
        calls.append(1)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(jax.nn, "dot_product_attention", counted)
    return calls


@pytest.mark.slow
def test_fused_attention_agrees_with_einsums_and_padding_gives_no_nan(tiny, random_variables, fused_calls):
    plain, fused = (Transformer(tiny(attention=kind)) for kind in ("einsum", "fused"))
    variables = random_variables(plain)
    source = np.vstack([SOURCE, 0 * SOURCE[:1]])  # and a row of nothing but padding
    target = np.vstack([TARGET, 0 * TARGET[:1]])

    def values_and_gradients(model):
        def loss(variables):
            logits = apply(model, variables, jnp.asarray(source), jnp.asarray(target))
            return jnp.sum(jnp.sin(logits)), logits

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)

    ((_, expected), gradients), ((_, logits), fused_gradients) = map(values_and_gradients, (plain, fused))
    assert len(fused_calls) == 6  # two in each encoder layer and four in the decoder's
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=1e-5)
    jax.tree.map(
        # a gradient adds up 20 rows of 20 logits
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * max(1, np.abs(b).max())),
        fused_gradients,
        gradients,
    )


@pytest.mark.by_default("changes5-False-False")
@pytest.mark.parametrize(
    ("changes", "mutable", "fused"),
    [
        ({"attention": "fused"}, False, True),
        ({"attention": "fused", "attention_dropout": 0.1}, False, False),
        ({"attention": "fused", "attention_dropout": 0.1, "deterministic": True}, False, True),
        ({"attention": "fused", "d_k": 8, "d_v": 4}, False, False),
        ({"attention": "fused"}, ["intermediates"], False),
        ({"attention": "einsum"}, False, False),
        ({"attention": "auto"}, False, False),  # float32 is not for cuDNN
    ],
)
def test_when_attention_is_fused(tiny, fused_calls, changes, mutable, fused):
    deterministic = changes.get("deterministic", "attention_dropout" not in changes)
    model = Transformer(tiny(**{name: value for name, value in changes.items() if name != "deterministic"}))
    variables = jax.eval_shape(model.init, jax.random.key(0), SOURCE[:, :2], SOURCE[:, :2])
    variables = {"params": variables["params"]}
    fused_calls.clear()
    options = {"mutable": mutable, "deterministic": deterministic, "rngs": {"dropout": jax.random.key(0)}}
    jax.eval_shape(
        lambda variables: model.apply(variables, jnp.asarray(SOURCE), jnp.asarray(TARGET), **options),
        variables,
    )
    assert bool(fused_calls) == fused
