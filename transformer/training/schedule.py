"""Learning-rate schedules and the optimizer (section 5.3), in optax."""

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax

from transformer.config.ranges import instance
from transformer.model.parameters import Declarations
from transformer.runtime.errors import UserError

if TYPE_CHECKING:
    from transformer.config.options import Config
    from transformer.config.training import OptimizerConfig


def stable_until(config: "OptimizerConfig", total_steps: int) -> int:
    """The last update before the learning rate of schedule stable begins to fall."""
    return total_steps - math.ceil(config.cooldown * total_steps)


def learning_rate(config: "OptimizerConfig", d_model: int, total_steps: int) -> optax.Schedule:
    """The learning rate of every update. Optax counts updates from 0, the paper from 1.

    paper: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (Eq. 3), times scale. That of plateau is
    the rate before it falls (`transformer.training.optimizers`).

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

    def stable(step: jax.Array) -> jax.Array:
        left = (total_steps - step) / max(total_steps - stable_until(config, total_steps), 1)
        return constant(step) * jnp.clip(left, 0.0, 1.0)

    def exponential(step: jax.Array) -> jax.Array:
        return constant(step) * config.decay ** jnp.floor((step - 1) / falls)

    shape = {
        "paper": paper,
        "inverse_sqrt": inverse_sqrt,
        "cosine": cosine,
        "stable": stable,
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
        (`transformer.model.declarations.declarations`).

    Raises:
      UserError: the length of training is given in epochs, and not yet in updates; Muon has no declarations.
    """
    from transformer.config.options import Config
    from transformer.training import optimizers  # what the paper does not have

    instance("config", config, Config)
    config.training.check_in_steps()
    c = config.optimizer
    rate = learning_rate(c, config.model.d_model, config.training.steps)
    algorithm = optax.scale_by_adam(c.beta1, c.beta2, c.epsilon)
    if c.algorithm == "adafactor":
        algorithm = optimizers.adafactor()
    elif c.algorithm == "muon":
        algorithm = optimizers.scale_by_muon_and(algorithm, declared, c.matrix_scale)

    def matrices(params: optax.Params) -> optax.Params:
        # attention biases have several axes (of heads), but are not matrices
        return jax.tree_util.tree_map_with_path(
            lambda path, x: x.ndim > 1 and not path[-1].key.endswith("bias"), params
        )

    return optax.chain(
        optax.clip_by_global_norm(c.clip_norm) if c.clip_norm else optax.identity(),
        algorithm,
        optax.add_decayed_weights(c.weight_decay, matrices) if c.weight_decay else optax.identity(),
        *([optax.stateless(optimizers.by_groups(c.factors))] if c.groups else []),
        optax.scale_by_learning_rate(rate),
        *([optimizers.scale_by_plateau()] if c.schedule == "plateau" else []),
    )
