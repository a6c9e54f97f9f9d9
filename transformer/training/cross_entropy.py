"""Label-smoothed cross-entropy (section 5.4), from logits or directly from the decoder's hidden states.

The logits, `[tokens, vocabulary]`, are the largest array of a training step. Writing and rereading them for
the softmax, the loss and its gradient takes most of a small model's step on a CPU. `output_cross_entropy`
computes them in slices instead. If a mesh shards the rows (`p` shards), each shard sums its own gradient of
the table, so nothing is communicated between slices.
"""

import functools
import math
from collections.abc import Callable
from typing import TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.model.placement import shards_of_rows

SLICE = {"cpu": 2**22, "default": 2**25}
"""Number of logits in memory at a time: on a CPU a few caches full; elsewhere enough to use the device."""


def cross_entropy(
    logits: Float[Array, "*time v"], targets: Int[Array, "*time"], smoothing: float = 0.0
) -> Float[Array, "*time"]:
    """-sum_k q(k) log p(k) with q(target) = 1 - smoothing and q(k) = smoothing / (K-1) for the others.

    It needs only the logsumexp, the target's logit and the sum of all logits, and no one-hot or log-softmax.
    """
    logits = logits.astype(jnp.float32)
    others = smoothing / (logits.shape[-1] - 1)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    loss = normaliser - (1 - smoothing - others) * chosen
    return loss - others * logits.sum(axis=-1) if smoothing else loss


T = TypeVar("T")
Sums = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]
"""Sums over the tokens of a batch: the loss, the unsmoothed loss, and the number of targets that had the
highest logit (ties count)."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def output_cross_entropy(
    hidden: Float[Array, "b t m"],
    table: Float[Array, "v m"],
    targets: Int[Array, "b t"],
    weights: Float[Array, "b t"],
    smoothing: float,
) -> Sums:
    """The weighted sums of `cross_entropy(hidden @ table.T, targets, smoothing)`, in time slices.

    The gradient of a slice is computed together with its logits, so nothing is recomputed. Only the first
    of the sums has a gradient, with respect to `hidden` and `table`.
    """

    def on(platform: str, hidden: Array, table: Array, targets: Array, weights: Array) -> Sums:
        near = _at_hand(table, hidden)
        _, sums = jax.lax.scan(
            lambda none, slice_: (none, _slice(*slice_, near, smoothing, platform)[0]),
            None,
            _time_slices(hidden, targets, weights, table.shape[0], platform),
        )
        return jax.tree.map(jnp.sum, sums)

    return _by_platform(on, hidden, table, targets, weights)


def _by_platform(on: Callable[..., T], *arrays: Array) -> T:
    """`on(platform, *arrays)` for the platform that the program is compiled for, one of `SLICE`."""
    variants = {platform: functools.partial(on, platform) for platform in SLICE}
    found: T = jax.lax.platform_dependent(*arrays, **variants)
    return found


def _forward(
    hidden: Array, table: Array, targets: Array, weights: Array, smoothing: float
) -> tuple[Sums, tuple[Array, Array]]:
    on = functools.partial(_sums_and_gradients, smoothing)
    return _by_platform(on, hidden, table, targets, weights)


def _sums_and_gradients(
    smoothing: float, platform: str, hidden: Array, table: Array, targets: Array, weights: Array
) -> tuple[Sums, tuple[Array, Array]]:
    near = _at_hand(table, hidden)

    def add(table_gradients: Array, slice_: tuple[Array, Array, Array]) -> tuple[Array, tuple[Sums, Array]]:
        sums, gradient = _slice(*slice_, near, smoothing, platform)
        gradient = gradient.astype(hidden.dtype)
        exact = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        # the longer axis last, so that a CPU has to transpose the smaller operand
        table_gradients += exact("pbtm,pbtv->pmv", slice_[0], gradient)
        return table_gradients, (sums, exact("pbtv,vm->pbtm", gradient, near))

    slices = _time_slices(hidden, targets, weights, table.shape[0], platform)
    zeros = nn.with_logical_constraint(
        jnp.zeros((len(slices[0][0]), *table.T.shape), jnp.float32), ("rows", None, "vocabulary")
    )
    table_gradients, (sums, gradients) = jax.lax.scan(add, zeros, slices)
    gradient = jnp.moveaxis(gradients, 0, 2).reshape(hidden.shape[0], -1, hidden.shape[2])
    gradient = gradient[:, : hidden.shape[1]].astype(hidden.dtype)
    # fused with this transpose, CPUs do not support the product in bfloat16 (JAX 0.12)
    table_gradient = jax.lax.optimization_barrier(table_gradients.sum(axis=0)).T
    return jax.tree.map(jnp.sum, sums), (gradient, table_gradient)


def _backward(
    smoothing: float, gradients: tuple[Array, Array], cotangents: Sums
) -> tuple[Array, Array, None, None]:
    hidden, table = gradients
    return (hidden * cotangents[0]).astype(hidden.dtype), table * cotangents[0], None, None


output_cross_entropy.defvjp(_forward, _backward)


def _at_hand(table: Float[Array, "v m"], hidden: Array) -> Float[Array, "v m"]:
    """The table in the dtype of `hidden`, gathered once instead of for every slice."""
    return nn.with_logical_constraint(table.astype(hidden.dtype), ("vocabulary", None))


def _time_slices(
    hidden: Array, targets: Array, weights: Array, vocabulary: int, platform: str
) -> tuple[Array, Array, Array]:
    """The arrays as [slices, shards, b, width, ...]: the rows of each shard, in slices of the time axis."""
    (rows, time), places = targets.shape, shards_of_rows()
    slices = math.ceil(time / max(1, SLICE[platform] // (rows // places * vocabulary)))
    width = math.ceil(time / slices)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, slices * width - time)) + ((0, 0),) * (x.ndim - 2))
        x = jnp.moveaxis(x.reshape(places, rows // places, slices, width, *x.shape[2:]), 2, 0)
        return nn.with_logical_constraint(x, (None, "rows", *(None,) * (x.ndim - 2)))

    return cut(hidden), cut(targets), cut(weights)


def _slice(
    hidden: Array, targets: Array, weights: Array, table: Array, smoothing: float, platform: str
) -> tuple[Sums, Float[Array, "p b t v"]]:
    """The sums of one slice, and the gradient of its logits: weight * (softmax - q).

    A CPU reads and changes the logits of the targets only. Accelerators compare all ids with the targets,
    which needs no separate pass: they are slow to address single elements (a TPU: one after the other).
    """
    logits = jnp.einsum("pbtm,vm->pbtv", hidden, table, preferred_element_type=jnp.float32)
    others = smoothing / (logits.shape[-1] - 1)
    highest = logits.max(axis=-1)
    exponentials = jnp.exp(logits - highest[..., None])
    total = exponentials.sum(axis=-1)
    normaliser = jnp.log(total) + highest
    if platform == "cpu":
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    else:
        correct = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1) == targets[..., None]
        chosen = jnp.where(correct, logits, 0).sum(axis=-1)
    loss = normaliser - (1 - smoothing - others) * chosen
    if smoothing:
        loss -= others * logits.sum(axis=-1)
    sums = (
        (weights * loss).sum(),
        (weights * (normaliser - chosen)).sum(),
        (weights * (chosen >= highest)).sum(),
    )

    gradient = exponentials * (weights / total)[..., None] - (others * weights)[..., None]
    excess = (1 - smoothing - others) * weights
    if platform == "cpu":
        return sums, gradient.at[(*jnp.indices(targets.shape), targets)].add(-excess)
    return sums, gradient - jnp.where(correct, excess[..., None], 0)
