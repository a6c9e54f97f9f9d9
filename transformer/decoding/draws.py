"""Random draws from large vocabularies, by inversion: one random number each, and one pass over the logits.

`jax.random.categorical` draws a random number for each logit, which takes 30 times as long on a CPU.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def drawn(uniform: Float[Array, "*b"], logits: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """The class at which the sum of probabilities passes a uniform random number of [0, 1).

    The classes are summed in about sqrt(v) blocks: first the block is found, then the class in it. A class
    without probability is never drawn. float32 sums shift probabilities by about 1e-7.
    """
    classes = logits.shape[-1]
    width = math.isqrt(classes - 1) + 1
    masses = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    masses = jnp.pad(masses, (*((0, 0),) * (masses.ndim - 1), (0, -classes % width)))
    masses = masses.reshape(*logits.shape[:-1], -1, width)
    blocks = masses.sum(axis=-1)
    block, left = _passed(uniform * blocks.sum(axis=-1), blocks)
    inside = jnp.take_along_axis(masses, block[..., None, None], axis=-2)[..., 0, :]
    return block * width + _passed(left, inside)[0]


def _passed(aim: Float[Array, "*b"], masses: Float[Array, "*b n"]) -> tuple[Int[Array, "*b"], Array]:
    """The first mass with which the sum passes the aim, and how far the aim is inside it. Rounding may raise
    the aim to the sum of all, or a sum where there is no mass."""
    sums = jnp.where(masses > 0, masses.cumsum(axis=-1), 0)
    aim = jnp.minimum(aim, jnp.nextafter(sums.max(axis=-1), 0.0))
    index = (sums > aim[..., None]).argmax(axis=-1)
    total, mass = (jnp.take_along_axis(x, index[..., None], axis=-1)[..., 0] for x in (sums, masses))
    return index, aim - (total - mass)
