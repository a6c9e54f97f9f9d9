"""Label-smoothed cross-entropy (section 5.4), from logits or directly from the decoder's hidden states."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.training.slices import Sums, sums_in_slices

MOST = 70.0
"""Of exponents: exp(MOST) times the size of a vocabulary is finite in float32. A loss of so many nats is that
of a probability of 4e-31."""


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


def output_cross_entropy(
    hidden: Float[Array, "b t m"],
    table: Float[Array, "v m"],
    targets: Int[Array, "b t"],
    weights: Float[Array, "b t"],
    smoothing: float,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """The weighted sums of `cross_entropy(hidden @ table.T, targets, smoothing)`, of the unsmoothed loss, and
    of whether the target has the highest logit (ties count), in slices.

    Only the first has a gradient, with respect to `hidden` and `table`.
    """
    loss_and_grad = functools.partial(_loss_and_grad, smoothing)
    chosen = (hidden * table[targets].astype(hidden.dtype)).sum(axis=-1, dtype=jnp.float32)
    sums = sums_in_slices(loss_and_grad, table, (hidden,), targets, weights, jax.lax.stop_gradient(chosen))
    return sums["loss"], sums["nll"], sums["correct"]


def _loss_and_grad(
    smoothing: float,
    platform: str,
    logits: tuple[Float[Array, "*time v"]],
    targets: Int[Array, "*time"],
    weights: Float[Array, "*time"],
    near: Float[Array, "*time"],
) -> tuple[Sums, tuple[Float[Array, "*time v"]]]:
    """The sums of a slice, and the gradient of its logits: weight * (softmax - q).

    A CPU subtracts the highest logit before the exponential. Accelerators subtract `near`, the target's logit
    up to rounding, which is known before the product. So the compiler sums exponentials where it computes the
    logits, instead of in another pass. Exponents are at most `MOST`: where a logit is further above the
    target's, the gradient has the right sign only.
    """
    (scores,) = logits
    others = smoothing / (scores.shape[-1] - 1)
    base = scores.max(axis=-1) if platform == "cpu" else near
    exponents = scores - base[..., None]
    exponentials = jnp.exp(exponents if platform == "cpu" else jnp.minimum(exponents, MOST))
    total, highest, chosen, all_logits = _reduced(platform, exponentials, scores, targets)
    normaliser = jnp.log(total) + base
    if platform != "cpu":
        normaliser = jnp.maximum(normaliser, highest)  # where exponents were limited
    loss = normaliser - (1 - smoothing - others) * chosen
    if smoothing:
        loss -= others * all_logits
    sums = {
        "loss": (weights * loss).sum(),
        "nll": (weights * (normaliser - chosen)).sum(),
        "correct": (weights * (chosen >= highest)).sum(),
    }
    gradient = exponentials * (weights / total)[..., None] - (others * weights)[..., None]
    return sums, (less_at_targets(platform, gradient, targets, (1 - smoothing - others) * weights),)


def _reduced(
    platform: str,
    exponentials: Float[Array, "*time v"],
    logits: Float[Array, "*time v"],
    targets: Int[Array, "*time"],
) -> tuple[Float[Array, "*time"], ...]:
    """The sum of the exponentials; the highest logit, that of the target, and the sum of the logits.

    On NVIDIA GPUs one explicit reduction computes all of them; their compiler would read the logits three
    times.
    """
    if platform != "cuda":
        chosen = at_targets(platform, logits, targets)
        return exponentials.sum(axis=-1), logits.max(axis=-1), chosen, logits.sum(axis=-1)

    def both(x: tuple[Array, ...], y: tuple[Array, ...]) -> tuple[Array, ...]:
        return x[0] + y[0], jnp.maximum(x[1], y[1]), x[2] + y[2], x[3] + y[3]

    at_target = jnp.where(_is_target(logits, targets), logits, 0)
    none = tuple(jnp.array(value, logits.dtype) for value in (0, -jnp.inf, 0, 0))
    sums: tuple[Array, ...] = jax.lax.reduce(
        (exponentials, logits, at_target, logits), none, both, (logits.ndim - 1,)
    )
    return sums


def at_targets(
    platform: str, values: Float[Array, "*time v"], targets: Int[Array, "*time"]
) -> Float[Array, "*time"]:
    """The values of the targets.

    A CPU reads and changes these values only. Accelerators compare all ids with the targets, which needs no
    separate pass: they are slow to address single elements (a TPU: one after the other).
    """
    if platform == "cpu":
        return jnp.take_along_axis(values, targets[..., None], axis=-1)[..., 0]
    return jnp.where(_is_target(values, targets), values, 0).sum(axis=-1)


def less_at_targets(
    platform: str,
    values: Float[Array, "*time v"],
    targets: Int[Array, "*time"],
    excess: Float[Array, "*time"],
) -> Float[Array, "*time v"]:
    """The values, those of the targets reduced by the excess."""
    if platform == "cpu":
        return values.at[(*jnp.indices(targets.shape), targets)].add(-excess)
    return values - jnp.where(_is_target(values, targets), excess[..., None], 0)


def _is_target(values: Float[Array, "*time v"], targets: Int[Array, "*time"]) -> Array:
    return jax.lax.broadcasted_iota(targets.dtype, values.shape, values.ndim - 1) == targets[..., None]
