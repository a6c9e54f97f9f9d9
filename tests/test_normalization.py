"""Normalisations over the positions of a batch, against the papers' equations in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from of_a_config import check_config, objective_of
from tiers import mostly_slow
from toy_batches import WORDS, a_batch

from transformer import Config, Transformer, TransformerConfig, UserError
from transformer.config.methods import RewardConfig, ScheduledConfig
from transformer.model import normalization
from transformer.model.encoder_decoder import decoder_input
from transformer.model.statistics import GRADIENTS, PROBES, STATISTICS, SUMS, Sums
from transformer.model.variants.normalizations import BatchNorm, PowerNorm
from transformer.tasks.texts.translation import Translation
from transformer.training.objective import translation_objective
from transformer.training.step import init_state, make_train_step

CONFIG = TransformerConfig(
    vocab_size=WORDS, num_layers=1, d_model=8, d_ff=12, num_heads=2, dropout=0.0, norm_epsilon=1e-6
)
random = np.random.default_rng(0)
X, G = random.normal(2.0, 3.0, (2, 4, 8)), random.normal(size=(2, 4, 8))
THERE = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
SCALE, BIAS = random.normal(1.0, 0.3, 8), random.normal(size=8)


def given(module):
    """Its variables, with this scale and offset."""
    variables = module.init(jax.random.key(0), jnp.asarray(X, jnp.float32))
    norm = {"scale": jnp.asarray(SCALE, jnp.float32), "bias": jnp.asarray(BIAS, jnp.float32)}
    return {**variables, "params": {"norm": norm}}


def applied(module, variables, x, probes):
    every = {**variables, **({PROBES: probes} if probes else {})}
    return module.apply(every, x, jnp.asarray(THERE), False, mutable=[SUMS])


def gradients(module, variables, x, probes):
    """Of the sum of G times the output at words."""

    def total(x, probes):
        y, sown = applied(module, variables, x, probes)
        return (y * G * THERE[..., None]).sum(), (y, sown[SUMS])

    return jax.grad(total, argnums=(0, 1), has_aux=True)(x, probes)


@pytest.mark.parametrize("kind", ["cpu", "tpu"])
def test_layer_normalisation_is_that_of_numpy(kind, monkeypatch):
    """Ba et al. 2016, Eq. 4, and differences of it."""
    monkeypatch.setattr(normalization, "platform", lambda: kind)
    module = normalization.LayerNorm(CONFIG)

    def layer(x, scale, bias):
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + CONFIG.norm_epsilon)
        return centred / deviation * scale + bias

    def ours(x, scale, bias):
        return module.apply({"params": {"norm": {"scale": scale, "bias": bias}}}, x)

    exact, step = (X, SCALE, BIAS), 1e-6
    values = [jnp.asarray(each, jnp.float32) for each in exact]
    np.testing.assert_allclose(ours(*values), layer(*exact), atol=1e-5)
    found = jax.grad(lambda *each: (ours(*each) * G).sum(), argnums=(0, 1, 2))(*values)
    for place, gradient in enumerate(found):
        for index in np.ndindex(gradient.shape):
            sides = []
            for sign in (1, -1):
                moved = [each.copy() for each in exact]
                moved[place][index] += sign * step
                sides.append((layer(*moved) * G).sum())
            assert gradient[index] == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-4)


def test_batch_normalisation_is_that_of_numpy():
    """Ioffe and Szegedy 2015, Algorithm 1, and the gradients that follow it, over the words."""
    module = BatchNorm(CONFIG)
    variables = given(module)
    (of_x, _), (y, sums) = gradients(module, variables, jnp.asarray(X, jnp.float32), {})
    words, g = X[THERE], (G * SCALE)[THERE]
    mean, variance = words.mean(axis=0), words.var(axis=0)
    normalised = (words - mean) / np.sqrt(variance + 1e-6)
    np.testing.assert_allclose(y[THERE], normalised * SCALE + BIAS, atol=1e-5)
    of_variance = (g * (words - mean)).sum(0) * -0.5 * (variance + 1e-6) ** -1.5
    of_mean = -g.sum(0) / np.sqrt(variance + 1e-6)
    expected = g / np.sqrt(variance + 1e-6) + of_variance * 2 * (words - mean) / 5 + of_mean / 5
    np.testing.assert_allclose(of_x[THERE], expected, atol=1e-5)
    assert not np.asarray(of_x)[~THERE].any()
    np.testing.assert_allclose(sums["mean"].update(jnp.zeros(8)), 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(sums["variance"].update(jnp.ones(8)), 0.9 + 0.1 * variance, rtol=1e-5)

    kept = {**variables, STATISTICS: {"mean": jnp.full(8, 2.0), "variance": jnp.full(8, 9.0)}}
    found = module.apply(kept, jnp.asarray(X, jnp.float32))
    np.testing.assert_allclose(found, (X - 2) / 3 * SCALE + BIAS, atol=1e-5)


def test_power_normalisation_is_that_of_the_paper():
    """Two updates of Shen et al. 2020, Algorithm 2, with momentum 0.9."""
    module = PowerNorm(CONFIG)
    variables = given(module)
    quadratic, nu = np.ones(8), np.zeros(8)
    for update in range(2):
        x = X + update
        variables = {
            **variables,
            STATISTICS: {"quadratic": jnp.asarray(quadratic, jnp.float32)},
            GRADIENTS: {"gradient": jnp.asarray(nu, jnp.float32)},
        }
        probes = {"gradient": Sums(jnp.zeros(8), jnp.zeros(()), 0.9)}
        (of_x, probed), (y, sums) = gradients(module, variables, jnp.asarray(x, jnp.float32), probes)
        psi = np.sqrt(quadratic + 1e-6)
        normalised, g = (x / psi)[THERE], (G * SCALE)[THERE]
        np.testing.assert_allclose(y[THERE], normalised * SCALE + BIAS, atol=1e-4)
        np.testing.assert_allclose(of_x[THERE], (g - nu * normalised) / psi, atol=1e-4)
        assert not np.asarray(of_x)[~THERE].any()
        gamma, product = (normalised**2).mean(axis=0), (g * normalised).mean(axis=0)
        nu_after = nu * (1 - 0.1 * gamma) + 0.1 * product
        np.testing.assert_allclose(probed["gradient"].update(jnp.asarray(nu)), nu_after, atol=1e-4)
        quadratic = 0.9 * quadratic + 0.1 * (x[THERE] ** 2).mean(axis=0)
        after = sums["quadratic"].update(variables[STATISTICS]["quadratic"])
        np.testing.assert_allclose(after, quadratic, rtol=1e-5)
        nu = nu_after


@pytest.mark.slow
def test_slices_of_a_batch_give_the_same_power_normalisation():
    model, optimizer = Transformer(dataclasses.replace(CONFIG, normalization="power")), optax.sgd(0.1)
    initial = init_state(model, optimizer, 0, Translation.example(Config()))
    found = []
    for accumulate in (1, 4):
        step = make_train_step(model, translation_objective(0.1), optimizer, seed=0, accumulate=accumulate)
        step, state = jax.jit(step), initial
        for seed in range(3):
            state, _ = step(state, jax.tree.map(jnp.asarray, a_batch(rows=8, seed=seed)))
        found.append((state.params, state.statistics))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), *found)
    changed = jax.tree.map(lambda x, y: bool((x != y).any()), found[0][1], initial.statistics)
    assert all(jax.tree.leaves(changed))


PLAIN = translation_objective(0.1)
POWER = Config(model=dataclasses.replace(CONFIG, normalization="power"))


def twice(model, variables, batch, context):
    """Returns the sums of one of two passes."""
    first, second = (PLAIN(model, variables, batch, context) for _ in range(2))
    return first.replace(total=first.total + second.total)


def with_another_pass(model, variables, batch, context):
    loss = PLAIN(model, variables, batch, context)
    given = decoder_input(batch["target"], model.config.special)
    return loss.replace(total=loss.total + (model.apply(variables, batch["source"], given) ** 2).sum())


def by_method(**options):
    return objective_of(dataclasses.replace(POWER, **options), lambda path: None, str)


SEVERAL_PASSES = {
    "two that count": twice,
    "another that does not": with_another_pass,
    "risk": by_method(reward=RewardConfig(share=1e-9, candidates="beam", extra_length=2)),
    "reinforce": by_method(reward=RewardConfig(share=1e-9, loss="reinforce", extra_length=2)),
    "scheduled": by_method(scheduled=ScheduledConfig(share=1e-9, tokens="mixture", gradient="all")),
}


@pytest.fixture(scope="module")
def after():
    """The state after an update by an objective, of running means that are not zero."""
    model, optimizer = Transformer(POWER.model), optax.sgd(0.1)
    initial = init_state(model, optimizer, 0, Translation.example(POWER))
    means = jax.tree.map(lambda x: x + 0.3, initial.statistics)

    def run(objective):
        step = jax.jit(make_train_step(model, objective, optimizer, seed=0))
        state, _ = step(initial.replace(statistics=means), jax.tree.map(jnp.asarray, a_batch()))
        return state

    return run


@pytest.fixture(scope="module")
def after_one_pass(after):
    return after(PLAIN)


@pytest.mark.thorough
@pytest.mark.by_default("scheduled")
@pytest.mark.parametrize("name", mostly_slow(list(SEVERAL_PASSES), ["two that count", "risk", "scheduled"]))
def test_gradients_of_several_passes_are_a_mean_over_those_that_count(name, after, after_one_pass):
    found, expected = after(SEVERAL_PASSES[name]), after_one_pass
    if name in ("two that count", "another that does not"):
        found, expected = found.statistics, expected.statistics
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), found, expected)


@pytest.mark.parametrize("kind", ["batch", "power"])
def test_an_objective_without_the_sums_of_its_pass_is_refused(kind):
    def forgetful(model, variables, batch, context):
        return PLAIN(model, variables, batch, context).replace(statistics={})

    model, optimizer = Transformer(dataclasses.replace(CONFIG, normalization=kind)), optax.sgd(0.1)
    state = jax.eval_shape(lambda: init_state(model, optimizer, 0, Translation.example(Config())))
    step = make_train_step(model, forgetful, optimizer, seed=0)
    with pytest.raises(UserError, match="returned no sums of the model's running statistic .*apply_training"):
        jax.eval_shape(step, state, a_batch())


def test_batch_normalisation_refuses_slices():
    config = Config(model=dataclasses.replace(CONFIG, normalization="batch"))
    check_config(config)
    slices = dataclasses.replace(config.training, accumulate=2)
    with pytest.raises(UserError, match="needs the statistics of the whole batch"):
        check_config(dataclasses.replace(config, training=slices))


@pytest.mark.parametrize(
    "model", [{"mechanism": "linear"}, {"cross_mechanism": "location"}, {"cross_mechanism": "monotonic"}]
)
def test_what_reads_one_sentence_refuses_packed_rows(model):
    config = Config(model=dataclasses.replace(CONFIG, **model))
    packed = dataclasses.replace(config.data, batching="packed")
    ((name, value),) = model.items()
    with pytest.raises(UserError, match=f"{name.replace('_', '-')} {value} reads one sentence per row"):
        check_config(dataclasses.replace(config, data=packed))
