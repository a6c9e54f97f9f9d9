"""Decoders with an SSRU instead of self-attention, against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from reference_search import random_variables
from toy_sentences import SOURCE

from transformer import Transformer, UserError
from transformer.config.transformer import EncoderConfig
from transformer.model.declarations import declarations
from transformer.model.masks import Mask
from transformer.model.variants.recurrence import SSRU
from transformer.systems.nonautoregressive.options import NonAutoregressiveConfig
from transformer.systems.parameters import in_int8

WIDTH = 16  # of the fixture `tiny`


def weights(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "input": {"kernel": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)},
        "forget": {
            "kernel": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32),
            "bias": rng.normal(size=WIDTH).astype(np.float32),
        },
    }


def inputs(rows, length, seed=1):
    return np.random.default_rng(seed).normal(size=(rows, length, WIDTH)).astype(np.float32)


def by_loop(params, x, first):
    """Kim et al. 2019: one position after the other; `first` begin with an empty state."""
    states = np.zeros(x.shape)
    for row in range(len(x)):
        cell = np.zeros(WIDTH)
        for time, vector in enumerate(x[row]):
            cell = np.zeros(WIDTH) if first[row, time] else cell
            forget = 1 / (1 + np.exp(-(vector @ params["forget"]["kernel"] + params["forget"]["bias"])))
            cell = forget * cell + (1 - forget) * (vector @ params["input"]["kernel"])
            states[row, time] = cell
    return states


@pytest.mark.parametrize("length", [1, 2, 7, 33])
def test_the_scan_is_a_loop(tiny, length):
    params, x = weights(), inputs(2, length)
    outputs = apply(SSRU(tiny()), {"params": params}, x, Mask(causal=True))
    first = np.zeros(x.shape[:2], bool)
    np.testing.assert_allclose(outputs, np.maximum(by_loop(params, x, first), 0), atol=2e-5)


def test_each_segment_begins_with_an_empty_state(tiny):
    params, x = weights(), inputs(2, 8)
    segments = np.array([[1, 1, 1, 2, 2, 3, 3, 3], [1, 2, 2, 2, 2, 2, 0, 0]])
    first = np.diff(segments, prepend=-1) != 0
    outputs = apply(SSRU(tiny()), {"params": params}, x, Mask(segments=(segments, segments)))
    np.testing.assert_allclose(outputs, np.maximum(by_loop(params, x, first), 0), atol=2e-5)
    alone = apply(SSRU(tiny()), {"params": params}, x[:, 3:5], Mask(causal=True))
    np.testing.assert_allclose(outputs[0, 3:5], alone[0], atol=2e-5)


@pytest.mark.slow
def test_an_output_depends_on_no_later_input_nor_on_other_segments(tiny):
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2]])
    x = jnp.asarray(inputs(1, 6))

    def output(x, time):
        params = jax.tree.map(jnp.asarray, weights())
        y = SSRU(tiny()).apply({"params": params}, x, Mask(segments=(segments, segments)))
        return jnp.abs(y[0, time]).sum()

    for time, seen in ((2, [0, 1, 2]), (4, [3, 4])):
        gradient = jax.grad(output)(x, time)[0]
        assert np.flatnonzero(np.abs(gradient).max(axis=1)).tolist() == seen


def test_shares_are_those_of_the_inputs_in_a_state(tiny):
    """With as many heads as features, states are the shares of projected inputs."""
    params, x = weights(), inputs(2, 6)
    model = SSRU(tiny(num_heads=WIDTH))
    _, sown = apply(model, {"params": params}, x, Mask(causal=True), mutable=["intermediates"])
    shares = np.asarray(sown["intermediates"]["weights"][0])
    projected = x @ params["input"]["kernel"]
    states = np.einsum("bmij,bjm->bim", shares, projected)
    np.testing.assert_allclose(states, by_loop(params, x, np.zeros(x.shape[:2], bool)), atol=2e-5)
    assert (shares >= 0).all()
    assert (shares.sum(-1) <= 1 + 1e-6).all()


def test_a_state_has_one_size(tiny):
    model = Transformer(tiny(decoder_recurrence="ssru"))
    variables = jax.tree.map(jnp.asarray, random_variables(model, 0))
    memory = apply(model, variables, jnp.asarray(SOURCE), method="encode")
    short, long = (apply(model, variables, memory, 2, length, method="init_cache") for length in (4, 4000))
    assert jax.tree.map(jnp.shape, short) == jax.tree.map(jnp.shape, long)


def test_its_matrices_may_be_int8(tiny):
    model, x, mask = SSRU(tiny()), inputs(2, 7), Mask(causal=True)
    variables = {"params": weights()}
    summed = {path: parameter.summed for path, parameter in declarations(model, (x, mask)).items()}
    quantised = in_int8(variables, summed)
    assert quantised["int8"].keys() == {"input", "forget"}
    outputs, rounded = (apply(model, each, x, mask) for each in (variables, quantised))
    assert 0 < np.abs(outputs - rounded).max() < 0.05 * np.abs(outputs).max()


def test_decoding_may_start_with_a_zero_vector(tiny):
    """Then the row of <bos> has no effect on the decoder."""
    model = Transformer(tiny(zero_start=True, share_embeddings="none"))
    variables = random_variables(model, 0)
    embedded = apply(model, variables, jnp.asarray([[1, 4]]), method="embed_target")
    table = variables["params"]["target_embedding"]["table"]
    np.testing.assert_array_equal(embedded[0, 0], 0)
    np.testing.assert_allclose(embedded[0, 1], table[4] * 4, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanism": "linear"}, "--model.encoder-stack.mechanism"),
        ({"positions": "rotary"}, "--model.encoder-stack.positions"),
        ({"window": 3}, "no weights for --model.window to restrict"),
    ],
)
def test_what_is_of_self_attention_is_refused(tiny, changes, message):
    with pytest.raises(UserError, match=message):
        tiny(decoder_recurrence="ssru", **changes)


def test_the_encoder_may_have_it_all_the_same(tiny):
    encoder = EncoderConfig(mechanism="linear")
    config = tiny(decoder_recurrence="ssru", encoder_stack=encoder)
    assert (config.of_encoder.mechanism, config.of_encoder.decoder_recurrence) == ("linear", "none")


def test_a_decoder_of_all_tokens_at_once_has_none():
    with pytest.raises(UserError, match="predicts all tokens at once"):
        NonAutoregressiveConfig(decoder_recurrence="ssru")
