"""The network: what it computes, what it may see, and that every way of computing it agrees.

Tolerances: a logit here is a sum of some hundred float32 products of size 1, so two orders of
summation differ by a few 1e-7; 1e-5 leaves room for two layers and no room for an error. Zeros that
masks promise are exact.
"""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from transformer.model.attention import attention_weights
from transformer.model.layers import Dropout, Embedding, keep_mask, sinusoids
from transformer.model.transformer import EncoderLayer, Transformer, cross_attention
from transformer.presets import PRESETS

BOS, EOS = 1, 2
SOURCE = np.array([[4, 5, 6, 7, 8, 9, EOS], [10, 11, 12, EOS, 0, 0, 0], [13, EOS, 0, 0, 0, 0, 0]])
TARGET = np.array([[BOS, 4, 5, 6, 7], [BOS, 8, 9, 10, 0], [BOS, 11, 0, 0, 0]])


@functools.cache
def compiled(model):
    return jax.jit(model.apply)


def logits_of(model, variables, source=SOURCE, target=TARGET, **options):
    return np.asarray(compiled(model)(variables, jnp.asarray(source), jnp.asarray(target), **options))


def test_shapes_are_checked_while_testing(tiny):
    model = Transformer(tiny())
    with pytest.raises(TypeCheckError, match="source"):
        jax.eval_shape(model.init, jax.random.key(0), jnp.asarray(SOURCE[0]), jnp.asarray(TARGET))


# --- one position at a time, as decoding does it ---

