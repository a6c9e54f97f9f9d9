"""Language models: the loss of running text, and the system."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from transformer.config.options import Config
from transformer.config.records import StreamConfig
from transformer.decoding.forced import forced_scores
from transformer.decoding.searches.search import AutoregressiveSearch, limits_of_options
from transformer.model.parameters import Variables
from transformer.systems.language_model.model import LanguageModel, Past
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.language_model.task import LanguageModelling
from transformer.systems.system import System
from transformer.training.cross_entropy import output_cross_entropy
from transformer.training.objective import Batch, Carry, Context, Loss, Objective, apply_training

# The loss of running text.


def initial_memory(config: Config, evaluating: bool) -> Carry:
    """The memory before the first segment, of training or of evaluation; empty if there is none."""
    model, data = config.model, config.data
    assert isinstance(model, LanguageModelConfig)
    assert isinstance(data, StreamConfig)
    memory = model.attended if evaluating else model.memory
    return Past.empty(model, data.rows, memory) if memory else ()


def language_model_objective(config: Config) -> Objective:
    """Label-smoothed cross-entropy of each token, given those before it in the segment and in the memory.

    The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and `correct`, both of each token;
    `bits`, the same in bits of each character, and `word_nll`, in nats of each word.
    """
    smoothing = config.training.label_smoothing

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, LanguageModel)
        past = context.carry or Past.empty(model.config, len(batch["source"]), 0)

        def run(model: LanguageModel) -> tuple[tuple[Array, Array], Past]:
            hidden, after = model.advance(batch["source"], past, context.deterministic)
            return model.output_factors(hidden), after

        ((hidden, table), after), sown = apply_training(
            model, variables, context, rngs=context.rngs("dropout"), method=run
        )
        is_token = (batch["target"] != model.config.special.pad).astype(jnp.float32)
        loss, nll, correct = output_cross_entropy(hidden, table, batch["target"], is_token, smoothing)
        weight = is_token.sum()
        metrics = {
            "nll": (nll, weight),
            "correct": (correct, weight),
            "bits": (nll / math.log(2), batch["characters"].sum()),
            "word_nll": (nll, batch["words"].sum()),
        }
        return Loss(loss, weight, metrics, carry=after if context.carry else (), **sown)

    return objective


SYSTEM = System(
    model=LanguageModel,
    objective=lambda config, _: language_model_objective(config),
    search=AutoregressiveSearch(limits=limits_of_options),
    scores=forced_scores,
    task=LanguageModelling,
    carry=initial_memory,
)
