"""Int8 weights: products are those of the integers, and models give nearly the same results."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from small_run import WORDS
from small_translator import small_translator, stored

from transformer import Translator
from transformer.model.parameters import INT8, quantized
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