VARIANTS = {
    "paper": {},
    "pre-norm, window": {"norm": "pre", "window": 2},
    "learned positions, biases": {"positions": "learned", "max_positions": 9, "attention_bias": True},
    "two vocabularies, d_k is not d_v": {
        "share_embeddings": "target",
        "target_vocab_size": 23,
        "d_k": 5,
        "d_v": 12,
    },
    "three matrices, gelu": {"share_embeddings": "none", "activation": "gelu"},
    "a shallow decoder, a bias on the logits": {"decoder_layers": 1, "output_bias": True},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_cached_decoding_equals_teacher_forcing(tiny, random_variables, changes):
    model = Transformer(tiny(**changes))
    variables = random_variables(model)
    batch, beams, steps, first = len(SOURCE), 3, 9, 4
    rng = np.random.default_rng(1)
    tokens = rng.integers(4, model.config.output_size, (steps, batch, beams))
    parents = rng.integers(0, beams, (steps, batch, beams))

    @jax.jit
    def decode(variables, source, tokens, parents):
        def step(cache, now):
            logits, cache = model.apply(variables, cache, now[0], method="decode_step")
            return cache.select(now[1]), logits

        memory = model.apply(variables, source, method="encode")
        cache = model.apply(variables, memory, beams, first, method="init_cache")
        cache, begun = jax.lax.scan(step, cache, (tokens[:first], parents[:first]))
        _, ended = jax.lax.scan(step, cache.grow(steps), (tokens[first:], parents[first:]))
        return jnp.concatenate([begun, ended])

    # what each beam has said at each step; the future is there too, and must not be seen
    told = rng.integers(4, model.config.output_size, (steps, batch, beams, steps))
    past = np.zeros((batch, beams, 0), int)
    for step in range(steps):
        past = np.concatenate([past, tokens[step][..., None]], axis=-1)
        told[step, ..., : step + 1] = past
        past = np.take_along_axis(past, parents[step][..., None], axis=1)
    sources = np.broadcast_to(SOURCE[:, None], (steps, batch, beams, SOURCE.shape[1]))
    forced = logits_of(
        model, variables, sources.reshape(-1, SOURCE.shape[1]), told.reshape(-1, steps)
    ).reshape(steps, batch, beams, steps, -1)

    decoded = decode(variables, jnp.asarray(SOURCE), jnp.asarray(tokens), jnp.asarray(parents))
    for step in range(steps):
        np.testing.assert_allclose(decoded[step], forced[step, :, :, step], atol=1e-5, rtol=1e-5)


def test_packed_rows_give_the_logits_of_the_sentences_alone(tiny, random_variables):
    sources = [[4, 5, 6, EOS], [7, EOS], [8, 9, EOS]]
    targets = [[BOS, 10], [BOS, 11, 12, 13], [BOS, 14, 15]]

    def packed(sentences, length):
        ids, segments = np.zeros((1, length), int), np.zeros((1, length), int)
        ids[0, : sum(map(len, sentences))] = np.concatenate(sentences)
        numbers = np.repeat(np.arange(1, len(sentences) + 1), [len(s) for s in sentences])
        segments[0, : len(numbers)] = numbers
        return jnp.asarray(ids), jnp.asarray(segments)

    def padded(sentences):
        longest = max(map(len, sentences))
        return np.array([sentence + [0] * (longest - len(sentence)) for sentence in sentences])

    for changes in ({}, {"num_layers": 1, "window": 1, "positions": "learned", "max_positions": 4}):
        model = Transformer(tiny(**changes))
        variables = random_variables(model)
        (source, source_segments), (target, target_segments) = packed(sources, 11), packed(targets, 12)
        segments = (source_segments, target_segments)
        together = logits_of(model, variables, source, target, segments=segments)
        alone = logits_of(model, variables, padded(sources), padded(targets))
        for number, sentence in enumerate(targets):
            np.testing.assert_allclose(
                together[0, target_segments[0] == number + 1],
                alone[number, : len(sentence)],
                atol=1e-5,
                rtol=1e-5,
            )


# --- who may see whom: where the mask says no, the gradient is exactly zero ---


def influence(compute, variables, table, ids):
    """[b, t, b', t']: how much the output at (b, t) depends on the token at (b', t'). The ids are
    all different, so that each row of the embedding belongs to one place."""
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


@pytest.mark.parametrize("window", [None, 1])
def test_the_encoder_sees_its_own_sentence_without_padding(tiny, random_variables, window):
    model = Transformer(tiny(vocab_size=40, window=window))
    variables = random_variables(model)
    source = np.arange(4, 4 + 3 * 6).reshape(3, 6)
    # padding is told by its id, so that all of it is one row of the table: its column below is <pad>'s
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
        # whoever asks for the weights gets them all: that path does not cut
        whole, _ = model.apply(variables, *ids, **others, mutable=["intermediates"])
        np.testing.assert_allclose(model.apply(variables, *ids, **others), whole, atol=2e-5)


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
        states, table = model.apply(variables, hidden, method="output_factors")
        logits = model.apply(variables, hidden, method="output")
        np.testing.assert_allclose(np.einsum("btf,vf->btv", states, table), logits, atol=1e-5)
        if bias:
            assert np.abs(np.asarray(logits) - np.asarray(hidden) @ np.asarray(table)[:, :16].T).max() > 0.1


# --- attention, against loops ---


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


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_layer_against_loops(tiny, norm):
    config = tiny(norm=norm, attention_bias=True, d_k=6, d_v=10)
    layer = EncoderLayer(config)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, config.d_model), np.float32)
    mask = (rng.random((2, 1, 5, 5)) < 0.5) | np.eye(5, dtype=bool)
    variables = jax.jit(layer.init, static_argnums=3)(jax.random.key(0), x, mask, True)
    variables = jax.tree.map(lambda leaf: leaf + 0.1 * rng.standard_normal(leaf.shape, np.float32), variables)
    p = variables["params"]

    def around(x, name, sublayer):
        norm_of = p[name]["norm"]
        if norm == "pre":
            return x + sublayer(layer_norm(x, norm_of))
        return layer_norm(x + sublayer(x), norm_of)

    expected = around(x.astype(float), "self_residual", lambda x: multi_head(x, p["self_attention"], mask))
    expected = around(expected, "feed_forward_residual", lambda x: feed_forward(x, p["feed_forward"]))
    computed = jax.jit(layer.apply, static_argnums=3)(variables, jnp.asarray(x), jnp.asarray(mask), True)
    np.testing.assert_allclose(computed, expected, atol=1e-5, rtol=1e-5)


