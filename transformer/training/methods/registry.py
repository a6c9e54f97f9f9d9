"""Which methods a config asks for, around the objective of its system."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array

from transformer.config import Config
from transformer.config.methods import check_idle
from transformer.model.statistics import INTERMEDIATES
from transformer.runtime.errors import UserError
from transformer.systems.registry import find_system
from transformer.systems.system import System
from transformer.training.methods.guidance import check_layers_and_heads, guided
from transformer.training.methods.rdrop import rdrop_objective
from transformer.training.methods.reward import reward_objective
from transformer.training.methods.rewards import Spell
from transformer.training.methods.scheduled import scheduled_objective
from transformer.training.objective import Objective, TranslationObjective

Maker = Callable[[Config, TranslationObjective], Objective]


def objective_of(config: Config, load_teacher: Callable[[Path], Any], spell: Spell) -> Objective:
    """The objective of a run: that of its system, with the methods of its config.

    Args:
      config: of the run.
      load_teacher: as for `System.objective`.
      spell: the text of output ids (`TextTask.spell`).

    Raises:
      UserError: methods do not go together, or with the system.
    """
    system = find_system(config.system)
    objective = system.objective(config, load_teacher)
    chosen = _chosen(config, system, spell)
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)}: each replaces cross-entropy; leave one of them out")
    for option, make in chosen.items():
        if not isinstance(objective, TranslationObjective):
            raise UserError(
                f"{option}: it is for systems trained by cross-entropy with given targets, and "
                f"{config.system} has an objective of its own; leave it out"
            )
        objective = make(config, objective)
    by_steps = config.scheduled.share and config.scheduled.predictions == "steps"
    if by_steps and not hasattr(system.model, "decode_own"):
        raise UserError(
            f"--scheduled.predictions steps: {config.system} cannot read its predictions step by step, "
            "use passes"
        )
    if config.guidance.weight:
        if system.attentions is None:
            raise UserError(f"--guidance.weight: {config.system} has no attention to a source; leave it out")
        objective = guided(objective, system.attentions, config.guidance)
    return objective


def check_methods(config: Config) -> None:
    """Raises UserError if methods do not go together, or with the system; if an option is for a method that
    is off; if attention that does not exist is to be guided. (It loads no teacher.)"""
    check_idle(config)
    if getattr(config.model, "teacher", None) is None:
        objective_of(config, lambda path: None, str)
    if config.guidance.layers or config.guidance.heads:
        check_layers_and_heads(config.guidance, _shape_of_attention(config))


def _shape_of_attention(config: Config) -> tuple[int, ...]:
    """That of the attention to the source, [layers, b, heads, t, s]."""
    system = find_system(config.system)
    model = system.model(config.model)

    def attention(*example: Any) -> Array:
        variables = model.init(jax.random.key(0), *example)
        _, sown = model.apply(variables, *example, mutable=[INTERMEDIATES])
        return system.required("attentions")(sown[INTERMEDIATES])

    shape: tuple[int, ...] = jax.eval_shape(attention, *system.task.example(config)).shape
    return shape


def _chosen(config: Config, system: System, spell: Spell) -> dict[str, Maker]:
    """By the option that switches a method on: the objective that replaces cross-entropy."""
    rewarded = functools.partial(reward_objective, spell=spell, search=system.search)
    methods: dict[str, tuple[float, Maker]] = {
        "--rdrop.weight": (config.rdrop.weight, rdrop_objective),
        "--scheduled.share": (config.scheduled.share, scheduled_objective),
        "--reward.share": (config.reward.share, rewarded),
    }
    return {option: make for option, (switch, make) in methods.items() if switch}
