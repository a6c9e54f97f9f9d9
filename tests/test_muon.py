"""Muon: `optax.contrib` as an oracle, every system, resuming, other layouts, adapters."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from of_a_config import declared_parameters, model_shapes
from optax import contrib
from small_run import changed, quiet, same, small_config

from transformer import PRESETS, Config, Transformer, TransformerConfig, UserError, make_optimizer
from transformer.config.methods import AdapterConfig
from transformer.model.declarations import declarations
from transformer.systems.parameters import with_any_sizes
from transformer.systems.registry import REGISTRY, options_of
from transformer.trainer.train import train
from transformer.training.optimizers import inputs_of, orthogonal, scale_by_muon_and
from transformer.training.parametrisation import parametrisation_of

MODEL = Transformer(TransformerConfig(vocab_size=40, num_layers=1, d_model=16, d_ff=24, num_heads=2))
IDS = jnp.ones((1, 3), jnp.int32)
DECLARED = declarations(MODEL, (IDS, IDS))


def muon(config: Config, **options: object) -> Config:
    return dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, algorithm="muon", **options)
    )


def numbers(params):
    """The axes of the matrices, as optax wants them."""
    of = {}
    for path, x in flatten_dict(params).items():
        axes = () if isinstance(x, optax.MaskedNode) else inputs_of(path, x, DECLARED)
        rest = tuple(axis for axis in range(getattr(x, "ndim", 0)) if axis not in axes)
        of[path] = contrib.MuonDimensionNumbers(axes, rest) if axes else None
    return unflatten_dict(of)


def test_updates_are_those_of_optax():
    """Of matrices, given the momentum of Nesterov (Jordan et al. 2024; that of optax is corrected for its
    first steps); of all others those of Adam."""
    params = MODEL.init(jax.random.key(0), IDS, IDS)["params"]
    reference = contrib.muon(1.0, muon_weight_dimension_numbers=numbers, consistent_rms=0.2)
    adam = optax.scale_by_adam(0.9, 0.98)
    ours = scale_by_muon_and(adam, DECLARED, 3.0)
    of_ours, of_adam = ours.init(params), adam.init(params)
    random, momentum = np.random.default_rng(0), jax.tree.map(np.zeros_like, params)
    for _ in range(3):
        gradients = jax.tree.map(lambda x: jnp.asarray(random.standard_normal(x.shape, np.float32)), params)
        momentum = jax.tree.map(lambda m, g: 0.95 * m + 0.05 * g, momentum, gradients)
        ahead = jax.tree.map(lambda m, g: 0.95 * m + 0.05 * g, momentum, gradients)
        expected, _ = reference.update(ahead, reference.init(params), params)
        others, of_adam = adam.update(gradients, of_adam, params)
        updates, of_ours = ours.update(gradients, of_ours, params)
        expected, others, updates = map(flatten_dict, (expected, others, updates))
        matrices = {path for path, x in updates.items() if inputs_of(path, x, DECLARED)}
        assert len(matrices) == 2 * 2 + 3 * 4  # of two feed-forward networks, and three times attention
        for path, update in updates.items():
            if path in matrices:
                np.testing.assert_allclose(update, -3 * expected[path], atol=1e-4)
            else:
                np.testing.assert_array_equal(update, others[path])


@pytest.mark.parametrize("shape", [(2, 8, 20), (3, 20, 8), (1, 9, 9)])
def test_singular_values_are_near_1(shape):
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)
    values = np.linalg.svd(orthogonal(x), compute_uv=False) / (0.2 * max(shape[1:]) ** 0.5)
    assert 0.6 < values.min() <= values.max() < 1.3


def test_it_needs_declarations():
    with pytest.raises(UserError, match="muon needs to know which parameters are matrices: give declared="):
        make_optimizer(muon(Config()))


@pytest.mark.thorough
@pytest.mark.parametrize("system", sorted(REGISTRY))
def test_every_system_has_matrices(system):
    """Muon updates all that products read, also changes of an adapter, and neither tables nor biases."""
    options = options_of(system)
    plain = Config(system, options.model(), options.data(), decoding=options.decoding())
    presets = [preset for preset in PRESETS.values() if preset.system == system]
    config = muon(with_any_sizes((presets or [plain])[0]))
    declared, shapes = declared_parameters(config), model_shapes(config)["params"]
    paths = {path for path, x in flatten_dict(shapes).items() if inputs_of(path, x, declared)}
    assert paths >= {path for path, x in declared.items() if x.summed and "vocabulary" not in x.names}
    assert not {path for path in paths if path[-1].endswith(("bias", "scale", "table"))}
    adapted = dataclasses.replace(config, adapter=AdapterConfig(rank=2))
    for trained in (shapes, parametrisation_of(adapted, shapes, declared).split):
        tree = trained if isinstance(trained, dict) else jax.eval_shape(trained, shapes)[0]
        optimizer = make_optimizer(config, declared)

        def update(params, optimizer=optimizer):
            return optimizer.update(params, optimizer.init(params), params)[0]

        assert jax.tree.map(lambda x: x.shape, jax.eval_shape(update, tree)) == jax.tree.map(
            lambda x: x.shape, tree
        )


@pytest.mark.thorough
def test_it_resumes_bit_for_bit(tmp_path):
    config = changed(muon(small_config(tmp_path), matrix_scale=2.0), steps=6, evaluate_every=3)
    whole = train(config, tmp_path / "whole", watch=quiet())
    shutil.copytree(whole, tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "6")
    assert same(whole, train(config, tmp_path / "killed", watch=quiet()))
