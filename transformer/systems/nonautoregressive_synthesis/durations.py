"""How long each token is spoken, by the attention of another model (Ren et al. 2019, section 3.3)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config import Config
from transformer.decoding.forced import sown_attention
from transformer.model.transformer import cross_attention
from transformer.runtime.errors import UserError
from transformer.systems.nonautoregressive_synthesis.options import NonAutoregressiveSynthesisConfig
from transformer.systems.synthesis.model import Synthesiser

Durations = Callable[[Int[Array, "b s"], Float[Array, "b t bands"]], Int[Array, "b s"]]
"""(source, target) -> the steps of the decoder in which each token is spoken."""


def durations(
    attention: Float[Array, "b t s"], steps: Bool[Array, "b t"], tokens: Bool[Array, "b s"]
) -> Int[Array, "b s"]:
    """The number of steps of each token, if every step belongs to one token, tokens follow each other in
    order, some perhaps without a step, and the sum of the attention of steps to their tokens is as large as
    it can be.

    Args:
      attention: of steps to tokens.
      steps: False for padding.
      tokens: False for padding.
    """
    gains = jnp.where(tokens[:, None], jnp.where(steps[..., None], attention, 0), -jnp.inf)

    def forward(best: Array, gain: Array) -> tuple[Array, Array]:
        """The largest sum up to a step, for each token that it may belong to."""
        best = gain + jax.lax.cummax(best, axis=1)
        return best, best

    def backward(token: Array, best: Array) -> tuple[Array, Array]:
        """The token of a step, given that of the next one."""
        allowed = jnp.arange(best.shape[1]) <= token[:, None]
        token = jnp.where(allowed, best, -jnp.inf).argmax(axis=1)
        return token, token

    _, sums = jax.lax.scan(forward, jnp.zeros_like(gains[:, 0]), gains.swapaxes(0, 1))
    last = jnp.full(len(gains), gains.shape[-1] - 1)
    _, path = jax.lax.scan(backward, last, sums, reverse=True)
    spoken = jax.nn.one_hot(path.swapaxes(0, 1), gains.shape[-1], dtype=jnp.int32)
    return (spoken * steps[..., None]).sum(axis=1)


def teacher_durations(config: Config, load_teacher: Callable[[Path], Any]) -> Durations:
    """A function that gives the durations in an utterance, by the cross-attention of the teacher: its mean
    over layers and heads.

    Raises:
      UserError: there is no teacher, or it is no autoregressive synthesiser.
    """
    c = config.model
    assert isinstance(c, NonAutoregressiveSynthesisConfig)
    if c.teacher is None:
        raise UserError(c.untaught)
    teacher = load_teacher(c.teacher)
    model = teacher.model
    if not isinstance(model, Synthesiser):
        raise UserError(f"--model.teacher {c.teacher}: must be a run of system synthesis")
    variables = jax.device_get(teacher.variables)  # on the host, so that each layout places its own copy

    def durations_of(source: Int[Array, "b s"], target: Float[Array, "b t bands"]) -> Int[Array, "b s"]:
        traced = jax.tree.map(jnp.asarray, variables)
        attention = sown_attention(cross_attention, model, traced, {"source": source}, target)
        steps = jnp.isfinite(target[..., 0])[:, :: c.reduction]
        teacher_steps = jnp.arange(steps.shape[1]) * c.reduction // model.config.reduction
        return durations(attention[:, teacher_steps], steps, source != c.special.pad)

    return durations_of
