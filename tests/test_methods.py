"""Training methods: guided attention, R-Drop, scheduled sampling."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from configs import CONFIGS
from of_a_config import check_config, objective_of
from reference_search import random_variables
from tiers import combinations, mostly_slow

from transformer import PRESETS, Config, Context, TransformerConfig, UserError, train
from transformer.config.methods import GuidanceConfig, RDropConfig, RewardConfig, ScheduledConfig
from transformer.model.transformer import cross_attention
from transformer.systems.convolutional.options import ConvolutionalConfig
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.nonautoregressive.options import NonAutoregressiveConfig
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.registry import REGISTRY, find_system
from transformer.tasks.texts.translation import Translation
from transformer.trainer.checks import check_types
from transformer.training.cross_entropy import SLICE
from transformer.training.methods import rdrop, scheduled
from transformer.training.methods.guidance import off_diagonal
from transformer.training.methods.scheduled import share_of_target
from transformer.training.objective import TranslationObjective

SIZES = {"vocab_size": 12, "num_layers": 2, "d_model": 8, "dropout": 0.0}
LAYER = {"d_ff": 12, "num_heads": 2}
BATCH = {
    "source": jnp.asarray([[5, 6, 7, 4, 2], [8, 2, 0, 0, 0]]),
    "target": jnp.asarray([[4, 5, 6, 9, 2, 0], [7, 6, 2, 0, 0, 0]]),
}
GIVEN = jnp.asarray([[1, 4, 5, 6, 9, 0], [1, 7, 6, 0, 0, 0]])
TRAINING = Context(jax.random.key(3), 10)
MODELS = {
    "transformer": TransformerConfig(**SIZES, **LAYER),
    "recurrent": RecurrentConfig(**SIZES),
    "convolutional": ConvolutionalConfig(**SIZES),
    "copying": CopyingConfig(**SIZES, **LAYER),
    "fast-autoregressive": FastAutoregressiveConfig(**SIZES, num_heads=2),
    "nonautoregressive": NonAutoregressiveConfig(**SIZES, **LAYER, decoder_input="masked"),
}


def config_of(system="transformer", model=None, **options):
    data = Config().data
    if system == "copying":
        data = dataclasses.replace(data, tokenizer="open-word")
    training = dataclasses.replace(Config().training, label_smoothing=0.0 if system == "copying" else 0.1)
    changed = dataclasses.replace(MODELS[system], **(model or {}))
    return Config(system=system, model=changed, data=data, training=training, **options)


def no_teacher(path):
    raise AssertionError(path)


def built(config):
    model = find_system(config.system).model(config.model)
    return model, jax.tree.map(jnp.asarray, random_variables(model, 1))


def loss_of(config, batch=BATCH, context=TRAINING):
    model, variables = built(config)
    objective = objective_of(config, no_teacher, str)
    return jax.jit(lambda v: objective(model, v, batch, context))(variables)


def test_all_systems_are_here():
    assert MODELS.keys() == {name for name in REGISTRY if issubclass(find_system(name).task, Translation)}


def test_the_penalties_of_a_published_example():
    """Five by five, g = 0.4: the first row."""
    ones = jnp.ones((1, 5), jnp.int32)
    penalties, _ = off_diagonal(ones, ones, 0.4)
    np.testing.assert_allclose(penalties[0, 0], [0, 0.1175, 0.3935, 0.6753, 0.8647], atol=5e-5)


@pytest.mark.slow
def test_guidance_by_loops():
    """Tachibana et al. 2018, section 4, of the second layer's first head, with padding."""
    guidance = GuidanceConfig(weight=3.0, width=0.3, layers=(2,), heads=(1,))
    model, variables = built(config_of())
    plain, loss = loss_of(config_of()), loss_of(config_of(guidance=guidance))
    _, sown = apply(model, variables, BATCH["source"], GIVEN, mutable=["intermediates"])
    weights = np.asarray(cross_attention(sown["intermediates"]))[1, :, 0]
    total, off = 0.0, 0.0
    for row, (n_words, t_words) in enumerate(((5, 5), (3, 2))):
        for n in range(n_words):
            for t in range(t_words):
                penalty = 1 - np.exp(-((n / n_words - t / t_words) ** 2) / (2 * 0.3**2))
                off += weights[row, n, t] * penalty
                total += weights[row, n, t] * penalty / t_words
    assert float(loss.total - plain.total) == pytest.approx(3 * total, rel=1e-4)
    value, words = loss.metrics["off diagonal"]
    assert (float(value), float(words)) == (pytest.approx(off, rel=1e-4), 8)


