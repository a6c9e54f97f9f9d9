"""Noise on the inputs of a decoder while it generates: outputs vary without sampling of tokens.

A search passes it in the collection "noise". Each row has its own key, so a sentence meets the same noise
whatever else is in the batch.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, UInt


@struct.dataclass
class Noise:
    """What is done to the embedded newest tokens."""

    keys: UInt[Array, "b words"]
    """The data of a random key for each row."""
    deviation: float = struct.field(pytree_node=False)
    """Of Gaussian noise, as a share of the root mean square of each input."""
    dropout: float = struct.field(pytree_node=False)
    """Share of the features that are zero; the others are scaled up."""
    generator: str = struct.field(pytree_node=False)
    """The kind of the keys."""

    def at(self, steps: Int[Array, " b"]) -> "Noise":
        """That of these steps."""

        def fold(key: Array, step: Array) -> Array:
            wrapped = jax.random.wrap_key_data(key, impl=self.generator)
            return jax.random.key_data(jax.random.fold_in(wrapped, step))

        return self.replace(keys=jax.vmap(fold)(self.keys, steps))  # type: ignore[attr-defined, no-any-return]

    def __call__(self, embedded: Float[Array, "b n m"]) -> Float[Array, "b n m"]:
        """The inputs with noise, another for each beam."""

        def one(key: Array, x: Array) -> Array:
            drop, add = jax.random.split(jax.random.wrap_key_data(key, impl=self.generator))
            keep = jax.random.bernoulli(drop, 1 - self.dropout, x.shape)
            size = jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))
            noise = self.deviation * size * jax.random.normal(add, x.shape)
            return jnp.where(keep, (x + noise) / (1 - self.dropout), 0).astype(x.dtype)

        return jax.vmap(one)(self.keys, embedded)
