"""The loss of frames and of durations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from transformer.config import Config
from transformer.model.parameters import Variables
from transformer.systems.nonautoregressive_synthesis.durations import teacher_durations
from transformer.systems.nonautoregressive_synthesis.model import NonAutoregressiveSynthesiser, Spoken
from transformer.systems.synthesis.objective import frames_error
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training


def nonautoregressive_synthesis_objective(config: Config, load_teacher: Callable[[Path], Any]) -> Objective:
    """The mean absolute error of the frames before and after the post-net, and the squared error of log(1 +
    steps) of each token (Ren et al. 2019).

    The metrics are `mel`, the error after the post-net, and `duration`, the squared error. The weight is the
    number of frames.

    Raises:
      UserError: as `teacher_durations`.
    """
    durations_of = teacher_durations(config, load_teacher)

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, NonAutoregressiveSynthesiser)
        c = model.config
        source, target = batch["source"], batch["target"]
        durations = durations_of(source, target)
        outputs, sown = apply_training(
            model,
            variables,
            context,
            source,
            target,
            durations,
            deterministic=context.deterministic,
            rngs=context.rngs("dropout"),
        )
        spoken = Spoken(*outputs)
        source_mask = source != c.special.pad
        duration = jnp.where(source_mask, (spoken.durations - jnp.log1p(durations)) ** 2, 0).sum()
        refined = frames_error(spoken.refined, target)
        total = frames_error(spoken.frames, target) + refined + c.duration_weight * duration
        frames = jnp.isfinite(target[..., 0]).sum().astype(jnp.float32)
        metrics = {"mel": (refined, frames), "duration": (duration, source_mask.sum().astype(jnp.float32))}
        return Loss(total, frames, metrics, **sown)

    return objective
