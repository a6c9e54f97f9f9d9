"""The loss of labels."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from transformer.config import Config
from transformer.model.parameters import Variables
from transformer.systems.tagging.model import TaggingModel
from transformer.training.cross_entropy import output_cross_entropy
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training

NO_LABEL = -1
"""At positions that have no label: all but the first piece of each word."""


def tagging_objective(config: Config) -> Objective:
    """Label-smoothed cross-entropy of the labels.

    The batch has `source`, ids `[rows, length]`, and `labels`, indices of labels of the same shape, with
    `NO_LABEL` where there is none. The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and
    `correct`, whether the label had the highest logit, both of each labelled word.
    """
    smoothing = config.training.label_smoothing

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        def run(model: TaggingModel) -> tuple[Array, Array]:
            return model.output_factors(model.hidden(batch["source"], deterministic=context.deterministic))

        outputs, sown = apply_training(model, variables, context, rngs=context.rngs("dropout"), method=run)
        states, table = outputs
        weights = (batch["labels"] != NO_LABEL).astype(jnp.float32)
        labels = jnp.maximum(batch["labels"], 0)
        loss, nll, correct = output_cross_entropy(states, table, labels, weights, smoothing)
        weight = weights.sum()
        return Loss(loss, weight, {"nll": (nll, weight), "correct": (correct, weight)}, **sown)

    return objective
