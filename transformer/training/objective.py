"""What training minimises, as sums over a batch."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.model.encoder_decoder import shift_right
from transformer.training.cross_entropy import output_cross_entropy

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
spread. rng None means no dropout. The step serves annealed objectives. Variables that are not parameters
(a moving average, say) come back changed; an update applies the mean of the changes over all slices and
devices, weighted like the loss.
"""


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
