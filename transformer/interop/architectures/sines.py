"""Sinusoids as some families have them: all sines, then all cosines. Here they are interleaved, as in the
paper."""

import jax.numpy as jnp
import numpy as np

from transformer.model.positions import sinusoids


def interleaved_order(d_model: int) -> np.ndarray:
    """For each coordinate here, its index there."""
    return np.arange(d_model).reshape(2, -1).T.reshape(-1)


def sines_then_cosines(count: int, d_model: int) -> np.ndarray:
    """The sinusoids of the first `count` positions, `[count, d_model]`."""
    return np.array(sinusoids(jnp.arange(count), d_model))[:, np.argsort(interleaved_order(d_model))]