def test_attention_weights_sum_to_one_and_are_zero_where_masked():
    rng = np.random.default_rng(0)
    query, key = (jnp.asarray(10 * rng.standard_normal((2, 3, n, 8), np.float32)) for n in (5, 7))
    mask = jnp.asarray(rng.random((2, 1, 5, 7)) < 0.4).at[..., 0].set(True)
    weights = attention_weights(query, key, mask)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
    assert (np.asarray(weights)[~np.broadcast_to(mask, weights.shape)] == 0).all()


def test_cross_attention_rows_sum_to_one(tiny, random_variables):
    model = Transformer(tiny(attention="fused"))
    look = jax.jit(lambda variables, *ids: cross_attention(model, variables, *ids))
    looked = look(random_variables(model), jnp.asarray(SOURCE), jnp.asarray(TARGET))
    assert looked.shape == (3, 5, 7)
    np.testing.assert_allclose(looked.sum(axis=-1), 1, atol=1e-6)
    assert (np.asarray(looked).swapaxes(1, 2)[SOURCE == 0] == 0).all()


@pytest.fixture
def fused_calls(monkeypatch):
    """A list that gets longer with every call of the fused kernel."""
    calls, kernel = [], jax.nn.dot_product_attention

    def counted(*args, **kwargs):
        calls.append(1)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(jax.nn, "dot_product_attention", counted)
    return calls


def test_fused_attention_agrees_with_einsums_and_padding_gives_no_nan(tiny, random_variables, fused_calls):
    plain, fused = (Transformer(tiny(attention=kind)) for kind in ("einsum", "fused"))
    variables = random_variables(plain)
    source = np.vstack([SOURCE, 0 * SOURCE[:1]])  # and a row of nothing but padding
    target = np.vstack([TARGET, 0 * TARGET[:1]])

    def values_and_gradients(model):
        def loss(variables):
            logits = model.apply(variables, jnp.asarray(source), jnp.asarray(target))
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


@pytest.mark.parametrize(
    ("changes", "mutable", "fused"),
    [
        ({"attention": "fused"}, False, True),
        ({"attention": "fused", "attention_dropout": 0.1}, False, False),
        ({"attention": "fused", "d_k": 8, "d_v": 4}, False, False),
        ({"attention": "fused"}, ["intermediates"], False),
        ({"attention": "einsum"}, False, False),
        ({"attention": "auto"}, False, False),  # float32 is not for cuDNN
    ],
)
def test_when_attention_is_fused(tiny, fused_calls, changes, mutable, fused):
    model = Transformer(tiny(**changes))
    variables = jax.eval_shape(model.init, jax.random.key(0), SOURCE[:, :2], SOURCE[:, :2])
    variables = {"params": variables["params"]}
    fused_calls.clear()
    jax.eval_shape(
        lambda variables: model.apply(variables, jnp.asarray(SOURCE), jnp.asarray(TARGET), mutable=mutable),
        variables,
    )
    assert bool(fused_calls) == fused


# --- parameters ---

MILLIONS = {
    "base": 65,
    "big": 213,
    **dict.fromkeys(["A-heads-1", "A-heads-4", "A-heads-16", "A-heads-32"], 65),
    "B-keys-16": 58,
    "B-keys-32": 60,
    "C-layers-2": 36,
    "C-layers-4": 50,
    "C-layers-8": 80,
    "C-width-256": 28,
    "C-width-1024": 168,
    "C-inner-1024": 53,
    "C-inner-4096": 90,
    **dict.fromkeys(["D-dropout-0.0", "D-dropout-0.2", "D-smoothing-0.0", "D-smoothing-0.2"], 65),
    "E-learned-positions": 65,
}
"""Table 3. Rows (A), (D) and (E) leave the column blank: as many as the base model."""


def test_parameter_counts_of_table_3():
    assert set(MILLIONS) == {name for name in PRESETS if PRESETS[name].data.dataset.startswith("wmt14")}
    ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    counted = {}
    for name, millions in MILLIONS.items():
        # dropout and the like have no parameters: such rows are counted once
        config = replace(PRESETS[name].model, vocab_size=37_000, dropout=0.0)
        if config not in counted:
            shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), ids, ids)
            counted[config] = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
        assert counted[config] / 1e6 == pytest.approx(millions, rel=0.07), name


