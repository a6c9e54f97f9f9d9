"""Products of few rows take another order of factors: the result is the same."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.model.parameters import FEW, logits


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, FEW // 2), (3, FEW)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_the_products_with_all_rows(shape, dtype):
    rng = np.random.default_rng(len(dtype))
    x = jnp.asarray(rng.normal(size=(*shape, 24)), dtype)
    table = rng.normal(size=(31, 24)).astype(np.float32)
    found = logits(x, jnp.asarray(table))
    assert (found.shape, found.dtype) == ((*shape, 31), np.float32)
    rounded = np.asarray(jnp.asarray(table, dtype), np.float64)
    expected = np.asarray(x, np.float64) @ rounded.T
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
