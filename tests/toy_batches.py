"""Batches of random sentences of very different lengths, and a state to train on them."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer.training.step import TrainState

BOS, EOS = 1, 2
WORDS = 20


def sentences(rows, longest, seed=0):
    """Sentences of very different lengths, the shortest first."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, longest), np.int32)
    for row in range(rows):
        length = max(1, round(longest * ((row + 1) / rows) ** 3))
        ids[row, : length - 1], ids[row, length - 1] = rng.integers(4, WORDS, length - 1), EOS
    return ids


def a_batch(rows=8, longest=9, seed=0):
    return {"source": sentences(rows, longest, seed), "target": sentences(rows, longest, seed + 1)}


def state_of(params, optimizer, average=False):
    params = jax.tree.map(jnp.array, params)  # its own copy: the state may be donated
    kept = jax.tree.map(jnp.copy, params) if average else None
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), {}, kept)
