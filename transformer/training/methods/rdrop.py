"""R-Drop (Liang et al. 2021): two passes with other dropout masks should predict the same."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config.options import Config
from transformer.model.parameters import Variables
from transformer.training.cross_entropy import Sums, at_targets, less_at_targets, sums_in_slices
from transformer.training.objective import Batch, Context, Loss, Objective, TranslationObjective


def rdrop_objective(config: Config, plain: TranslationObjective) -> Objective:
    """The mean cross-entropy of two passes, plus alpha / 2 times their divergence, (KL(p || q) + KL(q || p))
    / 2, of each target token: half of Liang et al. 2021, Eq. 4. In evaluation it is `plain`.

    The metrics are those of `plain` in the first pass, and `divergence`.
    """

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        if context.deterministic:
            return plain(model, variables, batch, context)
        twice = {name: jnp.concatenate([x, x]) for name, x in batch.items()}
        (hidden, table), sown = plain.factors(model, variables, twice, context)
        targets = batch["target"]
        is_token = (targets != model.config.special.pad).astype(jnp.float32)  # type: ignore[attr-defined]
        first, second = jnp.split(hidden, 2)
        loss_of_slice = functools.partial(loss_and_grad, plain.smoothing, config.rdrop.weight)
        sums = sums_in_slices(loss_of_slice, table, (first, second), targets, is_token)
        total = sums.pop("loss")
        weight = is_token.sum()
        metrics = {name: (jax.lax.stop_gradient(value), weight) for name, value in sums.items()}
        return Loss(total, weight, metrics, **sown)

    return objective


def loss_and_grad(
    smoothing: float,
    alpha: float,
    platform: str,
    logits: tuple[Float[Array, "*time v"], ...],
    targets: Int[Array, "*time"],
    is_token: Float[Array, "*time"],
) -> tuple[Sums, tuple[Float[Array, "*time v"], ...]]:
    """Sums over words, and the gradients of the loss with respect to the logits of the two passes."""
    (p, log_p), (q, log_q) = map(_softmax, logits)
    ratio = log_p - log_q
    from_p, from_q = (p * ratio).sum(axis=-1), -(q * ratio).sum(axis=-1)  # KL(p || q), KL(q || p)
    divergence = (from_p + from_q) / 2

    others = smoothing / (p.shape[-1] - 1)
    first, second = (at_targets(platform, x, targets) for x in (log_p, log_q))
    loss = -(1 - smoothing - others) * (first + second) / 2
    if smoothing:
        loss -= others * (log_p + log_q).sum(axis=-1) / 2
    sums = {
        "loss": loss + alpha / 2 * divergence,
        "nll": -first,
        "correct": (first >= log_p.max(axis=-1)).astype(jnp.float32),
        "divergence": divergence,
    }

    def gradient(p: Array, q: Array, ratio: Array, divergence: Array) -> Array:
        entropy = is_token[..., None] / 2
        apart = alpha / 4 * is_token[..., None]
        of_logits = (p - others) * entropy + (p * (1 + ratio - divergence[..., None]) - q) * apart
        return less_at_targets(platform, of_logits, targets, (1 - smoothing - others) * is_token / 2)

    gradients = gradient(p, q, ratio, from_p), gradient(q, p, -ratio, from_q)
    return {name: (values * is_token).sum() for name, values in sums.items()}, gradients


def _softmax(logits: Float[Array, "*time v"]) -> tuple[Float[Array, "*time v"], Float[Array, "*time v"]]:
    """Probabilities and their logarithms, with one exponential for both."""
    highest = logits.max(axis=-1, keepdims=True)
    exponentials = jnp.exp(logits - highest)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / total, logits - highest - jnp.log(total)
