"""The placement of activations under a mesh."""

import math

import flax.linen as nn
import jax
from jaxtyping import Array, Float


def by_rows(x: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
    """Returns x, under a mesh sharded along its rows only, so that the compiler gathers parameters and not
    activations."""
    return nn.with_logical_constraint(x, ("rows", None, None))


def shards_of_rows() -> int:
    """The number of shards of a batch's rows under the current mesh; 1 without a mesh."""
    mesh, rules = jax.sharding.get_abstract_mesh(), dict(nn.get_logical_axis_rules())
    return math.prod(mesh.shape[axis] for axis in rules.get("rows") or ())
