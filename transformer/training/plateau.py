"""A learning rate that falls when the score of the evaluations no longer improves. What that depends on is
part of the optimizer's state, and so of a checkpoint."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from transformer.config.training import OptimizerConfig


class PlateauState(NamedTuple):
    """The evaluations so far."""

    scale: Float[Array, ""]
    """Factor on the learning rate."""
    best: Float[Array, "2"]
    """The best evaluation: its merit, and minus its loss."""
    waited: Int[Array, ""]
    """Number of evaluations since the best one, or since the rate fell."""


def scale_by_plateau() -> optax.GradientTransformation:
    """Multiplies updates by the scale of its state, which `after_evaluation` changes."""

    def init(params: optax.Params) -> PlateauState:
        return PlateauState(jnp.ones(()), jnp.full((2,), -jnp.inf), jnp.zeros((), jnp.int32))

    def update(
        updates: optax.Updates, state: PlateauState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, PlateauState]:
        return jax.tree.map(lambda x: x * state.scale.astype(x.dtype), updates), state

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]  # its state is a tuple


def after_evaluation(state: Any, standing: tuple[float, float], config: OptimizerConfig) -> Any:
    """The optimizer's state after an evaluation, each array placed as it was.

    Args:
      state: of an optimizer that has `scale_by_plateau` somewhere.
      standing: merit of the evaluation, and minus its loss: the higher, the better.
      config: the factor, and the number of evaluations to wait.
    """
    current = np.asarray(standing, np.float32)

    def observed(part: Any) -> Any:
        if not isinstance(part, PlateauState):
            return part
        scale, best, waited = (np.asarray(x) for x in part)
        if tuple(current) > tuple(best):
            best, waited = current, np.zeros_like(waited)
        elif waited + 1 < config.decay_patience:
            waited = waited + 1
        else:
            scale, waited = scale * np.float32(config.decay), np.zeros_like(waited)
        after = PlateauState(*map(np.asarray, (scale, best, waited)))  # type: ignore[arg-type]  # placed below
        return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), after, part)

    return jax.tree.map(observed, state, is_leaf=_is_plateau)


def scale_of(state: Any) -> float:
    """The factor on the learning rate, 1 without `scale_by_plateau`."""
    parts = jax.tree.leaves(state, is_leaf=_is_plateau)
    return next((float(part.scale) for part in parts if _is_plateau(part)), 1.0)


def _is_plateau(part: Any) -> bool:
    return isinstance(part, PlateauState)
