"""Options of the network that pretrained models need, against their definitions in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from toy_sentences import SOURCE, TARGET

from transformer import Transformer, UserError
from transformer.model.declarations import declarations
from transformer.model.layers import ACTIVATIONS, Embedding, FeedForward
from transformer.model.positions import PositionEncoding, halves
from transformer.model.variants.normalizations import RmsNorm
from transformer.model.variants.positions import bucket
from transformer.systems.parameters import in_int8

T5 = {
    "positions": "buckets",
    "position_buckets": 8,
    "bucket_distance": 12,
    "normalization": "rms",
    "norm": "pre",
    "gated": True,
    "feed_forward_bias": False,
    "scale_embedding": False,
    "scale_scores": False,
    "scale_output": True,
}
BART = {
    "positions": "sinusoidal-halves",
    "first_position": 2,
    "embedding_norm": True,
    "scale_embedding": False,
    "attention_bias": True,
    "output_bias": True,
    "activation": "gelu-exact",
}
WHISPER = {"norm": "pre", "attention_bias": True, "key_bias": False, "positions": "learned"}
TORCH = {"final_norm": True, "share_embeddings": "none", "output_bias": True}
FAMILIES = {"t5": T5, "bart": BART, "whisper": WHISPER, "torch": TORCH}
TRAINED = {**FAMILIES, "marian": {"decoder_recurrence": "ssru", "zero_start": True}}


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_gelu_is_x_times_the_normal_distribution():
    x = random(50) * 3
    expected = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x]
    np.testing.assert_allclose(ACTIVATIONS["gelu-exact"](x), expected, atol=1e-6)


def test_rms_norm_has_neither_mean_nor_offset(tiny):
    x, scale = random(2, 3, 16) + 5, random(16, seed=1)
    normalised = apply(RmsNorm(tiny(norm_epsilon=1e-2)), {"params": {"norm": {"scale": scale}}}, x)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2) * scale
    np.testing.assert_allclose(normalised, expected, rtol=1e-5)


def test_a_gate_multiplies_the_activation(tiny):
    x = random(2, 3, 16)
    inner, gate = random(16, 32, seed=1), random(16, 32, seed=2)
    outer = random(32, 16, seed=3)
    params = {"inner": {"kernel": inner}, "gate": {"kernel": gate}, "outer": {"kernel": outer}}
    output = apply(FeedForward(tiny(gated=True, feed_forward_bias=False)), {"params": params}, x)
    np.testing.assert_allclose(output, np.maximum(x @ inner, 0) * (x @ gate) @ outer, rtol=1e-4, atol=1e-3)


def test_sinusoids_in_halves():
    table = halves(jnp.arange(7), 6)
    for position in range(7):
        for i in range(3):
            angle = position / 10_000 ** (i / 2)
            assert table[position, i] == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 3 + i] == pytest.approx(math.cos(angle), abs=1e-5)


def test_positions_may_begin_later_and_be_normalised(tiny):
    config = tiny(positions="sinusoidal-halves", first_position=2, embedding_norm=True)
    norm = {"scale": random(16, seed=1), "bias": random(16, seed=2)}
    embedded = random(1, 5, 16)
    variables = {"params": {"norm": {"norm": norm}}}
    encoded = apply(PositionEncoding(config), variables, embedded, np.arange(5))
    x = embedded + np.asarray(halves(jnp.arange(2, 7), 16))
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / centred.std(-1, keepdims=True) * norm["scale"] + norm["bias"]
    np.testing.assert_allclose(encoded, expected, atol=1e-4)


def test_embeddings_need_not_be_scaled(tiny):
    table = random(20, 16)
    ids = jnp.asarray([[3, 4]])
    for is_scaled, factor in ((True, 4.0), (False, 1.0)):
        embedding = Embedding(tiny(scale_embedding=is_scaled), 20)
        embedded = apply(embedding, {"params": {"table": table}}, ids)
        np.testing.assert_array_equal(embedded[0], table[3:5] * np.float32(factor))


def test_ranges_of_distances_grow():
    """Raffel et al. 2020, section 2.1: one range for each small distance, then logarithmic ones, and one for
    all beyond; here 8 up to a distance of 16, so 4 to 16 is cut in four equal parts of a logarithm."""
    distances = jnp.arange(-20, 40)
    ranges = np.asarray(bucket(distances, 8, 16, True))
    edges = [4 * 4 ** (part / 4) for part in range(4)]
    for distance, index in zip(np.asarray(distances), ranges, strict=True):
        last = max((part for part, edge in enumerate(edges) if distance >= edge), default=0)
        assert index == (max(distance, 0) if distance < 4 else 4 + last), distance
    both = np.asarray(bucket(distances, 16, 16, False))
    np.testing.assert_array_equal(both[20:], ranges[20:])  # before the query
    np.testing.assert_array_equal(both[:20], 8 + ranges[40:20:-1])  # after it


def test_all_layers_share_the_scores_of_distances(tiny, random_variables):
    params = random_variables(Transformer(tiny(**T5)))["params"]
    assert params["source_distances"]["table"].shape == params["target_distances"]["table"].shape == (8, 2)
    names = {key.key for path, _ in jax.tree_util.tree_leaves_with_path(params) for key in path}
    assert "bias" not in names
    assert {"scale", "gate", "kernel"} <= names


def test_scores_need_not_be_scaled(tiny, random_variables):
    """softmax(Q K^T) is softmax((sqrt(d_k) Q) K^T / sqrt(d_k)), in training and in decoding."""
    plain, scaled = (Transformer(tiny(scale_scores=scale, d_k=16)) for scale in (False, True))
    variables = random_variables(plain)
    four_times = jax.tree_util.tree_map_with_path(
        lambda path, x: 4 * x if path[-1].key == "query" else x, variables
    )
    inputs = jnp.asarray(SOURCE), jnp.asarray(TARGET)
    np.testing.assert_allclose(
        apply(plain, variables, *inputs), apply(scaled, four_times, *inputs), atol=1e-5
    )
    assert not np.allclose(apply(plain, variables, *inputs), apply(scaled, variables, *inputs), atol=1e-2)


@pytest.mark.parametrize(
    "options", [{"mechanism": "linear"}, {"mechanism": "additive"}, {"positions": "relative"}]
)
def test_scores_without_plain_products_are_always_scaled(tiny, options):
    with pytest.raises(UserError, match="--model.scale-scores False is for plain dot products, and not for"):
        tiny(scale_scores=False, **options)


def test_a_token_type_is_a_vector_of_all_positions(tiny):
    embedded, vector = random(2, 5, 16), random(1, 16, seed=1)
    plain = apply(PositionEncoding(tiny()), {"params": {}}, embedded, np.arange(5))
    variables = {"params": {"token_type": vector}}
    found = apply(PositionEncoding(tiny(token_type=True)), variables, embedded, np.arange(5))
    np.testing.assert_allclose(found, plain + vector, atol=1e-6)


def test_padding_is_read_without_a_gradient(tiny):
    table, ids = random(20, 16), jnp.asarray([[0, 3, 0]])

    def gradient(config):
        read = Embedding(config, 20)
        return jax.grad(lambda x: (apply(read, {"params": {"table": x}}, ids) ** 2).sum())(table)

    fixed, trained = gradient(tiny(fixed_padding=True)), gradient(tiny())
    assert not fixed[0].any()
    assert trained[0].any()
    np.testing.assert_array_equal(fixed[1:], trained[1:])


def test_keys_need_no_bias(tiny, random_variables):
    """A bias of the keys adds the same to all scores of a query."""
    with_bias = Transformer(tiny(attention_bias=True))
    variables = random_variables(with_bias)
    without = Transformer(tiny(attention_bias=True, key_bias=False))
    params = {
        layer: {part: {k: v for k, v in values.items() if k != "key_bias"} for part, values in parts.items()}
        if layer != "source_embedding"
        else parts
        for layer, parts in variables["params"].items()
    }
    expected = apply(with_bias, variables, jnp.asarray(SOURCE), jnp.asarray(TARGET))
    logits = apply(without, {"params": params}, jnp.asarray(SOURCE), jnp.asarray(TARGET))
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def with_small_queries(variables, d_k):
    def smaller(path, leaf):
        return leaf / math.sqrt(d_k) if path[-1].key == "query" else leaf

    return jax.tree_util.tree_map_with_path(smaller, variables)


@pytest.mark.thorough
@pytest.mark.by_default("torch")
@pytest.mark.parametrize("name", FAMILIES)
def test_step_by_step_in_int8_and_in_slices_it_is_the_same_model(tiny, random_variables, name):
    model = Transformer(tiny(**FAMILIES[name]))
    variables = random_variables(model)
    if name == "t5":  # whose scores are not divided by sqrt(d_k): its queries are as much smaller
        variables = with_small_queries(variables, model.config.key_width)
    source, target = jnp.asarray(SOURCE), jnp.asarray(TARGET)
    logits = apply(model, variables, source, target)
    memory = apply(model, variables, source, method="encode")
    cache = apply(model, variables, memory, 1, target.shape[1], method="init_cache")
    for time, is_token in enumerate(np.asarray(target).T != 0):
        step, cache = apply(model, variables, cache, target[:, time : time + 1], method="decode_step")
        np.testing.assert_allclose(step[is_token, 0], logits[is_token, time], atol=1e-4)
    hidden = apply(model, variables, source, target, method="hidden")
    states, table = apply(model, variables, hidden, method="output_factors")
    np.testing.assert_allclose(np.asarray(states) @ np.asarray(table).T, logits, atol=1e-4)
    summed = {path: leaf.summed for path, leaf in declarations(model, (source, target)).items()}
    small = apply(model, in_int8(variables, summed), source, target)
    assert 0 < np.abs(small - logits).max() < 0.2 * np.abs(logits).max()


@pytest.mark.thorough
@pytest.mark.by_default("t5")
@pytest.mark.parametrize("name", TRAINED)
def test_in_bfloat16_gradients_are_nearly_the_same(tiny, random_variables, name):
    exact, coarse = (Transformer(tiny(dtype=dtype, **TRAINED[name])) for dtype in ("float32", "bfloat16"))
    variables = random_variables(exact)
    source, target = jnp.asarray(SOURCE), jnp.asarray(TARGET)
    weights = jnp.asarray(random(*target.shape, exact.config.vocab_size))

    def gradients(model):
        def loss(variables):
            return (model.apply(variables, source, target) * weights).mean()

        leaves = jax.tree.leaves(jax.jit(jax.grad(loss))(variables))
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
        return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves])

    expected = gradients(exact)
    error = np.linalg.norm(gradients(coarse) - expected) / np.linalg.norm(expected)
    # eight bits: 2^-9 at each rounding, some sixty of them forth and back, adding up at random
    assert 0 < error < 10 * math.sqrt(60) * 2**-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "buckets", "bucket_distance": 16}, "bucket-distance 16 must exceed half of"),
        ({"positions": "buckets", "mechanism": "additive"}, "acts on dot products"),
        ({"positions": "sinusoidal-halves", "d_model": 2, "num_heads": 1}, "must be at least 4"),
    ],
)
def test_what_does_not_fit_is_refused(tiny, options, message):
    with pytest.raises(UserError, match=message):
        tiny(**options)