@pytest.mark.thorough
def test_guidance_of_packed_rows_is_that_of_their_sentences():
    packed = {
        "source": jnp.asarray([[5, 6, 7, 4, 2, 8, 2]]),
        "target": jnp.asarray([[4, 5, 6, 9, 2, 7, 6, 2]]),
        "source_segments": jnp.asarray([[1, 1, 1, 1, 1, 2, 2]]),
        "target_segments": jnp.asarray([[1, 1, 1, 1, 1, 2, 2, 2]]),
    }
    config = config_of(guidance=GuidanceConfig(weight=3.0))
    assert float(loss_of(config, packed).total) == pytest.approx(float(loss_of(config).total), rel=1e-5)


@pytest.mark.by_default("convolutional")
@pytest.mark.parametrize(
    "system", mostly_slow(list(MODELS), ["recurrent", "convolutional", "nonautoregressive"])
)
def test_every_system_can_be_guided(system):
    """Its attention moves towards the diagonal."""
    config = config_of(system, guidance=GuidanceConfig(weight=1.0))
    model, variables = built(config)
    guided, plain = objective_of(config, no_teacher, str), objective_of(config_of(system), no_teacher, str)

    def guidance(params):
        given = {**variables, "params": params}
        losses = [each(model, given, BATCH, Context()).total for each in (guided, plain)]
        return losses[0] - losses[1]

    params, step = variables["params"], jax.jit(jax.value_and_grad(guidance))
    before, gradient = step(params)
    for _ in range(40):
        params = jax.tree.map(lambda x, g: x - 0.01 * jnp.sign(g), params, gradient)
        after, gradient = step(params)
    assert after < 0.95 * before


def test_language_models_have_no_source_to_be_guided_to_and_an_objective_of_their_own():
    config = PRESETS["language-model"]
    guided = dataclasses.replace(config, guidance=GuidanceConfig(weight=1.0))
    with pytest.raises(UserError, match="--guidance.weight: language-model has no attention to a source"):
        objective_of(guided, no_teacher, str)
    for method in ({"rdrop": RDropConfig(weight=1.0)}, {"scheduled": ScheduledConfig(share=0.5)}):
        with pytest.raises(UserError, match="language-model has its own objective"):
            objective_of(dataclasses.replace(config, **method), no_teacher, str)


@pytest.mark.thorough
def test_what_is_not_there_cannot_be_guided():
    with pytest.raises(UserError, match="--guidance.layers 3: there are 2, numbered from 1"):
        loss_of(config_of(guidance=GuidanceConfig(weight=1.0, layers=(3,))))
    with pytest.raises(UserError, match="a fixed context has no attention"):
        loss_of(config_of("recurrent", {"attention": "fixed"}, guidance=GuidanceConfig(weight=1.0)))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


LIKELIHOOD = ("transformer", "recurrent", "convolutional", "fast-autoregressive")


