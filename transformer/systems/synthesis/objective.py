"""The loss of frames and of the stop token."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from transformer.model.parameters import Variables
from transformer.systems.synthesis.model import Spoken, Synthesiser
from transformer.training.objective import Batch, Context, Loss, apply_training


def synthesis_objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
    """The mean absolute error of the frames before and after the post-net, and the cross-entropy of the stop
    token, in which the last step weighs more (Li et al. 2019, section 3.7).

    The metrics are `mel`, the error after the post-net, and `stop`, the cross-entropy of a step. The weight
    is the number of frames.
    """
    assert isinstance(model, Synthesiser)
    c = model.config
    target = read = batch["target"]

    if c.own_frames and (rngs := context.rngs("before", "where")):
        # not by `apply_training`: this pass does not count in running statistics
        dropout = {"dropout": rngs["before"]}
        before: Any = model.apply(variables, batch["source"], target, deterministic=False, rngs=dropout)
        replaced = jax.random.uniform(rngs["where"], model.target_mask(target).shape) < c.own_frames
        replaced = jnp.repeat(replaced, c.reduction, axis=1)[:, : target.shape[1], None]
        read = jnp.where(replaced & jnp.isfinite(target), jax.lax.stop_gradient(before.frames), target)
    outputs, sown = apply_training(
        model,
        variables,
        context,
        batch["source"],
        read,
        deterministic=context.deterministic,
        rngs=context.rngs("dropout"),
    )
    spoken = Spoken(*outputs)
    steps = model.target_mask(target)
    last = steps & ~jnp.pad(steps, ((0, 0), (0, 1)))[:, 1:]
    stop_errors = optax.sigmoid_binary_cross_entropy(spoken.stop, last.astype(jnp.float32))
    weights = steps * jnp.where(last, c.stop_weight, 1.0)
    stop = (stop_errors * weights).sum()
    refined = frames_error(spoken.refined, target)
    total = frames_error(spoken.frames, target) + refined + c.reduction * stop
    frames = jnp.isfinite(target[..., 0]).sum().astype(jnp.float32)
    metrics = {"mel": (refined, frames), "stop": (stop, steps.sum().astype(jnp.float32))}
    return Loss(total, frames, metrics, **sown)


def frames_error(frames: Float[Array, "b t bands"], target: Float[Array, "b t bands"]) -> Float[Array, ""]:
    """The sum over frames of the mean absolute error; infinities of the target are padding."""
    is_finite = jnp.isfinite(target)
    return jnp.where(is_finite, jnp.abs(frames - jnp.where(is_finite, target, 0)), 0).sum() / target.shape[-1]
