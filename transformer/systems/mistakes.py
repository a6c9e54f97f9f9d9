"""Mistakes in the model or objective of a system from outside, named in a sentence."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

import flax
import jax
import optax

from transformer.runtime.errors import UserError, first_line
from transformer.systems.registry import is_from_outside

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