@pytest.mark.parametrize(("sharing", "tables"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_embeddings_are_one_table(tiny, random_variables, sharing, tables):
    model = Transformer(tiny(share_embeddings=sharing))
    variables = random_variables(model)

    @jax.jit
    def hidden_and_logits(variables, source, target):
        def both(model, source, target):
            hidden = model.hidden(source, target)
            return hidden, model.output(hidden)

        return model.apply(variables, source, target, method=both)

    embeddings = [name for name in variables["params"] if name.endswith("embedding")]
    assert len(embeddings) == tables
    hidden, logits = hidden_and_logits(variables, jnp.asarray(SOURCE), jnp.asarray(TARGET))
    last = {"all": "source", "target": "target", "none": "output"}[sharing]
    expected = hidden @ variables["params"][f"{last}_embedding"]["table"].T
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=1e-5)


def test_embeddings_start_small_and_are_scaled_up(tiny):
    embedding = Embedding(tiny(d_model=64), 2000)
    ids = jnp.arange(2000)[None]
    variables = embedding.init(jax.random.key(0), ids)
    table = np.asarray(variables["params"]["table"])
    # 128,000 draws: five standard errors of their deviation are 1 %
    assert table.std() == pytest.approx(64**-0.5, rel=0.01)
    assert abs(table.mean()) < 5 * 64**-0.5 / math.sqrt(table.size)
    np.testing.assert_allclose(embedding.apply(variables, ids)[0], table * 8, rtol=1e-6)


@pytest.fixture(scope="module")
def fresh(tiny):
    """A model as training starts with it, and its variables."""
    model = Transformer(tiny(num_layers=1, d_model=48, d_ff=80, num_heads=4, d_k=6, d_v=20))
    ids = jnp.ones((1, 2), jnp.int32)
    return model, jax.jit(model.init)(jax.random.key(0), ids, ids)


def test_projections_start_within_glorots_bounds(fresh):
    layer = fresh[1]["params"]["decoder_0"]
    fans = {"query": (48, 4 * 6), "key": (48, 4 * 6), "value": (48, 4 * 20), "out": (4 * 20, 48)}
    matrices = [
        (layer[attention][name], *fan)
        for attention in ("self_attention", "cross_attention")
        for name, fan in fans.items()
    ]
    matrices += [(layer["feed_forward"][name]["kernel"], 48, 80) for name in ("inner", "outer")]
    for matrix, into, out_of in matrices:
        bound = math.sqrt(6 / (into + out_of))
        # the largest of a thousand uniform draws is within 5 % of the bound, but for 1 case in 10^22
        assert 0.95 * bound < np.abs(matrix).max() <= bound


def test_golden_logits(fresh):
    """Seed 0 gives these numbers; where they change, runs from before cannot be repeated."""
    golden = [
        [-0.04278767, -0.04976392, 0.5590899, -0.6210121],
        [0.49353194, 3.3813438, 1.4998692, 0.42583013],
        [2.974465, 0.41378158, 0.8871124, -0.28855044],
    ]
    np.testing.assert_allclose(logits_of(*fresh)[[0, 1, 2], [4, 0, 2], :4], golden, atol=1e-5)


def test_sinusoids_against_the_formula():
    expected = np.zeros((40, 32))
    for position in range(40):
        for i in range(16):
            angle = position / 10_000 ** (2 * i / 32)
            expected[position, 2 * i], expected[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    # an angle of up to 40 has steps of 4e-6 in float32
    np.testing.assert_allclose(sinusoids(jnp.arange(40), 32), expected, atol=1e-5)


@pytest.mark.parametrize("shift", [1, 7])
def test_a_shift_rotates_the_sinusoids(shift):
    pairs = sinusoids(jnp.arange(30), 16).reshape(30, 8, 2)
    sine, cosine = pairs[shift].T
    here, there = pairs[:-shift], pairs[shift:]
    rotated = jnp.stack(
        [here[..., 0] * cosine + here[..., 1] * sine, here[..., 1] * cosine - here[..., 0] * sine], axis=-1
    )
    np.testing.assert_allclose(rotated, there, atol=1e-5)


# --- dropout ---


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_keep_mask_keeps_the_right_share(rate):
    kept = np.asarray(keep_mask(jax.random.key(0), rate, (333, 601)))  # an odd number of elements
    error = math.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * error
    # neighbours share their random bits' word, and must not share their fate
    both = (kept[:, 1:] & kept[:, :-1]).mean()
    assert abs(both - (1 - rate) ** 2) < 5 * 2 * error


def test_keep_masks_of_other_keys_have_nothing_in_common():
    keys = [jax.random.fold_in(jax.random.key(0), step) for step in range(40)]
    kept = np.stack([np.asarray(keep_mask(key, 0.5, (64, 1024))).reshape(-1) for key in keys])
    assert abs(np.corrcoef(kept) - np.eye(len(keys))).max() < 5.5 / math.sqrt(kept.shape[1])
    # nor does an element know its own fate under other keys, nor the elements a power of two away
    assert abs(kept.mean(axis=0) - 0.5).max() < 5.5 * 0.5 / math.sqrt(len(keys))
    for distance in 2 ** np.arange(16):
        same = (kept[:, distance:] == kept[:, :-distance]).mean()
        assert abs(same - 0.5) < 5.5 * 0.5 / math.sqrt(kept.size - len(keys) * distance)


def test_dropout_scales_what_it_keeps():
    x = jnp.linspace(1, 2, 50_000)
    dropped = Dropout(0.2).apply({}, x, False, rngs={"dropout": jax.random.key(0)})
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], x[kept] / 0.8, rtol=1e-6)
    # x is 2 at most: a standard error of the mean is less than 2 sqrt(0.2 / 0.8 / n)
    assert abs(dropped.mean() - x.mean()) < 5 * 2 * math.sqrt(0.25 / x.size)
    assert (Dropout(0.2).apply({}, x, True) == x).all()


