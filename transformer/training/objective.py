"""What training minimises: label-smoothed cross-entropy (section 5.4), as sums over a batch."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Batch = dict[str, Int[Array, "rows _"]]
"""source and target ids, each sentence closed by <eos>, then <pad>; packed rows also carry
source_segments and target_segments (which sentence of its row a token belongs to, from 1)."""

Metrics = dict[str, Float[Array, ""]]

Objective = Callable[
    [nn.Module, Any, Batch, Array | None, Int[Array, ""]],
    tuple[Float[Array, ""], Float[Array, ""], Metrics, Any],
]
"""(model, variables, batch, rng, step) -> (loss_sum, weight, metrics, variables).

Sums, not means: added over devices, hosts and slices they give the same loss however a batch is
spread. rng None means no dropout. The step serves annealed objectives; the variables come back for
models that carry more than parameters.
"""


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


def shift_right(
    target: Int[Array, "b t"], bos: int, segments: Int[Array, "b t"] | None = None
) -> Int[Array, "b t"]:
    """What the decoder is given: the target one step late, <bos> before every sentence."""
    shifted = jnp.pad(target, ((0, 0), (1, 0)), constant_values=bos)[:, :-1]
    if segments is None:
        return shifted
    first = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return jnp.where(first, bos, shifted)


def translation_objective(smoothing: float) -> Objective:
    """Label-smoothed cross-entropy of the target given the source, with teacher forcing.

    The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and `correct`, how many
    tokens had the highest logit; both are sums over the words of the batch, as the weight counts.
    """

    def objective(
        model: nn.Module, variables: Any, batch: Batch, rng: Array | None, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""], Metrics, Any]:
        special = model.config.special  # type: ignore[attr-defined]
        target = batch["target"]
        segments = None
        if "target_segments" in batch:
            segments = (batch["source_segments"], batch["target_segments"])
        logits: Array = model.apply(  # type: ignore[assignment]
            variables,
            batch["source"],
            shift_right(target, special.bos, segments and segments[1]),
            segments=segments,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )
        words = (target != special.pad).astype(jnp.float32)
        loss = jnp.sum(cross_entropy(logits, target, smoothing) * words)
        plain = jax.lax.stop_gradient(logits)
        metrics = {
            "nll": jnp.sum(cross_entropy(plain, target) * words),
            "correct": jnp.sum((plain.argmax(-1) == target) * words),
        }
        return loss, words.sum(), metrics, variables

    return objective
