"""Taggers."""

from transformer.systems.system import System
from transformer.systems.tagging.model import TaggingModel
from transformer.systems.tagging.objective import tagging_objective
from transformer.systems.tagging.search import tagging_search
from transformer.systems.tagging.task import Tagging

SYSTEM = System(
    model=TaggingModel,
    objective=lambda config, _: tagging_objective(config),
    search=tagging_search,
    task=Tagging,
)