KINDS = ("dropout", "attention_dropout", "activation_dropout")


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_depends_on_the_key_alone(tiny, random_variables, kind):
    model = Transformer(tiny(num_layers=1, **{kind: 0.3}))
    variables = random_variables(model)

    @jax.jit
    def drop(key):
        rngs = {"dropout": key}
        return model.apply(
            variables, jnp.asarray(SOURCE), jnp.asarray(TARGET), deterministic=False, rngs=rngs
        )

    first, again, other = (np.asarray(drop(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-2)


def test_no_dropout_when_deterministic(tiny, random_variables):
    plain, model = Transformer(tiny()), Transformer(tiny(**dict.fromkeys(KINDS, 0.3)))
    variables = random_variables(plain)
    programs = {str(jax.make_jaxpr(m.apply)(variables, SOURCE, TARGET)) for m in (plain, model)}
    assert len(programs) == 1


# --- other ways of computing the same ---


def test_remat_changes_nothing(tiny, random_variables):
    def loss_and_gradients(model, variables):
        def loss(variables):
            rngs = {"dropout": jax.random.key(3)}
            logits = model.apply(
                variables, jnp.asarray(SOURCE), jnp.asarray(TARGET), deterministic=False, rngs=rngs
            )
            return jnp.mean(jnp.sin(logits))

        return jax.jit(jax.value_and_grad(loss))(variables)

    plain, remat = (
        Transformer(tiny(num_layers=1, activation_dropout=0.2, remat=remat)) for remat in (False, True)
    )
    variables = random_variables(plain)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        loss_and_gradients(remat, variables),
        loss_and_gradients(plain, variables),
    )


def test_bfloat16_computes_the_same_coarsely(tiny, random_variables):
    plain, half = (Transformer(tiny(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    variables = random_variables(half)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    exact, coarse = logits_of(plain, variables), logits_of(half, variables)
    assert coarse.dtype == jnp.float32
    # eight bits: 2^-9 at each rounding, some thirty of them in a row, adding up at random
    error = np.abs(coarse - exact) / exact.std()
    assert 0 < error.max() < 10 * math.sqrt(30) * 2**-9
    memory = jax.eval_shape(lambda: half.apply(variables, jnp.asarray(SOURCE), method="encode"))
    assert memory.states.dtype == jnp.bfloat16
