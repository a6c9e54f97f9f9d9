"""Mechanisms of attention, views of the encoder and normalisations, against NumPy and against enumeration."""

import itertools
from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from reference_search import random_variables
from tiers import mostly_slow

from transformer import Transformer, TransformerConfig, UserError
from transformer.model.attention import MECHANISMS, mechanism_of
from transformer.model.masks import AttentionInputs, Mask
from transformer.model.normalization import NORMALIZATIONS
from transformer.model.variants.additive import LocationAttention, MonotonicAttention, expected_alignment
from transformer.model.variants.recurrence import CHUNK, causal_sums
from transformer.model.variants.views import VIEWS

SIZES = {"vocab_size": 12, "num_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2, "dropout": 0.0}
SOURCE = jnp.asarray([[5, 6, 7, 4, 2], [8, 2, 0, 0, 0]])
TARGET = jnp.asarray([[1, 4, 5, 6, 9, 7], [1, 7, 6, 5, 5, 4]])
CHANGED = [
    {"mechanism": "linear"},
    {"mechanism": "additive"},
    {"decoder_recurrence": "ssru"},
    {"cross_mechanism": "additive"},
    {"cross_mechanism": "location", "location_width": 3},
    {"cross_mechanism": "monotonic", "monotonic_offset": 0.1},
    {"cross_view": "soft-sum"},
    {"cross_view": "layer-wise", "decoder_layers": 3},
    {"cross_view": "coarse-to-fine", "norm": "pre"},
    {"cross_view": "layer-wise", "cross_mechanism": "location"},
    {"normalization": "batch"},
    {"normalization": "power", "norm": "pre"},
]


def built(**changes):
    model = Transformer(TransformerConfig(**{**SIZES, **changes}))
    variables = jax.tree.map(jnp.asarray, random_variables(model, 3))
    positive = jax.tree.map(lambda x: jnp.abs(x) + 8, variables.get("statistics", {}))
    return model, {**variables, **({"statistics": positive} if positive else {})}


def name_of(changes):
    return ", ".join(map(str, changes.values()))


def test_the_options_are_what_there_is():
    hints = get_type_hints(TransformerConfig)
    named = get_args(hints["mechanism"]) + get_args(hints["cross_mechanism"])
    assert set(named) == set(MECHANISMS)
    assert get_args(hints["cross_view"]) == ("last", *VIEWS)
    assert get_args(hints["normalization"]) == tuple(NORMALIZATIONS)


QUICK = [changes for changes in CHANGED if len({"cross_view", "cross_mechanism"} & changes.keys()) < 2]
every_change = pytest.mark.parametrize("changes", mostly_slow(CHANGED, QUICK), ids=name_of)


@pytest.mark.by_default("ssru")
@every_change
def test_step_by_step_is_the_same_as_all_at_once(changes):
    """Also for beams that continue others, in batches of other lengths."""
    model, variables = built(**changes)
    logits = apply(model, variables, SOURCE, TARGET)
    memory = apply(model, variables, SOURCE, method="encode")
    cache = apply(model, variables, memory, 2, TARGET.shape[1], method="init_cache")
    swapped = jnp.asarray([[1, 0], [1, 0]])
    for time in range(TARGET.shape[1]):
        beams = jnp.stack([TARGET[:, time], TARGET[::-1, time]], axis=1)
        beams = beams[:, ::-1] if time % 2 else beams
        step_logits, cache = apply(model, variables, cache, beams, method="decode_step")
        beam_logits = step_logits[:, time % 2]
        np.testing.assert_allclose(beam_logits, logits[:, time], rtol=1e-5, atol=2e-5)
        cache = cache.select(swapped)
    alone = apply(model, variables, SOURCE[1:, :2], TARGET[1:])
    np.testing.assert_allclose(alone[0], logits[1], rtol=1e-5, atol=2e-5)


@pytest.mark.thorough
@pytest.mark.by_default("soft-sum")
@every_change
def test_it_trains(changes):
    model, variables = built(**changes)

    def loss(params):
        changed = {**variables, "params": params}
        rngs = {"dropout": jax.random.key(0)}
        logits, _ = apply(model, changed, SOURCE, TARGET, deterministic=False, rngs=rngs, mutable=["sums"])
        return jnp.square(logits).mean()

    gradients = jax.grad(loss)(variables["params"])
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(gradient).all(), jax.tree_util.keystr(path)
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


def phi(x):
    return np.where(x > 0, x + 1, np.exp(x))


@pytest.mark.parametrize("length", [1, 7, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_linear_attention_is_an_explicit_sum(length):
    """Katharopoulos et al. 2020, Eq. 4: the sum over all pairs."""
    random = np.random.default_rng(length)
    query, keys = random.normal(size=(2, 1, 2, length, 3))
    values = random.normal(size=(1, 2, length, 4))
    sums = causal_sums(jnp.asarray(phi(query)), jnp.asarray(phi(keys)), jnp.asarray(values))
    for head, i in itertools.product(range(2), range(length)):
        terms = [phi(query[0, head, i]) @ phi(keys[0, head, j]) * values[0, head, j] for j in range(i + 1)]
        np.testing.assert_allclose(sums[0, head, i], sum(terms), rtol=1e-4, atol=1e-4)

    mechanism = mechanism_of("linear")(TransformerConfig(**SIZES))
    arrays = map(jnp.asarray, (query, keys, values))
    inputs = AttentionInputs(*arrays, Mask(causal=True), needs_weights=True)
    context, weights, _ = jax.jit(lambda inputs: mechanism.apply({}, inputs))(inputs)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-4)
    np.testing.assert_allclose(context, weights @ inputs.values, atol=1e-4)


def test_the_decoding_state_of_linear_attention_has_one_size():
    model, variables = built(mechanism="linear")
    memory = apply(model, variables, SOURCE, method="encode")
    short, long = (apply(model, variables, memory, 2, length, method="init_cache") for length in (4, 4000))
    assert jax.tree.map(jnp.shape, short) == jax.tree.map(jnp.shape, long)


@pytest.mark.thorough
def test_location_attention_without_filters_is_additive():
    located, variables = built(cross_mechanism="location")
    plain, _ = built(cross_mechanism="additive")
    logits = apply(located, variables, SOURCE, TARGET)
    params = {name: dict(module) for name, module in variables["params"].items()}
    for layer in ("decoder_0", "decoder_1"):
        cross = dict(params[layer]["cross_attention"])
        filters = cross["mechanism"]["filters"]
        cross["mechanism"] = {**cross["mechanism"], "filters": jnp.zeros_like(filters)}
        params[layer] = {**params[layer], "cross_attention": cross}
    unfiltered = apply(located, {"params": params}, SOURCE, TARGET)
    for layer in ("decoder_0", "decoder_1"):
        energy = params[layer]["cross_attention"]["mechanism"]["energy"]
        params[layer]["cross_attention"]["mechanism"] = {"energy": energy}
    expected = apply(plain, {"params": params}, SOURCE, TARGET)
    np.testing.assert_allclose(unfiltered, expected, atol=1e-5)
    assert np.abs(logits - unfiltered).max() > 1e-3


def test_location_attention_by_loops():
    """Chorowski et al. 2015, Eq. 8-9."""
    config = TransformerConfig(**{**SIZES, "num_heads": 1}, location_width=3, location_filters=2)
    random, mechanism = np.random.default_rng(0), LocationAttention(config)
    query, keys, values = (random.normal(size=(1, 1, n, 8)).astype(np.float32) for n in (3, 5, 5))
    inputs = AttentionInputs(*map(jnp.asarray, (query, keys, values)), Mask())
    variables = init(mechanism, jax.random.key(1), inputs)
    context, weights, _ = apply(mechanism, variables, inputs)
    p = jax.tree.map(np.asarray, variables["params"])
    before = np.zeros(5)
    for i in range(3):
        energies = np.zeros(5)
        for j in range(5):
            near = [before[j + k - 1] if 0 <= j + k - 1 < 5 else 0 for k in range(3)]
            f = np.array(near) @ p["filters"][0]
            total = query[0, 0, i] + keys[0, 0, j] + f @ p["projection"][0]
            energies[j] = np.tanh(total) @ p["energy"][0]
        before = np.exp(energies) / np.exp(energies).sum()
        np.testing.assert_allclose(weights[0, 0, i], before, atol=1e-5)
        np.testing.assert_allclose(context[0, 0, i], before @ values[0, 0], atol=1e-5)


def test_the_expected_alignment_is_the_sum_over_all_monotonic_paths():
    """Each query stops at a key at or after the last one, or runs past the end, where it and all later ones
    read nothing (Raffel et al. 2017, section 2.2)."""
    queries, keys = 3, 4
    stops = np.random.default_rng(2).uniform(0.05, 0.95, (queries, keys))
    expected = np.zeros((queries, keys))
    for path in itertools.product(range(keys + 1), repeat=queries):
        probability, at = 1.0, 0
        for i, place in enumerate(path):
            if place < at or (at == keys and place < keys):
                probability = 0.0
                break
            for j in range(at, place):
                probability *= 1 - stops[i, j]
            probability *= stops[i, place] if place < keys else 1.0
            at = place
        for i, place in enumerate(path):
            if place < keys:
                expected[i, place] += probability
    alignment = expected_alignment(jnp.asarray(stops)[None, None])[0, 0]
    np.testing.assert_allclose(alignment, expected, atol=1e-6)


def test_hard_monotonic_attention_never_goes_back():
    config = TransformerConfig(**SIZES, monotonic_offset=0.0)
    random, mechanism = np.random.default_rng(4), MonotonicAttention(config)
    query, keys = (jnp.asarray(random.normal(size=(1, 2, n, 4)), jnp.float32) for n in (6, 9))
    inputs = AttentionInputs(query, keys, jnp.eye(9)[None, None].repeat(2, axis=1), Mask())
    variables = init(mechanism, jax.random.key(0), inputs)
    context, weights, _ = apply(mechanism, variables, inputs)
    np.testing.assert_allclose(context, weights)
    assert set(np.unique(weights)) <= {0, 1}
    state, heads_moved = jnp.zeros((1, 1, 2), jnp.int32), 0
    for i in range(6):
        step = inputs.replace(query=query[:, :, i : i + 1], state=state)
        step_context, _, after = apply(mechanism, variables, step)
        np.testing.assert_allclose(step_context[:, :, 0], context[:, :, i])
        assert (after >= state).all()
        heads_moved += int((after > state).sum())
        for head in range(2):
            place = int(after[0, 0, head])
            energies = np.asarray(
                apply(mechanism, variables, query[:, :, i : i + 1] + keys, method="energies")
            )[0, head]
            passed = energies[int(state[0, 0, head]) : place]
            assert (passed <= 0).all()
            assert place == 9 or energies[place] > 0
        state = after
    assert heads_moved > 2


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.0, 1e6])
def test_noise_before_the_sigmoid_makes_stops_certain(noise):
    """Without noise a query stops at a key with the probability sigmoid(energy); with very much, it stops or
    does not, so that a head attends to one key or to none (Raffel et al. 2017, section 2.3)."""
    config = TransformerConfig(**SIZES, monotonic_offset=0.0, monotonic_noise=noise)
    random, mechanism = np.random.default_rng(5), MonotonicAttention(config)
    query, keys = (jnp.asarray(random.normal(size=(1, 2, n, 4)), jnp.float32) for n in (3, 5))
    inputs = AttentionInputs(query, keys, keys, Mask(), deterministic=False)
    variables = init(mechanism, jax.random.key(0), inputs.replace(deterministic=True))
    _, weights, _ = mechanism.apply(variables, inputs, rngs={"dropout": jax.random.key(1)})
    if noise:
        np.testing.assert_allclose(weights, np.round(weights), atol=1e-6)
        assert weights.sum() > 0
        return
    summed = query[:, :, :, None] + keys[:, :, None]
    stops = jax.nn.sigmoid(apply(mechanism, variables, summed, method="energies"))
    np.testing.assert_allclose(weights, expected_alignment(stops), rtol=1e-6)


