"""Three sentences and their translations, of different lengths, and their logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from toy_batches import BOS, EOS

SOURCE = np.array([[4, 5, 6, 7, 8, 9, EOS], [10, 11, 12, EOS, 0, 0, 0], [13, EOS, 0, 0, 0, 0, 0]])
TARGET = np.array([[BOS, 4, 5, 6, 7], [BOS, 8, 9, 10, 0], [BOS, 11, 0, 0, 0]])


@functools.cache
def compiled(model):
    return jax.jit(model.apply)


def logits_of(model, variables, source=SOURCE, target=TARGET, **options):
    return np.asarray(compiled(model)(variables, jnp.asarray(source), jnp.asarray(target), **options))
