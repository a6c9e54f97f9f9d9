"""Minimum risk and REINFORCE, against enumeration of all outputs: three words, at most three of them."""

import collections
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sacrebleu
from of_a_config import objective_of
from reference_search import random_variables
from test_methods import BATCH, TRAINING, config_of, no_teacher
from tiers import mostly_slow

from transformer import PRESETS, Context, SpecialIds, UserError
from transformer.config.methods import RewardConfig
from transformer.systems.registry import find_system
from transformer.training.methods.reward import reward_of

EOS = 2
SOURCE = jnp.asarray([[4, EOS]])
TARGET = jnp.asarray([[4, 5, EOS]])
TINY = {"vocab_size": 6, "num_layers": 1, "d_model": 8, "dropout": 0.0}
EXTRA = {"share": 1.0, "extra_length": 2}
OUTPUTS = [
    (*words, EOS) + (0,) * (3 - count)
    for count in range(4)
    for words in itertools.product((3, 4, 5), repeat=count)
]
SPELL = " ".join


def text(ids):
    return " ".join(f"w{i}" for i in ids)


def built(system="transformer", **options):
    config = config_of(system, TINY, reward=RewardConfig(**EXTRA, **options))
    model = find_system(system).model(config.model)
    return (
        model,
        jax.tree.map(jnp.asarray, random_variables(model, 1)),
        objective_of(config, no_teacher, text),
    )


@functools.partial(jax.jit, static_argnums=0)
def enumerated(model, variables):
    """The probability of every output, by the conditional distributions of its tokens. The end of the
    longest is certain."""
    outputs = jnp.asarray(OUTPUTS)
    given = jnp.pad(outputs, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    logits = model.apply(variables, jnp.repeat(SOURCE, len(outputs), axis=0), given)
    share = jnp.exp(logits[..., 2:]) / jnp.exp(logits[..., 2:]).sum(-1, keepdims=True)
    total = []
    for row, output in enumerate(OUTPUTS):
        p = 1.0
        for time, token in enumerate(output[:3]):
            p = p * share[row, time, token - 2] if token else p
        total.append(p)
    return jnp.stack(total)


def gleu_by_counting(candidate, reference):
    grams = [
        collections.Counter(tuple(ids[i : i + n]) for n in range(1, 5) for i in range(len(ids) - n + 1))
        for ids in (candidate, reference)
    ]
    common = sum((grams[0] & grams[1]).values())
    return common / max(sum(grams[0].values()), sum(grams[1].values()), 1)


def words_of(ids):
    return [i for i in ids if i not in (0, EOS)]


REWARDS = np.array([gleu_by_counting(words_of(each), [4, 5]) for each in OUTPUTS])


@functools.partial(jax.jit, static_argnums=0)
def expected_cost(model, variables):
    return (enumerated(model, variables) * (1 - REWARDS)).sum()


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def test_the_probabilities_of_all_outputs_add_up_to_one():
    model, variables, _ = built()
    assert len(OUTPUTS) == 40
    assert float(enumerated(model, variables).sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "system", mostly_slow(["transformer", "recurrent", "convolutional"], ["convolutional"])
)
def test_the_risk_of_all_outputs_by_enumeration(system):
    """A beam of 40 has all of them; with alpha 1 the risk is the expected cost."""
    model, variables, objective = built(system, candidates="beam", samples=40, sharpness=1.0)
    batch = {"source": SOURCE, "target": TARGET}
    (total, loss), gradient = jax.jit(
        jax.value_and_grad(
            lambda v: ((loss := objective(model, v, batch, TRAINING)).total, loss), has_aux=True
        )
    )(variables)
    cost, expected = jax.jit(jax.value_and_grad(lambda v: expected_cost(model, v)))(variables)
    assert float(total) == pytest.approx(3 * float(cost), rel=1e-4)  # the sentence weighs as its 3 tokens
    np.testing.assert_allclose(flat(gradient["params"]), 3 * flat(expected["params"]), atol=2e-5)
    value, sentences = loss.metrics["reward"]
    assert float(value) == pytest.approx(REWARDS.mean(), rel=1e-5)
    assert float(sentences) == 1


@pytest.mark.slow
@pytest.mark.parametrize("baseline", mostly_slow(["greedy", "mean", "none"], ["mean"]))
def test_reinforce_is_unbiased(baseline):
    """The mean of 3000 single estimates lies within 5 standard errors of the gradient by enumeration, along
    random directions."""
    model, variables, objective = built(loss="reinforce", samples=2, baseline=baseline)
    batch = {"source": SOURCE, "target": TARGET}
    params, rebuild = jax.flatten_util.ravel_pytree(variables["params"])
    directions = jax.random.normal(jax.random.key(8), (6, len(params)))

    def estimate(key):
        def total(flat):
            return objective(model, {"params": rebuild(flat)}, batch, Context(key, 0)).total

        return directions @ jax.grad(total)(params)

    keys = jax.random.split(jax.random.key(5), 3000)
    found = np.asarray(jax.jit(jax.vmap(estimate))(keys), np.float64)
    cost = jax.grad(lambda flat: expected_cost(model, {"params": rebuild(flat)}))(params)
    expected = np.asarray(directions) @ np.asarray(cost)
    error = found.std(axis=0) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - expected) < 5 * error).all()
    assert (error < 0.3 * np.abs(expected).max()).all()


