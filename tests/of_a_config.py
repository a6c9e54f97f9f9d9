"""What a config describes, with its system looked up: in the package a command does that once."""

from collections.abc import Callable
from typing import Any

from transformer.config.options import Config
from transformer.plan.jobs import Job
from transformer.systems import parameters
from transformer.systems import system as decided
from transformer.systems.registry import find_system
from transformer.trainer import checks
from transformer.trainer.resolved import Resolved
from transformer.training.methods import registry
from transformer.training.objective import Objective


def check_config(config: Config, but: tuple[Callable[..., None], ...] = ()) -> None:
    """All checks of a config, except for some, and those that need the teacher that it lacks."""
    untaught = bool(getattr(config.model, "untaught", ""))
    for check in checks.OF_CONFIG:
        if check not in but and not (untaught and check is checks.check_replacing):
            check(Resolved(config, find_system(config.system)))


def objective_of(config: Config, load_teacher: Callable[..., Any], spell: Callable[..., str]) -> Objective:
    """The objective, after the checks of its methods."""
    check_config(config, but=(checks.check_types, checks.check_idle_options))
    return registry.objective_of(find_system(config.system), config, load_teacher, spell)


def model_shapes(config: Config) -> Any:
    """The shapes of the model's variables."""
    return parameters.model_shapes(find_system(config.system), config)


def declared_parameters(config: Config) -> Any:
    """The declaration of each parameter."""
    return parameters.declared_parameters(find_system(config.system), config)


def decided_for(config: Config, platform: str) -> Config:
    """The config with what depends on the kind of device."""
    return decided.decided_for(find_system(config.system), config, platform)


def job_of(config: Config) -> Job:
    """What `--plan` lowers."""
    return Job.of(find_system(config.system), config)
