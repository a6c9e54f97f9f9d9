"""Which methods a config asks for, around the objective of its system."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer.config.options import Config
from transformer.runtime.errors import UserError
from transformer.systems.system import System
from transformer.training.methods.guidance import guided
from transformer.training.methods.rdrop import rdrop_objective
from transformer.training.methods.reward import Spell, reward_objective
from transformer.training.methods.scheduled import scheduled_objective
from transformer.training.objective import Objective, TranslationObjective


def objective_of(
    system: System, config: Config, load_teacher: Callable[[Path], Any], spell: Spell
) -> Objective:
    """The objective of a run: that of its system, with the methods of its config.

    Args:
      system: of the config.
      config: of the run. `transformer.trainer.checks` says which methods go together.
      load_teacher: as for `System.objective`.
      spell: the text of output ids (`TextTask.spell`).

    Raises:
      UserError: a method replaces cross-entropy, and the system has another objective.
    """
    objective = system.objective(config, load_teacher)
    makers: dict[str, Callable[[Config, TranslationObjective], Objective]] = {
        "--rdrop.weight": rdrop_objective,
        "--scheduled.share": scheduled_objective,
        "--reward.share": functools.partial(reward_objective, spell=spell, search=system.search),
    }
    for option in replacing(config):
        objective = makers[option](config, as_replaceable(objective, option, config))
    if config.guidance.weight:
        objective = guided(objective, system.required("attentions"), config.guidance)
    return objective


def replacing(config: Config) -> list[str]:
    """The options by which methods are on that replace cross-entropy."""
    switches = {
        "--rdrop.weight": config.rdrop.weight,
        "--scheduled.share": config.scheduled.share,
        "--reward.share": config.reward.share,
    }
    return [option for option, switch in switches.items() if switch]


def as_replaceable(objective: Objective, option: str, config: Config) -> TranslationObjective:
    """The cross-entropy that a method replaces.

    Raises:
      UserError: the objective is another one.
    """
    if not isinstance(objective, TranslationObjective):
        raise UserError(
            f"{option}: it is for systems trained by cross-entropy with given targets, and "
            f"{config.system} has its own objective; leave it out"
        )
    return objective
