"""Dropout: the share that it keeps, keys, and none if deterministic."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_sentences import SOURCE, TARGET

from transformer.model.layers import Dropout, keep_mask
from transformer.model.transformer import Transformer


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_keep_mask_keeps_the_right_share(rate):
    kept = np.asarray(keep_mask(jax.random.key(0), rate, (333, 601)))  # an odd number of elements
    error = math.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * error
    # neighbours share a word of random bits, but must be independent
    both = (kept[:, 1:] & kept[:, :-1]).mean()
    assert abs(both - (1 - rate) ** 2) < 5 * 2 * error


def test_keep_masks_of_other_keys_have_nothing_in_common():
    keys = [jax.random.fold_in(jax.random.key(0), step) for step in range(40)]
    kept = np.stack([np.asarray(keep_mask(key, 0.5, (64, 1024))).reshape(-1) for key in keys])
    assert abs(np.corrcoef(kept) - np.eye(len(keys))).max() < 5.5 / math.sqrt(kept.shape[1])
    # an element is independent under other keys, and of elements at distances of powers of two
    assert abs(kept.mean(axis=0) - 0.5).max() < 5.5 * 0.5 / math.sqrt(len(keys))
    for distance in 2 ** np.arange(16):
        same = (kept[:, distance:] == kept[:, :-distance]).mean()
        assert abs(same - 0.5) < 5.5 * 0.5 / math.sqrt(kept.size - len(keys) * distance)


def test_dropout_scales_what_it_keeps():
    x = jnp.linspace(1, 2, 50_000)
    dropped = Dropout(0.2).apply({}, x, False, rngs={"dropout": jax.random.key(0)})
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], x[kept] / 0.8, rtol=1e-6)
    # x is 2 at most: a standard error of the mean is less than 2 sqrt(0.2 / 0.8 / n)
    assert abs(dropped.mean() - x.mean()) < 5 * 2 * math.sqrt(0.25 / x.size)
    assert (Dropout(0.2).apply({}, x, True) == x).all()


KINDS = ("dropout", "attention_dropout", "activation_dropout")


@pytest.mark.by_default("activation_dropout")
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_depends_on_the_key_alone(tiny, random_variables, kind):
    model = Transformer(tiny(num_layers=1, **{kind: 0.3}))
    variables = random_variables(model)

    @jax.jit
    def drop(key):
        rngs = {"dropout": key}
        return model.apply(
            variables, jnp.asarray(SOURCE), jnp.asarray(TARGET), deterministic=False, rngs=rngs
        )

    first, again, other = (np.asarray(drop(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-2)


def test_no_dropout_when_deterministic(tiny, random_variables):
    plain, model = Transformer(tiny()), Transformer(tiny(**dict.fromkeys(KINDS, 0.3)))
    variables = random_variables(plain)
    programs = {str(jax.make_jaxpr(m.apply)(variables, SOURCE, TARGET)) for m in (plain, model)}
    assert len(programs) == 1
