"""What is trained and what is fixed: low-rank changes, frozen parts, added rows and rates by group."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from run_command import on_devices
from toy_batches import WORDS, a_batch

from transformer import PRESETS, Config, Transformer, TransformerConfig, UserError, translation_objective
from transformer.config.corpus import DataConfig
from transformer.config.methods import AdapterConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.model.declarations import count, declarations
from transformer.systems.parameters import declared_parameters, model_shapes, with_any_sizes
from transformer.systems.registry import REGISTRY, find_system, options_of
from transformer.tasks.texts.translation import Translation
from transformer.training.objective import Context
from transformer.training.parametrisation import (
    DOWN,
    UP,
    Parametrisation,
    chosen,
    matches,
    parametrisation_of,
)
from transformer.training.schedule import make_optimizer
from transformer.training.step import WHOLE, init_state, make_train_step

SMALL = TransformerConfig(
    vocab_size=WORDS, num_layers=2, d_model=8, d_ff=12, num_heads=2, dropout=0.0, dtype="float32"
)
MODEL = Transformer(SMALL)
EXAMPLE = Translation.example(Config())
OBJECTIVE = translation_objective(0.1)
SIZE = 0.02  # of the steps of finite differences: losses are rounded to 2.4e-7, so slopes to 2e-5


@pytest.fixture(scope="module")
def params():
    random = np.random.default_rng(3)
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0), *EXAMPLE)["params"]
    return jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.3, x.shape), jnp.float32), shapes)


def of(freeze=(), first_added=None, **adapter):
    config = Config(
        model=SMALL,
        data=DataConfig(first_added=first_added),
        training=TrainingConfig(freeze=freeze),
        adapter=AdapterConfig(**adapter),
    )
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0), *EXAMPLE)["params"]
    return parametrisation_of(config, shapes, declarations(MODEL, EXAMPLE))


def trained_on(params, how, optimizer, steps=3, **options):
    state = init_state(
        MODEL, optimizer, 0, EXAMPLE, variables={"params": params}, parametrisation=how, **options
    )
    step = jax.jit(make_train_step(MODEL, OBJECTIVE, optimizer, seed=0))
    for seed in range(steps):
        state, means = step(state, a_batch(seed=seed))
    return state, means


def noisy(trained):
    """Factors of changes, none of which is zero."""
    random = np.random.default_rng(5)
    return jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.5, x.shape), x.dtype), trained)


# --- low-rank changes ---


@pytest.mark.parametrize(
    ("shape", "axes"), [((4, 3), (0,)), ((4, 2, 3), (0,)), ((2, 3, 4), (0, 1)), ((7, 4), (1,))]
)
def test_a_change_adds_the_product_of_two_factors(shape, axes):
    """As NumPy computes it, for matrices of projections, of heads, and tables of embeddings."""
    random = np.random.default_rng(1)
    weight = random.normal(size=shape).astype(np.float32)
    how = Parametrisation(low_rank=frozenset({(("layer", "kernel"), axes)}), rank=2, scale=1.5)
    trained, fixed = how.split({"layer": {"kernel": weight}})
    np.testing.assert_array_equal(how.merge(trained, fixed)["layer"]["kernel"], weight)

    factors = noisy(trained)
    down, up = (np.asarray(factors["layer"]["kernel"][name]) for name in (DOWN, UP))
    x = random.normal(size=[shape[axis] for axis in axes]).astype(np.float32)
    others = [axis for axis in range(len(shape)) if axis not in axes]
    inputs, outputs = x.size, [shape[axis] for axis in others]
    matrix = weight.transpose(*axes, *others).reshape(inputs, -1)
    change = x.ravel() @ down.reshape(inputs, 2) @ up.reshape(2, -1)
    expected = (x.ravel() @ matrix + 1.5 * change).reshape(outputs)
    found = np.tensordot(x, how.merge(factors, fixed)["layer"]["kernel"], (range(x.ndim), axes))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_network_with_changes_is_the_network_with_changed_matrices(params):
    """The logits of two passes: through `merge`, and with W + scale A B put into the parameters by NumPy."""
    how = of(rank=3, scale=0.7)
    trained, fixed = how.split(params)
    factors = noisy(trained)
    by_hand = dict(flatten_dict(params))
    flat = flatten_dict(factors)
    for path in {path[:-1] for path in flat}:
        down, up = (np.asarray(flat[(*path, name)], np.float64) for name in (DOWN, UP))
        by_hand[path] = by_hand[path] + np.float32(0.7 * np.tensordot(down, up, 1))
    batch = jax.tree.map(jnp.asarray, a_batch())
    arguments = batch["source"], batch["target"]
    found = MODEL.apply({"params": how.merge(factors, fixed)}, *arguments)
    expected = MODEL.apply({"params": unflatten_dict(by_hand)}, *arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


@pytest.mark.slow
def test_its_gradient_is_that_of_finite_differences(params):
    """The update of plain gradient descent with rate 1 is the gradient of the mean loss."""
    how, batch = of(rank=2, pattern=("*query", "*outer")), jax.tree.map(jnp.asarray, a_batch())
    state = init_state(MODEL, optax.sgd(1.0), 0, EXAMPLE, variables={"params": params}, parametrisation=how)
    state = state.replace(trained=noisy(state.trained))
    after, means = jax.jit(make_train_step(MODEL, OBJECTIVE, optax.sgd(1.0), seed=0))(state, batch)
    gradient = jax.tree.map(jnp.subtract, state.trained, after.trained)

    @jax.jit
    def loss(trained):
        loss = OBJECTIVE(MODEL, {"params": how.merge(trained, state.fixed)}, batch, Context())
        return loss.total / loss.weight

    assert loss(state.trained) == pytest.approx(float(means["loss"]), rel=1e-6)
    flat = flatten_dict(state.trained)
    for path, slope in flatten_dict(gradient).items():
        length = jnp.linalg.norm(slope)
        at = {
            step: float(loss(unflatten_dict(flat | {path: flat[path] + step * SIZE * slope / length})))
            for step in (-2, -1, 1, 2)
        }
        found = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * SIZE)
        assert found == pytest.approx(float(length), rel=5e-3, abs=2e-5)


@pytest.mark.thorough
def test_only_changes_are_trained(params):
    """The base stays, bit by bit; optimizer and average have the shapes of the changes."""
    how = of(rank=2)
    state, _ = trained_on(params, how, optax.adam(1e-2), average=True)
    jax.tree.map(np.testing.assert_array_equal, state.fixed, how.split(params)[1])
    paths = {path[-1] for path in flatten_dict(state.trained)}
    assert paths == {DOWN, UP}
    assert count(state.average) == count(state.trained)
    assert count(state.optimizer[0].mu) == count(state.trained) < count(params) / 2
    adapted = {path for path, _ in how.low_rank}
    after, before = flatten_dict(state.params), flatten_dict(params)
    assert {path for path in before if (after[path] != before[path]).any()} == adapted
    assert all("embedding" not in path[0] for path in adapted)


# --- frozen parts ---


@pytest.mark.slow
def test_frozen_parameters_keep_their_bits(params):
    how = of(freeze=("encoder", "*feed_forward"))
    state, means = trained_on(params, how, optax.adamw(1e-2, weight_decay=0.1))
    after, before = flatten_dict(state.params), flatten_dict(params)
    frozen = {path for path in before if path[0].startswith("encoder") or path[1].startswith("feed_")}
    assert frozen == how.fixed
    for path in before:
        assert (after[path] == before[path]).all() == (path in frozen), path
    assert count(state.optimizer[0].mu) == count(state.trained) == count(params) - count(state.fixed)
    assert means["gradient_norm"] > 0


FREEZE = ("source_embedding", "decoder_1")


@pytest.mark.slow
def test_the_norm_of_the_gradient_is_of_what_is_trained(params):
    whole, part = (trained_on(params, how, optax.sgd(0.0), steps=1) for how in (WHOLE, of(FREEZE)))
    assert float(part[1]["loss"]) == pytest.approx(float(whole[1]["loss"]), rel=1e-6)

    def squares(how):
        state, _ = trained_on(params, how, optax.sgd(1.0), steps=1)
        before, _ = how.split(params)
        return {
            path: float(jnp.sum((x - flatten_dict(state.trained)[path]) ** 2))
            for path, x in flatten_dict(before).items()
        }

    of_all = squares(WHOLE)
    of_part = sum(value for path, value in of_all.items() if path[0] not in FREEZE)
    assert float(part[1]["gradient_norm"]) == pytest.approx(of_part**0.5, rel=1e-3)
    assert float(part[1]["gradient_norm"]) < 0.99 * float(whole[1]["gradient_norm"])


@pytest.mark.slow
def test_fixed_parameters_keep_their_bits_in_every_layout():
    """On one device, eight replicas and a mesh, whose other parameters agree."""
    program = Path(__file__).parent / "trained_on_devices.py"
    ran = subprocess.run([sys.executable, program], env=on_devices(8), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found) == 9
    for name, result in found.items():
        assert result["fixed"], name
        # Muon makes small singular values, and their rounding, as large as the others
        assert result["difference"] < (1e-4 if name.startswith("muon") else 1e-5), name
        assert result["change"] > 0.01, name


# --- every system ---


@pytest.mark.thorough
@pytest.mark.parametrize("system", sorted(REGISTRY))
def test_every_system_has_adapters_and_frozen_parts(system):
    """Split and merged again, its parameters have their names, shapes and types."""
    presets = [preset for preset in PRESETS.values() if preset.system == system]
    options = options_of(system)
    plain = Config(system, options.model(), options.data(), decoding=options.decoding())
    config = with_any_sizes((presets or [plain])[0])
    shapes = model_shapes(find_system(system), config)["params"]
    declared = declared_parameters(find_system(system), config)
    first = min(shapes)
    for changes in (
        {"adapter": AdapterConfig(rank=2)},
        {"training": dataclasses.replace(config.training, freeze=(first,))},
    ):
        how = parametrisation_of(dataclasses.replace(config, **changes), shapes, declared)
        trained, fixed = jax.eval_shape(how.split, shapes)
        merged = jax.eval_shape(how.merge, trained, fixed)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), merged) == jax.tree.map(
            lambda x: (x.shape, x.dtype), shapes
        )
        assert 0 < count(trained) < count(shapes)


# --- added rows ---


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"freeze": ("source_embedding", "encoder")}, {"rank": 2}])
def test_added_rows_of_a_fixed_table_are_trained(params, options):
    rows = WORDS - 4
    how = of(first_added=rows, **options)
    state, _ = trained_on(params, how, optax.adam(1e-2))
    before, after = (tree["source_embedding"]["table"] for tree in (params, state.params))
    np.testing.assert_array_equal(after[:rows], before[:rows])
    assert (after[rows:] != before[rows:]).any(axis=-1).all()
    assert after.shape == before.shape


# --- names ---


def test_patterns():
    path = ("decoder_1", "cross_attention", "query")
    for pattern in (
        "decoder",
        "decoder_1",
        "*attention.query",
        "*query",
        "decoder*query",
        "*cross_attention",
    ):
        assert matches(pattern, path), pattern
    for pattern in (
        "encoder",
        "decoder_10",
        "query",
        "attention",
        "*quer",
        "*self_attention",
        "decoder_1.cro",
    ):
        assert not matches(pattern, path), pattern
    assert not matches("decoder_1", ("decoder_10", "query"))


def test_patterns_match_as_regular_expressions():
    for signs in itertools.product("ab*.", repeat=4):
        pattern = "".join(signs)
        expression = ".*".join(map(re.escape, pattern.split("*"))) + "(?:[._]|$)"
        for name in "ab.a", "a_b", "ba.ab.b", "abab":
            assert matches(pattern, (name,)) == bool(re.match(expression, name)), (pattern, name)


def test_many_stars_do_not_multiply():
    """A regular expression would try all that each of them may stand for."""
    path = ("decoder_1", "cross_attention", "e" * 50)
    for pattern in "*" * 1000 + "!", "*e" * 40 + "!", "*e*" * 500:
        assert not matches(pattern, path)
    assert matches("*" * 1000, path)
    assert matches("*e" * 50, path)


def test_a_pattern_that_matches_nothing_names_the_closest():
    paths = [("encoder_0", "self_attention", "query"), ("decoder_0", "self_attention", "query")]
    with pytest.raises(UserError, match=r"--training.freeze encodr: no parameter .*closest: .*encoder_0"):
        chosen("--training.freeze", ["encodr"], paths)
    with pytest.raises(UserError, match=r"closest: .*\*query"):
        chosen("--training.freeze", ["*.querry"], paths)
    with pytest.raises(UserError, match=r"closest: decoder_0\.self_attention\.query"):
        chosen("--training.freeze", ["decoder_0.self_attention.querry"], paths)


def test_freezing_everything_is_refused():
    with pytest.raises(UserError, match="nothing would be left to train"):
        of(freeze=("*",))


# --- rates by group ---


@pytest.mark.slow
def test_groups_have_their_own_rates(params):
    """Each update of Adam is the rate times a number that does not depend on it."""

    def updates(groups):
        config = Config(
            model=SMALL, optimizer=OptimizerConfig(schedule="constant", warmup_steps=1, groups=groups)
        )
        state, _ = trained_on(params, WHOLE, make_optimizer(config), steps=1)
        return flatten_dict(jax.tree.map(jnp.subtract, state.params, params))

    plain, grouped = updates(()), updates(("encoder=0.1", "decoder=0.5", "decoder_1=2"))
    for path, update in plain.items():
        factor = {"encoder": 0.1, "decoder": 0.5}.get(path[0].split("_")[0], 1.0)
        factor = 2.0 if path[0] == "decoder_1" else factor
        np.testing.assert_allclose(grouped[path], factor * update, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "group", ["encoder", "encoder=", "=1", "encoder=0", "encoder=-1", "a=inf", "a=nan", "a=1 b=1", "a==1"]
)
def test_a_group_needs_a_name_and_a_factor(group):
    with pytest.raises(UserError, match=r"--optimizer\.groups .*NAME=FACTOR"):
        OptimizerConfig(groups=(group,))
