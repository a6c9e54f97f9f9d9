"""The variables of the model that a config describes."""

from dataclasses import replace
from typing import Any

from transformer.config import Config
from transformer.model.parameters import Declarations, Variables, declarations, shapes_of
from transformer.systems.mistakes import mistakes_named
from transformer.systems.system import System


def with_any_sizes(config: Config) -> Config:
    """A config that has sizes where the corpus will decide them, for what does not depend on these: the names
    of parameters, the number of layers."""
    model = config.model
    open_sizes: dict[str, Any] = {
        name: 8
        for name in model.FROM_DATA
        if name != "target_vocab_size" and not getattr(model, name)  # which is 0 for one vocabulary
    }
    return replace(config, model=replace(model, **open_sizes))


def model_shapes(system: System, config: Config) -> Variables:
    """The shapes of the model's variables, without allocating them."""
    with mistakes_named(config.system):
        return shapes_of(system.model(config.model), system.task.example(config))


def declared_parameters(system: System, config: Config) -> Declarations:
    """The declaration of each of the model's parameters."""
    with mistakes_named(config.system):
        return declarations(system.model(config.model), system.task.example(config))
