"""The variables of the model that a config describes, and mistakes in systems from outside, named in a
sentence."""

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import flax
import jax
import optax

from transformer.config.options import Config
from transformer.model.parameters import Declarations, Variables, declarations, shapes_of
from transformer.runtime.errors import UserError, first_line
from transformer.systems.registry import is_from_outside
from transformer.systems.system import System

# Mistakes in the model or objective of a system from outside, named in a sentence.


_OTHERS = str(Path(__file__).parents[1]), *(str(Path(x.__file__ or "").parent) for x in (flax, jax, optax))
"""The folders of code that is not the system's."""
_MISTAKES = (
    *(TypeError, ValueError, LookupError, AttributeError, AssertionError, NotImplementedError),
    flax.errors.FlaxError,
)


@contextlib.contextmanager
def mistakes_named(system: str) -> Iterator[None]:
    """While code of a system runs. Errors of the systems of this package remain what they are.

    Raises:
      UserError: the model or objective of a system from outside has failed.
    """
    try:
        yield
    except _MISTAKES as error:
        if not is_from_outside(system):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            f"{x.filename}, line {x.lineno}" for x in frames if not x.filename.startswith((*_OTHERS, "<"))
        ]
        where = f" ({lines[-1]})" if lines else ""
        raise UserError(
            f"system {system}: {type(error).__name__}: {first_line(error)}{where}. Its model must accept "
            "what its task's example gives, and its objective the fields of a batch"
        ) from error


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
