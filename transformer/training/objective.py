"""Training objectives, as sums over a batch."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.model.encoder_decoder import shift_right
from transformer.training.cross_entropy import output_cross_entropy

Batch = dict[str, Int[Array, "rows _"]]
"""source and target ids, each sentence closed by <eos>, then <pad>; packed rows also have
source_segments and target_segments (the index of each token's sentence in its row, from 1)."""

Metrics = dict[str, Float[Array, ""]]

Objective = Callable[
    [nn.Module, Any, Batch, Array | None, Int[Array, ""]],
    tuple[Float[Array, ""], Float[Array, ""], Metrics, Any],
]
"""(model, variables, batch, rng, step) -> (loss_sum, weight, metrics, variables).

The results are sums, not means, so the loss does not depend on how a batch is split over devices, processes
and slices. rng None disables dropout. The step is for annealed objectives. Variables that are not parameters
(such as a moving average) are returned with changes; an update applies the mean of the changes over all
slices and devices, weighted like the loss.
"""


def translation_objective(smoothing: float) -> Objective:
    """Label-smoothed cross-entropy of the target given the source, with teacher forcing.

    The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and `correct`, the number of
    targets that had the highest logit. Both are sums over the target tokens; the weight is their number.
    """

    def objective(
        model: nn.Module, variables: Any, batch: Batch, rng: Array | None, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""], Metrics, Any]:
        special = model.config.special  # type: ignore[attr-defined]
        target = batch["target"]
        segments = None
        if "target_segments" in batch:
            segments = (batch["source_segments"], batch["target_segments"])
        words = (target != special.pad).astype(jnp.float32)
        factors = model.apply(
            variables,
            batch["source"],
            shift_right(target, special.bos, segments and segments[1]),
            segments=segments,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
            method=_output_factors,
        )
        loss, nll, correct = output_cross_entropy(*factors, target, words, smoothing)
        metrics = {"nll": nll, "correct": correct}
        return loss, words.sum(), metrics, variables

    return objective


def _output_factors(model: Any, *inputs: Any, **options: Any) -> tuple[Array, Array]:
    factors: tuple[Array, Array] = model.output_factors(model.hidden(*inputs, **options))
    return factors