@pytest.mark.slow
@pytest.mark.parametrize("system", LIKELIHOOD)
def test_rdrop_is_the_divergence_of_two_passes(system):
    """Liang et al. 2021, Eq. 1-4, from the two passes' distributions."""
    config = config_of(system, {"dropout": 0.4}, rdrop=RDropConfig(weight=2.0))
    loss, (model, variables) = loss_of(config), built(config)
    twice = {name: jnp.concatenate([x, x]) for name, x in BATCH.items()}
    (hidden, table), _ = TranslationObjective(0.1).factors(model, variables, twice, TRAINING)
    p = softmax(np.asarray(hidden @ table.T, np.float64))
    expected = apart = 0.0
    for row, time in zip(*np.nonzero(np.asarray(BATCH["target"])), strict=True):
        a, b, token = p[row, time], p[2 + row, time], int(BATCH["target"][row, time])
        wanted = np.full(12, 0.1 / 11)
        wanted[token] = 0.9
        apart += ((a * np.log(a / b)).sum() + (b * np.log(b / a)).sum()) / 2
        expected += -(wanted * (np.log(a) + np.log(b)) / 2).sum()
    assert apart > 1e-3
    assert float(loss.total) == pytest.approx(expected + 2.0 / 2 * apart, rel=1e-4)
    assert float(loss.metrics["divergence"][0]) == pytest.approx(apart, rel=1e-3)
    in_evaluation = loss_of(config, context=Context())
    assert float(in_evaluation.total) == float(loss_of(config_of(system), context=Context()).total)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("platform", SLICE)
def test_the_gradient_of_rdrop(platform, smoothing):
    """By JAX, of the equations."""
    keys = jax.random.split(jax.random.key(4), 2)
    logits = tuple(jax.random.normal(key, (2, 3, 7)) for key in keys)
    targets, words = jnp.asarray([[1, 6, 2], [3, 0, 0]]), jnp.asarray([[1.0, 1, 1], [1, 0, 0]])

    def loss(logits):
        p, q = map(jax.nn.softmax, logits)
        correct = jax.nn.one_hot(targets, 7)
        wanted = correct * (1 - smoothing) + (1 - correct) * smoothing / 6
        entropies = -(wanted * (jnp.log(p) + jnp.log(q)) / 2).sum(axis=-1)
        apart = (p * jnp.log(p / q) + q * jnp.log(q / p)).sum(axis=-1) / 2
        return ((entropies + 3.0 / 2 * apart) * words).sum()

    sums, gradients = rdrop.loss_and_grad(smoothing, 3.0, platform, logits, targets, words)
    expected, wanted = jax.value_and_grad(loss)(logits)
    assert float(sums["loss"]) == pytest.approx(float(expected), rel=1e-5)
    for ours, theirs in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.by_default("convolutional")
@pytest.mark.parametrize("system", mostly_slow(LIKELIHOOD, ["recurrent", "convolutional"]))
def test_without_replaced_tokens_scheduled_sampling_is_the_ordinary_loss(system):
    # convolutions share a dropout between encoder and decoder, whose masks depend on the order of their calls
    model = {"dropout": 0.0 if system == "convolutional" else 0.3}
    plain = loss_of(config_of(system, model))
    config = config_of(system, model, scheduled=ScheduledConfig(share=1.0, updates=10))
    loss, later = loss_of(config, context=Context(TRAINING.key, 0)), loss_of(config)
    # another computation, which processors may round otherwise in the last place
    np.testing.assert_array_max_ulp(loss.total, plain.total, maxulp=1)
    assert float(loss.metrics["replaced"][0]) == 0
    assert float(later.total) != float(plain.total)
    assert float(later.metrics["replaced"][0]) == 6  # all but the first token of each sentence


