"""The encoder with a linear layer to labels (Devlin et al. 2019, section 5.3), its loss, and the most
probable label of each word."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config.options import Config
from transformer.decoding.calls import Inputs, as_variables
from transformer.model.parameters import Variables
from transformer.model.stack import TransformerEncoder
from transformer.systems.tagging.options import TaggingConfig, TaggingDecodingConfig
from transformer.training.cross_entropy import output_cross_entropy
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training


class TaggingModel(TransformerEncoder):
    """Predicts a label at every position, from all tokens of a sentence."""

    config: TaggingConfig

    def __call__(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s v"]:
        """Logits of the labels at every position."""
        return self.output(self.hidden(source, deterministic=deterministic))

    def hidden(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s m"]:
        """The encoder's states, the input of `output`."""
        states: Float[Array, "b s m"] = self.encode(source, deterministic=deterministic).states
        return states


# The loss of labels.


NO_LABEL = -1
"""The label at positions that have none: all but the first piece of each word."""


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


# The most probable label at every position.


class Labels(NamedTuple):
    """The label of every position, also of those that have none."""

    indices: Int[Array, "b s"]
    probabilities: Float[Array, "b s"]
    """The probabilities of these labels."""


def tagging_search(
    model: TaggingModel,
    params: Variables,
    inputs: Inputs,
    lines: Int[Array, " b"],
    options: TaggingDecodingConfig,
) -> Labels:
    """The most probable label at every position.

    Args:
      inputs: `source`, ids, each sentence closed by <eos>, then <pad>.
    """
    return _search(model, params, inputs["source"])


@functools.partial(jax.jit, static_argnames="model")
def _search(model: TaggingModel, params: Variables, source: Int[Array, "b s"]) -> Labels:
    logits: Any = model.apply(as_variables(params), source)
    probabilities = jax.nn.softmax(logits, axis=-1)
    return Labels(probabilities.argmax(axis=-1), probabilities.max(axis=-1))
