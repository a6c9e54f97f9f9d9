"""The variables of the model that a config describes."""

import jax

from transformer.config import Config
from transformer.model.parameters import Declarations, Variables, declarations
from transformer.systems.mistakes import mistakes_named
from transformer.systems.system import System


def model_shapes(system: System, config: Config) -> Variables:
    """The shapes of the model's variables, without allocating them."""
    with mistakes_named(config.system):
        model = system.model(config.model)
        return jax.eval_shape(model.init, jax.random.key(0), *system.task.example(config))


def declared_parameters(system: System, config: Config) -> Declarations:
    """The declaration of each of the model's parameters."""
    with mistakes_named(config.system):
        return declarations(system.model(config.model), system.task.example(config))
