"""Masked language models."""

from transformer.systems.masked_language_model.model import MaskedLanguageModel
from transformer.systems.masked_language_model.objective import masked_lm_objective
from transformer.systems.masked_language_model.task import MaskedLanguageModelling
from transformer.systems.system import System

SYSTEM = System(
    model=MaskedLanguageModel,
    objective=lambda config, _: masked_lm_objective(config),
    task=MaskedLanguageModelling,
)
