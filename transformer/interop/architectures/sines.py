"""Stored tables of sinusoids. Some families have all sines, then all cosines; here they are interleaved, as
in the paper."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from transformer.model.positions import sinusoids
from transformer.runtime.errors import UserError


def interleaved_order(d_model: int) -> np.ndarray:
    """For each coordinate here, its index there."""
    return np.arange(d_model).reshape(2, -1).T.reshape(-1)


def interleaved(count: int, d_model: int) -> np.ndarray:
    """The sinusoids of the first `count` positions as in the paper, `[count, d_model]`."""
    return np.array(sinusoids(jnp.arange(count), d_model))


def sines_then_cosines(count: int, d_model: int) -> np.ndarray:
    """The same, all sines first."""
    return interleaved(count, d_model)[:, np.argsort(interleaved_order(d_model))]


def check_sinusoids(
    name: str,
    stored: np.ndarray | None,
    d_model: int,
    table: Callable[[int, int], np.ndarray] = sines_then_cosines,
    first: int = 0,
    tolerance: float = 1e-3,
) -> None:
    """Compares a stored table of positions, if there is one, with that which is computed.

    Args:
      name: of the tensor.
      stored: the tensor, `[positions, d_model]`.
      d_model: the width of the model.
      table: computes it.
      first: the first position that is compared.
      tolerance: the largest difference of two numbers.

    Raises:
      UserError: it is another table.
    """
    if stored is None:
        return
    if stored.ndim != 2 or stored.shape[1] != d_model:
        raise UserError(f"{name} has shape {list(stored.shape)}, not rows of {d_model}")
    if not np.abs(stored - table(*stored.shape))[first:].max(initial=0) <= tolerance:
        raise UserError(f"{name} is not made of sinusoids, which are the positions supported")
