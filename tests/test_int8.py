"""Weights of a search, in int8: products are those of the integers, and models give nearly the same results;
in the type that products compute in: the same bits."""

import inspect
import weakref
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from of_a_config import declared_parameters
from small_run import WORDS
from small_translator import small_translator, stored
from systems_on_a_mesh import config_of

from transformer import Run, Translator
from transformer.model.parameters import INT8, quantized
from transformer.systems import parameters
from transformer.systems.parameters import as_computed
from transformer.systems.registry import REGISTRY, find_system
from transformer.tasks.texts.translation import Translation

MATRICES = 2 * 6 + 10 + 1  # of two layers of the encoder, one of the decoder, one embedding


@pytest.mark.parametrize(("batch", "time"), [(1, 1), (1, 3), (2, 5)])
def test_products_are_those_of_the_integers(batch, time):
    rng = np.random.default_rng(batch)
    x = rng.normal(size=(batch, time, 40)).astype(np.float32)
    x[-1, -1] = 0
    kernel = rng.normal(size=(7, 40)).astype(np.float32)
    kernel[3] = 0
    matrix = quantized(jnp.asarray(kernel))
    levels, size = np.asarray(matrix.values, np.int64), np.asarray(matrix.scale)
    assert (np.abs(levels[[0, 1, 2, 4, 5, 6]]).max(axis=1) == 127).all()
    np.testing.assert_allclose(levels * size[:, None], kernel, atol=np.abs(kernel).max() / 253)

    given = quantized(jnp.asarray(x.reshape(-1, 40)))
    of_integers = np.asarray(given.values, np.int64) @ levels.T * np.outer(given.scale, size)
    product = np.asarray(matrix.product(jnp.asarray(x)))
    np.testing.assert_allclose(product.reshape(-1, 7), of_integers, rtol=1e-6)
    # every factor is off by at most half a level
    wrong = np.abs(product - x @ kernel.T)
    x, kernel = np.abs(x), np.abs(kernel)
    half_x, half_kernel = x.max(axis=2, keepdims=True) / 254, kernel.max(axis=1) / 254
    most = half_x * kernel.sum(axis=1) + half_kernel * x.sum(axis=2, keepdims=True)
    assert (wrong <= most + 40 * half_x * half_kernel + 1e-5).all()


TRANSLATES = [name for name in REGISTRY if issubclass(find_system(name).task, Translation)]


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", [name for name in TRANSLATES if name != "convolutional"])
def test_a_rounded_model_says_nearly_the_same(system, tmp_path):
    exact = small_translator(system)
    path = stored(exact, tmp_path / "run")
    integer = Translator.load(path, int8=True)
    before = traverse_util.flatten_dict(exact.variables["params"])
    after = traverse_util.flatten_dict(integer.variables["params"])
    matrices = traverse_util.flatten_dict(integer.variables[INT8])
    assert matrices.keys() | after.keys() == before.keys()
    assert not matrices.keys() & after.keys()
    assert all(matrix.values.size == before[name].size for name, matrix in matrices.items())
    if system == "transformer":
        assert len(matrices) == MATRICES
        assert {leaf.ndim for leaf in after.values()} == {1}

    sources = [" ".join(WORDS[start : start + 3]) for start in range(6)]
    targets = [" ".join(WORDS[start : start + 2]) for start in range(6)]
    scores = integer.score(sources, targets)
    wrong = np.abs(scores - exact.score(sources, targets))
    assert 0 < wrong.max() < 0.05 * np.abs(scores).max()
    assert all(np.isfinite(found[0].score) for found in integer.search(sources))


def test_a_matrix_is_freed_when_it_is_quantised(monkeypatch):
    def arrays():
        return {"params": {str(rows): jnp.full((rows, 8), 0.5) for rows in (3, 4, 5, 6)}}

    def noted(rows):
        alive.append(sum(reference() is not None for reference in references))
        return quantized(rows)

    held, alive = [arrays()], []
    references = [weakref.ref(array) for array in held[0]["params"].values()]
    monkeypatch.setattr(parameters, "quantized", noted)
    in_int8 = inspect.unwrap(parameters.in_int8)  # the check of types holds arguments
    in_int8(held.pop(), {(name,): (1,) for name in "3456"})
    assert alive == [4, 3, 2, 1]


HALF = [name for name in REGISTRY if "bfloat16" in config_of(name).model.DTYPES]


@pytest.mark.thorough
@pytest.mark.parametrize("system", HALF)
def test_weights_in_the_type_of_the_computation_give_the_same_bits(system):
    """All outputs of the network, and of each of its layers."""
    config = config_of(system)
    config = replace(config, model=replace(config.model, dtype="bfloat16"))
    random = np.random.default_rng(0)
    model, declared = find_system(system).model(config.model), declared_parameters(config)
    shapes = find_system(system).task.example(config)

    def drawn(x):
        ids = np.issubdtype(x.dtype, np.integer)
        drawn = random.integers(4, 13, x.shape) if ids else random.standard_normal(x.shape)
        return jnp.asarray(drawn, x.dtype)

    inputs = jax.tree.map(drawn, shapes)
    variables = model.init(jax.random.key(0), *inputs)
    held = as_computed(variables, "bfloat16", declared)
    params = traverse_util.flatten_dict(held["params"])
    halved = {path for path, x in params.items() if x.dtype == jnp.bfloat16}
    assert halved == {path for path, leaf in declared.items() if leaf.summed}
    assert halved

    def everything(variables):
        return model.apply(variables, *inputs, mutable=["intermediates"], capture_intermediates=True)

    for before, after in zip(*(jax.tree.leaves(everything(v)) for v in (variables, held)), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", [name for name in TRANSLATES if name in HALF and name != "convolutional"])
def test_a_loaded_model_holds_what_it_computes_with(system, tmp_path):
    whole = small_translator(system)
    config = replace(whole.config, model=replace(whole.config.model, dtype="bfloat16"))
    run = Run.create(tmp_path / "run", config, whole.task)
    run.checkpoints.store_model(1, whole.variables)
    loaded, plain = Translator.load(run.path), Translator.load(run.path)
    sizes = [sum(x.nbytes for x in jax.tree.leaves(model.variables)) for model in (whole, loaded)]
    assert sizes[1] < 0.6 * sizes[0]
    read, declared = run.variables(1, computed=True), declared_parameters(config)
    cast = as_computed(whole.variables, "bfloat16", declared)
    for expected, *others in zip(*map(jax.tree.leaves, (cast, read, loaded.variables)), strict=True):
        for other in others:
            assert (expected.dtype, np.asarray(expected).tobytes()) == (
                other.dtype,
                np.asarray(other).tobytes(),
            )
    plain.variables = whole.variables  # cast at every step
    sources = [" ".join(WORDS[start : start + 3]) for start in range(6)]
    assert loaded.search(sources) == plain.search(sources)
    assert (loaded.score(sources, sources) == plain.score(sources, sources)).all()
