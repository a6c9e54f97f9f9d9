"""Label-smoothed cross-entropy (section 5.4), of logits or straight from what precedes them.

The logits are the largest array of a training step, `[tokens, vocabulary]`: written and read again
for the softmax, the loss and its gradient they are the most of a small model's step on a CPU.
`output_cross_entropy` never holds more than a slice of them. Where the rows lie on several places of a
mesh (`p`), each adds up its own gradient of the table: between the slices nothing is sent.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.model.layers import shards_of_rows

SLICE = {"cpu": 2**22}
"""How many logits exist at a time: on a CPU a few caches full; elsewhere enough to be busy."""


def cross_entropy(
    logits: Float[Array, "*time v"], targets: Int[Array, "*time"], smoothing: float = 0.0
) -> Float[Array, "*time"]:
    """-sum_k q(k) log p(k) with q(target) = 1 - smoothing and the rest even over the K-1 others.

    No one-hot and no log-softmax is built: only the logsumexp, the target's logit and the sum of
    all logits are needed.
    """
    logits = logits.astype(jnp.float32)
    others = smoothing / (logits.shape[-1] - 1)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    loss = normaliser - (1 - smoothing - others) * chosen
    return loss - others * logits.sum(axis=-1) if smoothing else loss


Sums = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]
"""Over the words of a batch: the loss, the unsmoothed loss, and how many targets had the highest
logit (ties count)."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def output_cross_entropy(
    hidden: Float[Array, "b t m"],
    table: Float[Array, "v m"],
    targets: Int[Array, "b t"],
    weights: Float[Array, "b t"],
    smoothing: float,
) -> Sums:
    """The weighted sums of `cross_entropy(hidden @ table.T, targets, smoothing)`, in time slices.

    The gradient of a slice is computed while its logits are at hand, so nothing is computed twice.
    Only the first of the sums has a gradient, to `hidden` and `table`.
    """
    table = _at_hand(table, hidden)
    _, sums = jax.lax.scan(
        lambda none, slice_: (none, _slice(*slice_, table, smoothing)[0]),
        None,
        _time_slices(hidden, targets, weights, table.shape[0]),
    )
    return jax.tree.map(jnp.sum, sums)


def _forward(
    hidden: Array, table: Array, targets: Array, weights: Array, smoothing: float
) -> tuple[Sums, tuple[Array, Array]]:
    near = _at_hand(table, hidden)

    def add(table_gradients: Array, slice_: tuple[Array, Array, Array]) -> tuple[Array, tuple[Sums, Array]]:
        sums, gradient = _slice(*slice_, near, smoothing)
        gradient = gradient.astype(hidden.dtype)
        exact = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        # the longer axis last: it is the short one's operand that a CPU has to turn around
        table_gradients += exact("pbtm,pbtv->pmv", slice_[0], gradient)
        return table_gradients, (sums, exact("pbtv,vm->pbtm", gradient, near))

    slices = _time_slices(hidden, targets, weights, table.shape[0])
    zeros = nn.with_logical_constraint(
        jnp.zeros((len(slices[0][0]), *table.T.shape), jnp.float32), ("rows", None, "vocabulary")
    )
    table_gradients, (sums, gradients) = jax.lax.scan(add, zeros, slices)
    gradient = jnp.moveaxis(gradients, 0, 2).reshape(hidden.shape[0], -1, hidden.shape[2])
    gradient = gradient[:, : hidden.shape[1]].astype(hidden.dtype)
    # a product turned around at once is one that CPUs do not know in bfloat16 (JAX 0.12)
    table_gradient = jax.lax.optimization_barrier(table_gradients.sum(axis=0)).T
    return jax.tree.map(jnp.sum, sums), (gradient, table_gradient)


def _backward(
    smoothing: float, gradients: tuple[Array, Array], cotangents: Sums
) -> tuple[Array, Array, None, None]:
    hidden, table = gradients
    return (hidden * cotangents[0]).astype(hidden.dtype), table * cotangents[0], None, None


output_cross_entropy.defvjp(_forward, _backward)


def _at_hand(table: Float[Array, "v m"], hidden: Array) -> Float[Array, "v m"]:
    """The table as it is multiplied with: fetched once, and not for every slice."""
    return nn.with_logical_constraint(table.astype(hidden.dtype), ("vocabulary", None))


def _time_slices(
    hidden: Array, targets: Array, weights: Array, vocabulary: int
) -> tuple[Array, Array, Array]:
    """The arrays as [slices, places, b, width, ...]: of every place's rows a slice of the time."""
    (rows, time), places = targets.shape, shards_of_rows()
    most = SLICE.get(jax.default_backend(), 2**26)
    slices = math.ceil(time / max(1, most // (rows // places * vocabulary)))
    width = math.ceil(time / slices)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, slices * width - time)) + ((0, 0),) * (x.ndim - 2))
        x = jnp.moveaxis(x.reshape(places, rows // places, slices, width, *x.shape[2:]), 2, 0)
        return nn.with_logical_constraint(x, (None, "rows", *(None,) * (x.ndim - 2)))

    return cut(hidden), cut(targets), cut(weights)


def _slice(
    hidden: Array, targets: Array, weights: Array, table: Array, smoothing: float
) -> tuple[Sums, Float[Array, "p b t v"]]:
    """The sums of one slice, and the gradient of its logits: weight * (softmax - q)."""
    logits = jnp.einsum("pbtm,vm->pbtv", hidden, table, preferred_element_type=jnp.float32)
    others = smoothing / (logits.shape[-1] - 1)
    highest = logits.max(axis=-1)
    exponentials = jnp.exp(logits - highest[..., None])
    total = exponentials.sum(axis=-1)
    normaliser = jnp.log(total) + highest
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    loss = normaliser - (1 - smoothing - others) * chosen
    if smoothing:
        loss -= others * logits.sum(axis=-1)
    sums = (
        (weights * loss).sum(),
        (weights * (normaliser - chosen)).sum(),
        (weights * (chosen >= highest)).sum(),
    )

    gradient = exponentials * (weights / total)[..., None] - (others * weights)[..., None]
    at = (*jnp.indices(targets.shape), targets)
    return sums, gradient.at[at].add(-(1 - smoothing - others) * weights)
