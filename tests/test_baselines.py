"""Properties of recurrent, convolutional and fast autoregressive models that search and training rely on."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from of_a_config import check_config
from reference_search import SOURCES, hypotheses, next_log_p, random_variables, slow_search
from tiers import mostly_slow

from transformer.config.options import Config
from transformer.decoding.beam import beam_search
from transformer.decoding.sampling import greedy_search
from transformer.decoding.scores import wu_penalty
from transformer.model.encoder_decoder import shift_right
from transformer.runtime.errors import UserError
from transformer.systems.convolutional.options import ConvolutionalConfig
from transformer.systems.convolutional.system import Convolutional
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.fast_autoregressive.system import FastAutoregressive
from transformer.systems.presets import PRESETS
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.recurrent.system import Recurrent, hard_attention_objective
from transformer.systems.registry import REGISTRY, find_system
from transformer.training.objective import Context, translation_objective

SIZES = {"vocab_size": 11, "d_model": 8, "dropout": 0.0, "share_embeddings": "none"}
AT = {"encoder": "lstm", "weights": "additive"}
MODELS = {
    "gru, additive": Recurrent(RecurrentConfig(**SIZES, num_layers=2)),
    "gru, dot": Recurrent(RecurrentConfig(**SIZES, num_layers=1, attention="dot")),
    "gru, hard": Recurrent(RecurrentConfig(**SIZES, num_layers=1, attention="hard")),
    "lstm, fixed": Recurrent(RecurrentConfig(**SIZES, num_layers=2, attention="fixed", cell="lstm")),
    "lstm, additive": Recurrent(RecurrentConfig(**SIZES, num_layers=1, cell="lstm")),
    "rnn, dot": Recurrent(RecurrentConfig(**SIZES, num_layers=1, attention="dot", cell="rnn")),
    "AT": FastAutoregressive(FastAutoregressiveConfig(**SIZES, **AT, num_layers=2)),
    "FAT": FastAutoregressive(FastAutoregressiveConfig(**SIZES, num_heads=2, table_size=3)),
    "convolutional": Convolutional(ConvolutionalConfig(**SIZES, num_layers=2)),
    "dilated": Convolutional(ConvolutionalConfig(**SIZES, num_layers=3, dilation=(1, 2))),
}
QUICK = ["gru, additive", "lstm, fixed", "rnn, dot", "FAT", "dilated"]  # others are slow tests
every_model = pytest.mark.parametrize("name", mostly_slow(list(MODELS), QUICK))
SOURCE = jnp.asarray(SOURCES)
TARGET = jnp.asarray(
    [[1, 5, 6, 7, 4, 4, 9], [1, 4, 2, 0, 0, 0, 0], [1, 8, 8, 5, 2, 0, 0], [1, 3, 9, 2, 0, 0, 0]]
)


@functools.cache
def variables_of(name):
    return jax.tree.map(jnp.asarray, random_variables(MODELS[name], 1))


@functools.cache
def forced(name):
    return np.asarray(jax.jit(MODELS[name].apply)(variables_of(name), SOURCE, TARGET))


@pytest.mark.by_default("dilated")
@every_model
def test_step_by_step_is_teacher_forcing(name):
    model, variables = MODELS[name], variables_of(name)
    memory = apply(model, variables, SOURCE, method="encode")
    cache = apply(model, variables, memory, 1, 8, method="init_cache")
    step = jax.jit(functools.partial(model.apply, method="decode_step"))
    for time in range(TARGET.shape[1]):
        logits, cache = step(variables, cache, TARGET[:, time : time + 1])
        # float32 sums of some ten terms around 1, in another order
        np.testing.assert_allclose(logits[:, 0], forced(name)[:, time], atol=2e-5)


@pytest.mark.by_default("rnn, dot")
@every_model
def test_beam_search_finds_what_a_slow_search_finds(name, monkeypatch):
    model, variables = MODELS[name], variables_of(name)
    found = beam_search(model, variables, SOURCE, beam_size=3, length_penalty=0.6, extra_length=2)
    for row, source in enumerate(SOURCES):
        limit = int((source != 0).sum()) + 2
        ask = next_log_p(model, variables, source)
        expected = slow_search(ask, model.config.special, 3, wu_penalty(0.6), limit)
        for (score, tokens), (slow_score, slow_tokens) in zip(
            hypotheses(found, row, model.config.special), expected, strict=True
        ):
            assert tokens == slow_tokens
            assert score == pytest.approx(slow_score, abs=1e-4)


@pytest.mark.by_default("dilated")
@every_model
def test_padding_changes_nothing(name):
    model, variables = MODELS[name], variables_of(name)
    longer = jnp.pad(SOURCE, ((0, 0), (0, 3))), jnp.pad(TARGET, ((0, 0), (0, 2)))
    padded = jax.jit(model.apply)(variables, *longer)[:, : TARGET.shape[1]]
    np.testing.assert_allclose(padded, forced(name), atol=2e-5)
    alone = jax.jit(model.apply)(variables, SOURCE[1:2, :2], TARGET[1:2])
    np.testing.assert_allclose(alone[0], forced(name)[1], atol=2e-5)


@pytest.mark.by_default("dilated")
@every_model
def test_no_word_sees_what_follows_it(name):
    model, variables = MODELS[name], variables_of(name)

    @functools.partial(jax.jit, static_argnums=1)
    def influence(embedding, time):
        def one_logit(extra):
            def run(model):
                ordinary = type(model).embed_target
                object.__setattr__(model, "embed_target", lambda ids: ordinary(model, ids) + extra)
                return model.hidden(SOURCE, TARGET)

            return model.apply(variables, method=run)[:, time].sum()

        return jax.grad(one_logit)(embedding)

    nothing = jnp.zeros((*TARGET.shape, model.config.d_model))
    for time in (0, 3):
        gradient = np.abs(np.asarray(influence(nothing, time))).sum(axis=(0, 2))
        assert (gradient[time + 1 :] == 0).all()
        assert gradient[time] > 0


@pytest.mark.by_default("dilated")
@every_model
def test_attention_is_over_the_words_of_the_source(name):
    model, variables = MODELS[name], variables_of(name)
    (system,) = (system for system in map(find_system, REGISTRY) if system.model is type(model))
    attention = jax.jit(system.alignment, static_argnums=0)
    if "fixed" in name:
        with pytest.raises(UserError, match="no attention"):
            attention(model, variables, {"source": SOURCE}, TARGET[:, 1:])
        return
    weights = np.asarray(attention(model, variables, {"source": SOURCE}, TARGET[:, 1:]))
    assert weights.shape == (4, TARGET.shape[1] - 1, SOURCE.shape[1])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert (weights[np.broadcast_to((SOURCE == 0)[:, None], weights.shape)] == 0).all()


@pytest.mark.slow
def test_select_reorders_the_beams_states():
    for name in ("lstm, additive", "dilated"):
        model, variables = MODELS[name], variables_of(name)
        memory = apply(model, variables, SOURCE, method="encode")
        cache = apply(model, variables, memory, 2, 8, method="init_cache")
        step = jax.jit(functools.partial(model.apply, method="decode_step"))
        _, cache = step(variables, cache, jnp.asarray([[4, 5]] * 4))
        crossed = cache.select(jnp.asarray([[1, 0]] * 4))
        straight, _ = step(variables, cache, jnp.asarray([[6, 6]] * 4))
        swapped, _ = step(variables, crossed, jnp.asarray([[6, 6]] * 4))
        np.testing.assert_allclose(swapped, straight[:, ::-1], atol=1e-6)
        assert not np.allclose(straight[:, 0], straight[:, 1], atol=1e-3)


# --- hard attention ---


def batch():
    return {"source": SOURCE, "target": jnp.pad(TARGET[:, 1:], ((0, 0), (0, 1)))}


@pytest.mark.thorough
def test_without_draws_hard_attention_trains_like_any_other():
    model, variables = MODELS["gru, hard"], variables_of("gru, hard")
    hard = hard_attention_objective(0.1)(model, variables, batch(), Context())
    plain = translation_objective(0.1)(model, variables, batch(), Context())
    jax.tree.map(np.testing.assert_array_equal, hard, plain)


def expected_loss(model, variables, source, target):
    """For one sentence: the mean over all choices of a position for every word, weighted by probability. A
    choice is forced by a memory in which every position has the chosen value."""
    memory = apply(model, variables, source[None], method="encode")
    _, embedded = apply(model, variables, memory, shift_right(target[None], 1), method="steps")
    memory, starts = memory.source, memory.starts

    def from_here_on(states, time):
        if time == len(target):
            return 0.0
        total = 0.0
        for position in range(len(source)):
            value = memory.values[:, position : position + 1]
            forced = memory.replace(values=jnp.broadcast_to(value, memory.values.shape))
            word = embedded[:, time : time + 1]
            after, step = model.apply(
                variables, states, word, forced, method=lambda m, *x: m.decoder(*x, True)
            )
            read = apply(model, variables, step, word, method="read")
            logits = apply(model, variables, read, method="output")
            loss = -jax.nn.log_softmax(logits)[0, 0, target[time]]
            total += step.weights[0, 0, position] * (loss + from_here_on(after, time + 1))
        return total

    return from_here_on(starts, 0)


@pytest.mark.slow
@pytest.mark.parametrize("words", mostly_slow([1, 2, 3], [2]))
def test_the_gradient_of_the_draws_is_that_of_the_expected_loss(words, monkeypatch):
    monkeypatch.setattr("transformer.systems.recurrent.system.ENTROPY_WEIGHT", 0.0)
    model, variables = MODELS["gru, hard"], variables_of("gru, hard")
    source, target = jnp.asarray([5, 2]), jnp.asarray([4, 7, 2][:words])

    def expected(params):
        return expected_loss(model, {**variables, "params": params}, source, target)

    batch = {"source": jnp.tile(source, (512, 1)), "target": jnp.tile(target, (512, 1))}
    objective = hard_attention_objective(0.0)

    def drawn(params, key):
        everything = {**variables, "params": params}
        return objective(model, everything, batch, Context(key)).total / 512

    directions = np.random.default_rng(0).normal(size=(8, 9 * model.config.d_model))

    def seen(gradient):
        """Along some directions, since single small elements may be only rounding errors."""
        kernels = [gradient["decoder"][name]["kernel"] for name in ("query", "energy")]
        return directions @ np.concatenate([np.ravel(kernel).astype(np.float64) for kernel in kernels])

    gradient = jax.jit(jax.grad(drawn))
    keys = jax.random.split(jax.random.key(0), 64)
    samples = [seen(gradient(variables["params"], key)) for key in keys]
    exact = seen(jax.jit(jax.grad(expected))(variables["params"]))
    error = np.std(samples, axis=0) / np.sqrt(len(samples))
    assert np.abs(exact).max() > 10 * error.max()  # the gradient is larger than the error
    assert (np.abs(np.mean(samples, axis=0) - exact) < 5 * error).all()


@pytest.mark.slow
def test_the_draws_have_a_gradient_but_no_value():
    model, variables = MODELS["gru, hard"], variables_of("gru, hard")
    given = (model, variables, batch(), Context(jax.random.key(0)))
    loss = hard_attention_objective(0.0)(*given)
    metrics = {name: total for name, (total, _) in loss.metrics.items()}
    assert 0 < float(metrics["entropy"] / loss.weight) < np.log(6)
    assert float(loss.total) == pytest.approx(float(metrics["nll"] - 0.01 * metrics["entropy"]), rel=1e-5)


# --- bad input ---


def test_what_cannot_be_built_is_refused():
    for options, message in (
        ({"d_model": 7}, "must be even"),
        ({"dtype": "bfloat16"}, "float32"),
    ):
        with pytest.raises(UserError, match=message):
            RecurrentConfig(**options)
    for options, message in (
        ({"kernel_width": 4}, "odd"),
        ({"dilation": ()}, "dilation"),
        ({"d_model": 7}, "even"),
    ):
        with pytest.raises(UserError, match=message):
            ConvolutionalConfig(**options)


def test_a_system_goes_with_its_own_options_and_batches():
    with pytest.raises(UserError, match="start from one of its presets"):
        check_config(Config(system="recurrent"))
    preset = PRESETS["tiny-recurrent"]
    packed = dataclasses.replace(preset, data=dataclasses.replace(preset.data, batching="packed"))
    with pytest.raises(UserError, match="one sentence per row"):
        check_config(packed)
    for name in ("tiny-recurrent", "tiny-convolutional", "quickstart"):
        check_config(PRESETS[name])


@pytest.mark.slow
def test_greedy_search_is_a_beam_of_one():
    for name in ("gru, additive", "convolutional"):
        model, variables = MODELS[name], variables_of(name)
        greedy = greedy_search(model, variables, SOURCE, extra_length=3)
        beam = beam_search(model, variables, SOURCE, beam_size=1, length_penalty=0.0, extra_length=3)
        np.testing.assert_array_equal(greedy.tokens, beam.tokens)
