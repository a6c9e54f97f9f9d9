"""Where a program runs: the placement of activations under a mesh, and the kind of device."""

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar

import flax.linen as nn
import jax
from jaxtyping import Array, Float


def by_rows(x: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
    """Returns x, under a mesh sharded along its rows only, so that the compiler gathers parameters and not
    activations."""
    return nn.with_logical_constraint(x, ("rows", None, None))


def shards_of(name: str = "rows") -> int:
    """The number of shards of a batch's rows, or of another logical axis, under the current mesh; 1 without a
    mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = dict(nn.get_logical_axis_rules()).get(name) or ()
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


_PLATFORM: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """The kind of device that the program being traced is for: "cpu", "gpu" or "tpu". Where both variants can
    be traced, `jax.lax.platform_dependent` is the better choice."""
    return _PLATFORM.get() or jax.default_backend()


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """Programs traced in this context are compiled for another machine than this one
    (`transformer.training.plan`)."""
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)
