"""Learning-rate schedules and the optimizer (section 5.3), in optax; and a rate that falls when evaluations
no longer improve."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int

from transformer.config.ranges import instance
from transformer.config.training import OptimizerConfig
from transformer.model.parameters import Declarations
from transformer.runtime.errors import UserError
from transformer.training.parametrisation import Path, matches

if TYPE_CHECKING:
    from transformer.config.options import Config

# A learning rate that falls when the score of the evaluations no longer improves. What that depends on is
# part of the optimizer's state, and so of a checkpoint.


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


def learning_rate(config: OptimizerConfig, d_model: int, total_steps: int) -> optax.Schedule:
    """The learning rate of every update. Optax counts updates from 0, the paper from 1.

    paper: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (Eq. 3), times scale. That of plateau is
    the rate before it falls (`transformer.training.schedule`).

    Raises:
      UserError: it falls each epoch, and how many updates these have is not known yet.
    """
    warmup = config.warmup_steps
    falls = config.decay_steps or 1
    if config.schedule == "exponential" and config.decay_steps is None:
        raise UserError(
            "--optimizer.schedule exponential: how many updates an epoch has follows from the batches of the "
            "corpus, which is not read here: give --optimizer.decay-steps"
        )

    def paper(step: jax.Array) -> jax.Array:
        return config.scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)

    def inverse_sqrt(step: jax.Array) -> jax.Array:
        return config.peak * jnp.minimum(step / warmup, jnp.sqrt(warmup / step))

    def constant(step: jax.Array) -> jax.Array:
        return config.peak * jnp.minimum(step / warmup, 1.0)

    def cosine(step: jax.Array) -> jax.Array:
        done = jnp.clip((step - warmup) / max(total_steps - warmup, 1), 0.0, 1.0)
        return constant(step) * (1 + jnp.cos(jnp.pi * done)) / 2

    def exponential(step: jax.Array) -> jax.Array:
        return constant(step) * config.decay ** jnp.floor((step - 1) / falls)

    shape = {
        "paper": paper,
        "inverse_sqrt": inverse_sqrt,
        "cosine": cosine,
        "constant": constant,
        "exponential": exponential,
        "plateau": constant,
    }[config.schedule]
    return lambda count: shape(jnp.asarray(count + 1, jnp.float32))


def make_optimizer(config: "Config", declared: Declarations | None = None) -> optax.GradientTransformation:
    """Adam, Adafactor or Muon, after clipping, with decoupled weight decay on matrices, at the scheduled
    rate.

    Args:
      config: of a run.
      declared: the declarations of the model's parameters, which Muon needs
        (`transformer.model.parameters.declarations`).

    Raises:
      UserError: the length of training is given in epochs, and not yet in updates; Muon has no declarations.
    """
    from transformer.config.options import Config

    instance("config", config, Config)
    config.training.check_in_steps()
    c = config.optimizer
    rate = learning_rate(c, config.model.d_model, config.training.steps)

    def matrices(params: optax.Params) -> optax.Params:
        # attention biases have several axes (of heads), but are not matrices
        return jax.tree_util.tree_map_with_path(
            lambda path, x: x.ndim > 1 and not path[-1].key.endswith("bias"), params
        )

    return optax.chain(
        optax.clip_by_global_norm(c.clip_norm) if c.clip_norm else optax.identity(),
        _algorithm(c, declared),
        optax.add_decayed_weights(c.weight_decay, matrices) if c.weight_decay else optax.identity(),
        *([optax.stateless(_by_groups(c.factors))] if c.groups else []),
        optax.scale_by_learning_rate(rate),
        *([scale_by_plateau()] if c.schedule == "plateau" else []),
    )


def _algorithm(config: OptimizerConfig, declared: Declarations | None) -> optax.GradientTransformation:
    """What makes updates of gradients."""
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
    if config.algorithm != "muon":
        return adam if config.algorithm == "adam" else _adafactor()
    if declared is None:
        raise UserError(
            "make_optimizer: muon needs to know which parameters are matrices: give declared="
            "transformer.model.parameters.declarations(model, example)"
        )
    from transformer.training.muon import scale_by_muon_and

    return scale_by_muon_and(adam, declared, config.matrix_scale)


def _by_groups(factors: Sequence[tuple[str, float]]) -> Callable[..., optax.Updates]:
    """Updates times the factor of the last group that fits each parameter."""

    def factor(path: Path) -> float:
        return next((factor for name, factor in reversed(factors) if matches(name, path)), 1.0)

    def scaled(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        leaves = {path: update * factor(path) for path, update in flatten_dict(updates).items()}
        return unflatten_dict(leaves)

    return scaled


def _adafactor() -> optax.GradientTransformation:
    """The updates of Adafactor without momentum (Shazeer and Stern 2018, Algorithm 4), which are about as
    large as Adam's: the root mean square of each matrix's is at most 1."""
    return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0))
