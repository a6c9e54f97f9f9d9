"""Language models."""

from transformer.decoding.forced import forced_scores
from transformer.decoding.search import AutoregressiveSearch, limits_of_options
from transformer.systems.language_model.model import LanguageModel
from transformer.systems.language_model.objective import initial_memory, language_model_objective
from transformer.systems.language_model.task import LanguageModelling
from transformer.systems.system import System

SYSTEM = System(
    model=LanguageModel,
    objective=lambda config, _: language_model_objective(config),
    search=AutoregressiveSearch(limits=limits_of_options),
    scores=forced_scores,
    task=LanguageModelling,
    carry=initial_memory,
)
