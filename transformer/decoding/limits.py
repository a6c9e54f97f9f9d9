"""The maximum lengths of outputs."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int


@struct.dataclass
class Limits:
    """The maximum length of each output, counting <eos>."""

    each: Int[Array, " b"]
    """0 for a row that only pads the batch."""
    longest: int = struct.field(pytree_node=False)
    """An upper bound of all, on which the compiled program depends."""


def source_limits(source: Int[Array, "b s"], pad: int, extra_length: int, max_length: int | None) -> Limits:
    """The limits of translations, relative to the lengths of their sources."""
    longest = source.shape[1] + extra_length
    longest = max(1, longest if max_length is None else min(longest, max_length))
    lengths = (source != pad).sum(axis=1)
    return Limits(jnp.where(lengths > 0, jnp.clip(lengths + extra_length, 1, longest), 0), longest)
