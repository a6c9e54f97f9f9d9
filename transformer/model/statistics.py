"""Running statistics of modules, of their activations or of gradients that reach them; and what modules sow.

A statistic is a sum and a count, so that it is the same however a batch is split over devices and slices. The
training step (`transformer.training.step`) adds the sums up and updates each running mean once. A module has
one by `running_mean` or `running_gradient` (`transformer.model.variants.normalizations`). Collections:

    statistics            running means, of what `running_mean` was given
    gradient_statistics   running means of gradients, see `running_gradient`
    sums                  the `Sums` of one batch; mutable in training
    probes                `Sums` of zeros, whose gradients are the `Sums` of one batch; given in training
    intermediates         what modules sow on request, such as attention weights

A pass counts in the running means if "sums" is mutable in it; other passes only read them. The sum and the
count of a statistic of gradients both come from the backward pass, so they belong together whatever is
differentiated: if several passes count, the mean is over the positions of all of them.
"""

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from transformer.model.parameters import Variables

STATISTICS, GRADIENTS, SUMS, PROBES = "statistics", "gradient_statistics", "sums", "probes"
INTERMEDIATES = "intermediates"


@struct.dataclass
class Sums:
    """A statistic of one batch."""

    total: Float[Array, "..."]
    count: Float[Array, ""]
    momentum: float = struct.field(pytree_node=False)
    """Share of the old running mean in the new one."""

    def update(self, mean: Float[Array, "..."]) -> Float[Array, "..."]:
        """The running mean after this batch."""
        new = self.total / jnp.maximum(self.count, 1e-20)
        return jnp.where(self.count > 0, self.momentum * mean + (1 - self.momentum) * new, mean)


_REPLICAS: ContextVar[str | None] = ContextVar("replicas", default=None)


@contextlib.contextmanager
def replicas(axis_name: str | None) -> Iterator[None]:
    """Programs traced in this context run once for each replica on this axis."""
    token = _REPLICAS.set(axis_name)
    try:
        yield
    finally:
        _REPLICAS.reset(token)


def over_replicas(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The sum over all replicas, for models that need the statistics of the whole batch at once. (Slices of
    gradient accumulation come one after another: such models have to refuse them.)"""
    axis = _REPLICAS.get()
    return jax.lax.psum(x, axis) if axis else x


def layers_sown(intermediates: Variables, stack: str) -> list[Variables]:
    """What the layers of a stack, such as "decoder", have sown, in their order."""
    names = [name for name in intermediates if re.fullmatch(f"{stack}_[0-9]+", name)]
    return [intermediates[f"{stack}_{layer}"] for layer in range(len(names))]