@pytest.mark.slow
@pytest.mark.parametrize("tokens", mostly_slow(["argmax", "sample"], ["sample"]))
def test_step_by_step_a_decoder_reads_what_it_predicts(tokens, monkeypatch):
    """All tokens but the first are its own: the loss is that of teacher forcing with these tokens, which a
    loop over ever longer prefixes finds."""
    noisy = jnp.sin(9.0 * jnp.arange(12))
    monkeypatch.setattr(scheduled, "drawn", lambda uniform, logits: (logits + noisy).argmax(axis=-1))
    options = ScheduledConfig(share=1.0, updates=1, predictions="steps", tokens=tokens)
    config = config_of("recurrent", {"num_layers": 1}, scheduled=options)
    model, variables = built(config)
    given = np.array(GIVEN)
    noise = np.asarray(noisy) if tokens == "sample" else 0
    for time in range(1, given.shape[1]):
        possible = np.array(apply(model, variables, BATCH["source"], jnp.asarray(given)))[:, time - 1] + noise
        possible[:, [0, 1]] = -np.inf
        given[:, time] = np.where(GIVEN[:, time] == 0, 0, possible.argmax(-1))
    log_p = jax.nn.log_softmax(apply(model, variables, BATCH["source"], jnp.asarray(given)))
    target = np.asarray(BATCH["target"])
    nll = -np.take_along_axis(np.asarray(log_p), target[..., None], -1)[..., 0][target > 0].sum()
    loss = loss_of(config)
    assert float(loss.metrics["nll"][0]) == pytest.approx(nll, rel=1e-5)
    assert float(loss.metrics["replaced"][0]) == 6
    without = loss_of(config, context=Context(TRAINING.key, 0))
    assert float(without.total) == pytest.approx(
        float(loss_of(config_of("recurrent", {"num_layers": 1})).total), rel=1e-6
    )
    for system in LIKELIHOOD:
        if system != "recurrent":
            with pytest.raises(UserError, match=f"{system} cannot read its predictions step by step"):
                objective_of(config_of(system, scheduled=options), no_teacher, str)
    with pytest.raises(UserError, match="--scheduled.passes 2: it is for --scheduled.predictions passes"):
        ScheduledConfig(share=1.0, predictions="steps", passes=2)


@pytest.mark.slow
def test_what_comes_before_the_first_replaced_token_is_unchanged(monkeypatch):
    """Token 3 is replaced by the prediction after token 2."""
    model, variables = built(config_of())
    half = config_of(scheduled=ScheduledConfig(share=0.5, updates=1))
    logits = []

    class Recorded(TranslationObjective):
        def of_factors(self, model, batch, factors, sown):
            logits.append(np.asarray(factors[0] @ factors[1].T))
            return super().of_factors(model, batch, factors, sown)

    Recorded(0.1)(model, variables, BATCH, TRAINING)
    third = jnp.zeros((2, 6)).at[:, 3].set(1.0)
    monkeypatch.setattr(jax.random, "uniform", lambda *given: third)
    scheduled.scheduled_objective(half, Recorded(0.1))(model, variables, BATCH, TRAINING)
    monkeypatch.undo()
    plain, ours = logits
    np.testing.assert_array_equal(ours[:, :3], plain[:, :3])
    assert np.abs(ours[0, 3:] - plain[0, 3:]).max() > 1e-3
    possible = plain[:, 2].copy()
    possible[:, [0, 1]] = -np.inf
    by_hand = GIVEN.at[:, 3].set(possible.argmax(-1))
    np.testing.assert_allclose(ours[0], apply(model, variables, BATCH["source"], by_hand)[0], atol=1e-4)


@pytest.mark.thorough
@pytest.mark.by_default("argmax-1")
@pytest.mark.parametrize(("tokens", "passes"), combinations(["argmax", "sample", "mixture"], [1, 2]))
def test_scheduled_sampling_has_gradients(tokens, passes):
    options = {"share": 1.0, "updates": 1, "tokens": tokens, "passes": passes, "top_k": 2}
    gradients = []
    for gradient in ("last", "all") if tokens == "mixture" else ("last",):
        config = config_of(scheduled=ScheduledConfig(**options, gradient=gradient))
        objective, (model, variables) = objective_of(config, no_teacher, str), built(config)
        each = jax.jit(jax.grad(lambda v, f=objective, m=model: f(m, v, BATCH, TRAINING).total))(variables)
        assert all(np.isfinite(x).all() and np.abs(x).max() > 0 for x in jax.tree.leaves(each))
        gradients.append(each["params"]["encoder_0"]["self_attention"]["query"])
    if len(gradients) == 2:
        assert np.abs(gradients[0] - gradients[1]).max() > 1e-6