def test_rewards_of_tokens_are_those_of_the_host():
    chance = np.random.default_rng(0)
    candidates, references = chance.integers(3, 9, (7, 5, 12)), chance.integers(3, 9, (7, 10))
    for ids, least in ((candidates, 0), (references, 1)):
        lengths = chance.integers(least, ids.shape[-1], ids.shape[:-1])
        ids[np.arange(ids.shape[-1]) >= lengths[..., None]] = 0
        np.put_along_axis(ids, lengths[..., None], EOS, axis=-1)
    candidates[0, 0], candidates[1, 0, :10], candidates[1, 0, 10:] = 0, references[1], 0
    arrays, special = (jnp.asarray(candidates), jnp.asarray(references)), SpecialIds()
    found = {
        name: np.asarray(jax.jit(reward_of(name, special, text))(*arrays))
        for name in ("gleu", "bleu", "text-bleu", "text-chrf")
    }
    for row, column in itertools.product(range(7), range(5)):
        candidate, reference = words_of(candidates[row, column]), words_of(references[row])
        assert found["gleu"][row, column] == pytest.approx(gleu_by_counting(candidate, reference), abs=1e-6)
        said, wanted = text(candidate), [text(reference)]
        score = sacrebleu.sentence_bleu(said, wanted, tokenize="none").score
        assert found["bleu"][row, column] == pytest.approx(score / 100, abs=1e-6)
        assert found["text-bleu"][row, column] == pytest.approx(
            sacrebleu.sentence_bleu(said, wanted).score / 100
        )
        assert found["text-chrf"][row, column] == pytest.approx(
            sacrebleu.sentence_chrf(said, wanted).score / 100
        )
    assert found["bleu"][1, 0] == found["gleu"][1, 0] == 1


@pytest.mark.slow
def test_it_is_annealed_from_cross_entropy():
    start, later = Context(TRAINING.key, 0), Context(TRAINING.key, 50)
    config = config_of(reward=RewardConfig(share=0.5, anneal=100))
    plain, mixed, whole = (
        objective_of(each, no_teacher, text)
        for each in (config_of(), config, config_of(reward=RewardConfig(share=0.25)))
    )
    model = find_system("transformer").model(config.model)
    variables = jax.tree.map(jnp.asarray, random_variables(model, 1))

    def total(objective, context):
        return float(jax.jit(lambda v: objective(model, v, BATCH, context).total)(variables))

    assert total(mixed, start) == pytest.approx(total(plain, start), rel=1e-6)
    assert total(mixed, later) == pytest.approx(total(whole, later), rel=1e-6)
    assert total(mixed, Context()) == pytest.approx(total(plain, Context()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"samples": 8, "sharpness": 0.5}, {"loss": "reinforce"}])
def test_the_expected_reward_rises(options):
    model, variables, objective = built(**options)
    optimizer = optax.adam(0.02)
    batch = {"source": SOURCE, "target": TARGET}

    @jax.jit
    def step(params, state, key):
        total = lambda v: objective(model, {"params": v}, batch, Context(key, 0)).total  # noqa: E731
        updates, state = optimizer.update(jax.grad(total)(params), state)
        return optax.apply_updates(params, updates), state

    before, params = float(expected_cost(model, variables)), variables["params"]
    state = optimizer.init(params)
    for key in jax.random.split(jax.random.key(2), 60):
        params, state = step(params, state, key)
    assert float(expected_cost(model, {"params": params})) < 0.8 * before


def test_wrong_combinations_are_refused():
    config = config_of(reward=RewardConfig(share=0.5))
    packed = dataclasses.replace(config, data=dataclasses.replace(config.data, batching="packed"))
    with pytest.raises(UserError, match="rows of one sentence: use --data.batching buckets"):
        objective_of(packed, no_teacher, text)
    with pytest.raises(UserError, match="copying has its own objective"):
        objective_of(config_of("copying", reward=RewardConfig(share=0.5)), no_teacher, text)
    for options, reason in (
        ({"samples": 1}, "nothing to compare a candidate with"),
        ({"loss": "reinforce", "candidates": "beam"}, "REINFORCE needs samples"),
        ({"sharpness": 0.0}, "sharpness must be positive"),
    ):
        with pytest.raises(UserError, match=reason):
            RewardConfig(share=0.5, **options)


def test_candidates_are_limited_as_in_the_search_of_the_system():
    """Also where the source is frames, of which there are no ids to count."""
    config = PRESETS["speech"]
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "channels": 8, "vocab_size": 12}
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **sizes),
        data=dataclasses.replace(config.data, bands=8, batching="buckets"),
        reward=RewardConfig(share=0.5, samples=2, extra_length=1),
    )
    model = find_system("speech").model(config.model)
    objective = objective_of(config, no_teacher, str)
    frames = np.random.default_rng(0).normal(size=(2, 16, 8)).astype(np.float32)
    target = np.array([[5, 6, 2], [7, 2, 0]])
    variables = jax.eval_shape(model.init, jax.random.key(0), frames, target)
    batch = {"source": frames, "target": target}
    loss = jax.eval_shape(
        lambda variables, batch: objective(model, variables, batch, Context(jax.random.key(0))),
        variables,
        batch,
    )
    assert loss.metrics.keys() >= {"nll", "reward"}
