"""Learning rates that fall each epoch, or on a plateau of the score."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_run import changed, interrupted, quiet, same, small_config

from transformer import Config, OptimizerConfig, Run, UserError, make_optimizer, train
from transformer.runs.log import standing
from transformer.training.optimizers import PlateauState, after_evaluation, scale_by_plateau, scale_of


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return changed(small_config(tmp_path_factory.mktemp("text")), log_every=1)


def optimized(config: Config, **options) -> Config:
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, **options))


def rates(run: Run) -> list[float]:
    return [record["learning_rate"] for record in run.log.records("training")]


@pytest.mark.slow
def test_a_rate_that_falls_each_epoch(config, tmp_path):
    """The run stores how long an epoch is, and resumes without being told."""
    given = optimized(config, schedule="exponential", peak=1e-2, warmup_steps=1)
    whole = train(given, tmp_path / "whole", watch=quiet())
    epoch = Run(whole).config.optimizer.decay_steps
    assert 1 < epoch < 8
    np.testing.assert_allclose(rates(Run(whole)), [1e-2 * 0.9 ** (step // epoch) for step in range(12)], 1e-6)
    train(given, interrupted(whole, tmp_path / "parts"), watch=quiet())
    assert same(whole, tmp_path / "parts")
    other = optimized(given, decay_steps=epoch + 1)
    with pytest.raises(UserError, match="--optimizer.decay-steps: "):
        train(other, whole, watch=quiet())


@pytest.mark.thorough
def test_copies_of_a_stable_run_end_after_several_lengths(config, tmp_path):
    """A run is copied while its rate is stable, and the copy ends sooner, as one that was made so."""
    stable = optimized(config, schedule="stable", peak=1e-2, warmup_steps=2, cooldown=0.25)
    long, short = (changed(stable, steps=steps, evaluate_every=6) for steps in (16, 8))
    whole = train(long, tmp_path / "long", watch=quiet())
    np.testing.assert_allclose(
        rates(Run(whole)), [0.5e-2, *[1e-2] * 11, *[1e-2 * left / 4 for left in (3, 2, 1, 0)]], 1e-6
    )
    with pytest.raises(UserError, match="--training.steps: "):  # it is past what both have in common
        train(short, whole, watch=quiet())
    copy = shutil.copytree(whole, tmp_path / "copy")
    for step in Run(copy).checkpoints.steps():
        if step > 6:
            shutil.rmtree(copy / "checkpoints" / str(step))
    assert same(train(short, copy, watch=quiet()), train(short, tmp_path / "short", watch=quiet()))


def test_nothing_guesses_the_length_of_an_epoch(config):
    with pytest.raises(UserError, match="give --optimizer.decay-steps"):
        make_optimizer(optimized(config, schedule="exponential"))


@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_a_factor_that_cannot_be(decay):
    with pytest.raises(UserError, match="--optimizer.decay"):
        OptimizerConfig(decay=decay)


def test_a_plateau_against_a_plain_loop():
    """Equal scores with lower losses are better."""
    random = np.random.default_rng(0)
    options = OptimizerConfig(schedule="plateau", decay=0.5, decay_patience=3)
    state = (optax.EmptyState(), scale_by_plateau().init({}))  # as in a chain
    best, waited, scale = (-np.inf, -np.inf), 0, 1.0
    for merit, loss in random.integers(0, 6, (200, 2)):
        now = float(merit), -float(loss)
        state = after_evaluation(state, now, options)
        waited += 1
        if now > best:
            best, waited = now, 0
        elif waited == 3:
            scale, waited = scale / 2, 0
        assert scale_of(state) == np.float32(scale)
    assert 0 < scale < 1e-6


def test_updates_are_scaled():
    transform = scale_by_plateau()
    state = PlateauState(jnp.float32(0.25), jnp.zeros(2), jnp.zeros((), jnp.int32))
    updates, after = transform.update({"a": jnp.ones(3)}, state)
    np.testing.assert_array_equal(updates["a"], np.full(3, 0.25))
    assert after is state
    assert scale_of(optax.adam(1.0).init({})) == 1


@pytest.mark.slow
def test_a_run_whose_rate_falls_resumes_bit_for_bit(config, tmp_path):
    """The first evaluation is the best one: with this rate nothing is learned."""
    given = optimized(config, schedule="plateau", peak=3.0, warmup_steps=1, decay=0.1, decay_patience=1)
    given = changed(given, steps=10, evaluate_every=2, keep_last=5)
    whole = train(given, tmp_path / "whole", watch=quiet())
    run = Run(whole)
    scale, best, expected = 1.0, (-np.inf, -np.inf), []
    for record in run.log.records("evaluation"):
        expected += [3.0 * scale] * 2
        now = tuple(map(np.float32, standing(record)))
        scale, best = (scale, now) if now > best else (0.1 * scale, best)
    assert min(expected) < 3
    np.testing.assert_allclose(rates(run), expected, 1e-5)
    train(given, interrupted(whole, tmp_path / "parts"), watch=quiet())
    assert same(whole, tmp_path / "parts")
    assert rates(Run(tmp_path / "parts")) == rates(run)


def test_arrays_of_a_plateau_stay_where_they_are():
    device = jax.devices()[-1]
    state = jax.device_put(scale_by_plateau().init({}), device)
    after = after_evaluation(state, (1.0, -1.0), OptimizerConfig(schedule="plateau"))
    before, now = (jax.tree.map(lambda x: (x.sharding, x.dtype, x.shape), each) for each in (state, after))
    assert before == now