def test_the_share_of_the_target_falls():
    linear = ScheduledConfig(share=0.6, updates=100)
    found = [float(share_of_target(linear, step)) for step in (0, 20, 40, 500)]
    assert found == pytest.approx([1, 0.8, 0.6, 0.4])
    exponential = dataclasses.replace(linear, share=1.0, decay="exponential")
    assert float(share_of_target(exponential, 100)) == pytest.approx(np.exp(-1))
    sigmoid = dataclasses.replace(linear, share=1.0, decay="inverse-sigmoid")
    assert float(share_of_target(sigmoid, 300)) == pytest.approx(100 / (100 + np.exp(3)))
    assert 0 <= float(share_of_target(sigmoid, 10**6)) < 1e-6


@pytest.mark.parametrize("system", MODELS)
def test_systems_with_other_objectives_refuse_what_replaces_cross_entropy(system):
    for method in ({"rdrop": RDropConfig(weight=1.0)}, {"scheduled": ScheduledConfig(share=0.5)}):
        config = config_of(system, **method)
        if system in LIKELIHOOD:
            objective_of(config, no_teacher, str)
        else:
            with pytest.raises(UserError, match=f"{system} has its own objective"):
                objective_of(config, no_teacher, str)
    hard = config_of("recurrent", {"attention": "hard"}, rdrop=RDropConfig(weight=1.0))
    with pytest.raises(UserError, match="has its own objective"):
        objective_of(hard, no_teacher, str)
    both = config_of(rdrop=RDropConfig(weight=1.0), scheduled=ScheduledConfig(share=0.5))
    with pytest.raises(UserError, match="each replaces cross-entropy"):
        objective_of(both, no_teacher, str)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            {"guidance": GuidanceConfig(layers=(1,))},
            "--guidance.layers: it has no effect without --guidance.weight",
        ),
        ({"scheduled": ScheduledConfig(tokens="sample")}, "--scheduled.tokens: it has no effect without"),
        ({"scheduled": ScheduledConfig(share=0.5, top_k=9)}, "without --scheduled.tokens mixture"),
        ({"reward": RewardConfig(samples=8)}, "--reward.samples: it has no effect without --reward.share"),
        ({"reward": RewardConfig(share=0.5, baseline="greedy")}, "without --reward.loss reinforce"),
        ({"reward": RewardConfig(share=0.5, loss="reinforce", sharpness=1.0)}, "without --reward.loss risk"),
        ({"guidance": GuidanceConfig(weight=1.0, layers=(1, 3))}, "--guidance.layers 3: there are 2"),
        ({"guidance": GuidanceConfig(weight=1.0, heads=(4,))}, "--guidance.heads 4: there are 2"),
        (
            {"rdrop": RDropConfig(weight=1.0), "scheduled": ScheduledConfig(share=0.5)},
            "leave one of them out",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(tmp_path, method, message):
    with pytest.raises(UserError, match=message):
        train(config_of(**method), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_all_presets_go_together():
    for config in CONFIGS.values():
        if not getattr(config.model, "untaught", ""):
            check_config(config, but=(check_types,))


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", MODELS)
def test_the_attention_of_every_system_can_be_chosen(system):
    model = {"attention": "additive"} if system == "recurrent" else {}
    check_config(
        config_of(system, model, guidance=GuidanceConfig(weight=1.0, layers=(1,), heads=(1,))),
        but=(check_types,),
    )
    with pytest.raises(UserError, match="--guidance.layers 9: there are"):
        check_config(
            config_of(system, model, guidance=GuidanceConfig(weight=1.0, layers=(9,))), but=(check_types,)
        )


@pytest.mark.slow
def test_weights_have_a_limit():
    for method in (GuidanceConfig, RDropConfig):
        with pytest.raises(UserError, match="weight must be from 0 to 1,000"):
            method(weight=1e300)
