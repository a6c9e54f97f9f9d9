"""Dropout (section 5.4), with random bits that are cheap to compute."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate)."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "..."], deterministic: bool) -> Float[Array, "..."]:
        if deterministic or self.rate == 0:
            return x
        kept = keep_mask(self.make_rng("dropout"), self.rate, x.shape)
        return jnp.where(kept, x / (1 - self.rate), 0).astype(x.dtype)


def keep_mask(key: Array, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """True with probability 1 - rate, up to 2^-17: each element uses sixteen bits.

    The bits are a hash of the element's index (two rounds of multiply and xor-shift, keyed by both words of
    the key). Dropout does not need the guarantees of jax.random's threefry, which is slower.
    """
    first, second = jax.random.key_data(key).astype(jnp.uint32)[-2:]
    size = math.prod(shape)
    bits = jnp.arange((size + 1) // 2, dtype=jnp.uint32) * np.uint32(0x9E3779B9) + first
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15) ^ second) * np.uint32(0x846CA68B)
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    bits ^= bits >> 15
    halves = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(-1)
    return halves[:size].reshape(shape) >= round(rate * 2**16)