def test_the_views_of_each_layer():
    layers = [jnp.full((1, 2, 1), float(i)) for i in (1, 2, 3, 4)]

    def views(kind, depth):
        config = TransformerConfig(**{**SIZES, "num_layers": 4}, cross_view=kind, decoder_layers=depth)
        module = VIEWS[kind](config)
        return [float(x[0, 0, 0]) for x in module.apply(module.init(jax.random.key(0), layers), layers)]

    assert views("layer-wise", 4) == [1, 2, 3, 4]
    assert views("layer-wise", 2) == [2, 4]
    assert views("coarse-to-fine", 4) == [4, 3, 2, 1]
    assert views("coarse-to-fine", 3) == [3, 2, 1]
    assert views("soft-sum", 2) == [2.5, 2.5]


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


@pytest.mark.thorough
@pytest.mark.by_default("soft-sum")
@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_is_one_more_attention_with_the_same_projections(kind):
    """Two layers in NumPy, on the encoder's states; the last view alone is the plain model."""
    model, variables = built(cross_view=kind)
    plain, _ = built()
    params = {name: value for name, value in variables["params"].items() if name != "second_view"}
    memory = apply(model, variables, SOURCE[:1], every_layer=True, method="encode")
    if kind == "soft-sum":
        weights = softmax(np.asarray(variables["params"]["second_view"]["weights"]))
        other = [sum(w * x for w, x in zip(row, memory.layers, strict=True)) for row in weights]
    else:
        places = {"layer-wise": (0, 1), "coarse-to-fine": (1, 0), "last": (1, 1)}[kind]
        other = [memory.layers[i] for i in places]

    def norm(x, residual):
        p = residual["norm"]["norm"]
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]

    def attend(x, source, p, causal=False):
        heads = []
        for head in range(2):
            query = x @ p["query"][:, head]
            keys, values = (source @ p[name][:, head] for name in ("key", "value"))
            scores = query @ keys.T / 2
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf) if causal else scores
            heads.append(softmax(scores) @ values @ p["out"][head])
        return sum(heads)

    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    angles = np.arange(6)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    x = p["source_embedding"]["table"][np.asarray(TARGET[0])] * 8**0.5
    x = x + np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(6, 8)
    for layer, view in zip((p["decoder_0"], p["decoder_1"]), other, strict=True):
        x = norm(x + attend(x, x, layer["self_attention"], causal=True), layer["self_residual"])
        views = [np.asarray(memory.states[0])] + ([] if kind == "last" else [np.asarray(view[0])])
        both = [attend(x, view, layer["cross_attention"]) for view in views]
        x = norm(x + sum(both) / len(both), layer["cross_residual"])
        f = layer["feed_forward"]
        inner = np.maximum(x @ f["inner"]["kernel"] + f["inner"]["bias"], 0)
        x = norm(x + inner @ f["outer"]["kernel"] + f["outer"]["bias"], layer["feed_forward_residual"])
    expected = x @ p["source_embedding"]["table"].T
    logits = apply(model, variables, SOURCE, TARGET)
    np.testing.assert_allclose(logits[0], expected, atol=1e-4)
    if kind == "last":
        np.testing.assert_array_equal(apply(plain, {"params": params}, SOURCE, TARGET), logits)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mechanism": "linear", "positions": "alibi"}, "acts on dot products"),
        ({"mechanism": "additive", "positions": "rotary"}, "acts on dot products"),
        ({"mechanism": "linear", "window": 3}, "no weights to restrict"),
        ({"location_width": 4}, "must be odd"),
        ({"monotonic_noise": -1.0}, "must not be negative"),
    ],
)
def test_wrong_options_are_refused(changes, said):
    with pytest.raises(UserError, match=said):
        TransformerConfig(**SIZES, **changes)
