"""The network: its parameters, and the agreement of all ways to compute it.

Tolerances: a logit here is a sum of some hundred float32 products of size 1, so two orders of
summation differ by a few 1e-7; 1e-5 leaves room for two layers and no room for an error. Zeros due to
masks are exact.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError
from tiers import combinations
from toy_batches import BOS
from toy_sentences import EOS, SOURCE, TARGET, logits_of

from transformer.config.transformer import EncoderConfig
from transformer.model.layers import Embedding
from transformer.model.parameters import tracing_for
from transformer.model.positions import sinusoids
from transformer.model.transformer import Transformer
from transformer.systems.presets import PRESETS, variant
from transformer.systems.transformer.options import TABLE_3


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
    "rotary positions": {"positions": "rotary"},
    "alibi, restricted": {"positions": "alibi", "window": 2, "num_heads": 4},
    "relative": {"positions": "relative"},
    "relative, restricted": {"positions": "relative", "window": 2},
    "an encoder of its own": {
        "share_embeddings": "target",
        "encoder_stack": EncoderConfig(d_model=12, d_ff=20, num_heads=3, norm="pre", positions="rotary"),
    },
}


@pytest.mark.by_default("a shallow decoder, a bias on the logits-tpu")
@pytest.mark.parametrize(("name", "platform"), combinations(list(VARIANTS), ["cpu", "tpu"]))
def test_cached_decoding_equals_teacher_forcing(tiny, random_variables, name, platform):
    """Also as it is traced for a TPU, where the heads of the cache are joined."""
    model = Transformer(tiny(**VARIANTS[name]))
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
        cache = model.apply(variables, memory, beams, steps, method="init_cache")
        # other sentences were there before: these begin anew, and go around the ring
        cache, _ = jax.lax.scan(step, cache, (tokens[-first:], parents[-first:]))
        new = model.apply(variables, memory, beams, 1, method="init_cache")
        _, logits = jax.lax.scan(step, cache.put_rows(jnp.arange(batch), new), (tokens, parents))
        return logits

    # the tokens of each beam at each step; later ones are there too, and must be masked
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

    with tracing_for(platform):
        decoded = decode(variables, jnp.asarray(SOURCE), jnp.asarray(tokens), jnp.asarray(parents))
    for step in range(steps):
        np.testing.assert_allclose(decoded[step], forced[step, :, :, step], atol=1e-5, rtol=1e-5)


@pytest.mark.thorough
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

    window = {"num_layers": 1, "window": 1, "positions": "learned", "max_positions": 4}
    schemes = ({"positions": scheme} for scheme in ("rotary", "alibi", "relative"))
    for changes in ({}, window, *schemes):
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


def test_table_3_is_complete():
    assert set(MILLIONS) == {"base", "big", *TABLE_3}


@pytest.mark.by_default("base", "big", "C-layers-2")
@pytest.mark.parametrize("name", MILLIONS)
def test_parameter_counts_of_table_3(name):
    preset = variant(PRESETS["base"], name) if name in TABLE_3 else PRESETS[name]
    config = replace(preset.model, vocab_size=37_000)
    ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), ids, ids)
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    assert count / 1e6 == pytest.approx(MILLIONS[name], rel=0.07)


@pytest.mark.by_default("all-1")
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
        # the largest of a thousand uniform samples is within 5 % of the bound, except for 1 case in 10^22
        assert 0.95 * bound < np.abs(matrix).max() <= bound


def test_golden_logits(fresh):
    """Seed 0 gives these numbers. If they change, earlier runs cannot be reproduced."""
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


# --- other ways of computing the same ---


@pytest.mark.slow
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


@pytest.mark.slow
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
