"""Dropout (section 5.4), with random bits that are cheap to compute."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from transformer.model.parameters import platform


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate)."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "..."], deterministic: bool) -> Float[Array, "..."]:
        if deterministic or self.rate == 0:
            return x
        keep = keep_mask(self.key(), self.rate, x.shape)
        return jnp.where(keep, x / (1 - self.rate), 0).astype(x.dtype)

    def key(self) -> Array:
        """The random key."""
        return self.make_rng("dropout")


def keep_mask(key: Array, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """True with probability 1 - rate, up to 2^-17: each element uses sixteen bits.

    The bits are a hash of the element's index (two rounds of multiply and xor-shift, keyed by both words of
    the key). Dropout does not need the guarantees of jax.random's threefry, which is slower.
    """
    first, second = jax.random.key_data(key).astype(jnp.uint32)[-2:]
    if platform() != "cpu" and shape and shape[-1] % 2 == 0:
        return _keep_mask_by_element(first, second, rate, shape)
    size = math.prod(shape)
    bits = hashed(jnp.arange((size + 1) // 2, dtype=jnp.uint32), first, second)
    halves = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(-1)
    return halves[:size].reshape(shape) >= round(rate * 2**16)


def _keep_mask_by_element(
    first: UInt32[Array, ""], second: UInt32[Array, ""], rate: float, shape: tuple[int, ...]
) -> Bool[Array, "..."]:
    """The same mask, for accelerators: each element computes the bits of its pair, which costs them less than
    to take pairs apart."""

    def iota(axis: int) -> Array:
        return jax.lax.broadcasted_iota(jnp.uint32, shape, axis)

    pair = jnp.zeros(shape, jnp.uint32)
    last = len(shape) - 1
    for axis, size in enumerate(shape):
        pair = pair * np.uint32(size // 2 if axis == last else size) + (iota(axis) >> int(axis == last))
    bits = hashed(pair, first, second)
    halves = jnp.where(iota(last) % 2 == 0, bits & np.uint32(0xFFFF), bits >> 16)
    return halves >= np.uint32(round(rate * 2**16))


def hashed(
    index: UInt32[Array, "..."], first: UInt32[Array, ""], second: UInt32[Array, ""]
) -> UInt32[Array, "..."]:
    """Random bits for each index, keyed by two words."""
    bits = index * np.uint32(0x9E3779B9) + first
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15) ^ second) * np.uint32(0x846CA68B)
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    return bits ^ (bits >> 15)
