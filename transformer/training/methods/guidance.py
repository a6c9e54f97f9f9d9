"""Guided attention (Tachibana et al. 2018, section 4): source and target mostly advance together."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.config.methods import GuidanceConfig
from transformer.decoding.forced import Attentions
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.parameters import Variables
from transformer.model.positions import positions_in
from transformer.runtime.errors import UserError
from transformer.training.objective import Batch, Context, Loss, Objective


def guided(objective: Objective, attentions: Attentions, options: GuidanceConfig) -> Objective:
    """An objective with the guidance loss of its attention to the source: the mean of A[n, t] W[n, t] over
    target tokens n and source tokens t of each sentence, the chosen layers and heads.

    The metric `off diagonal` is the mean over target tokens of the sum of A[n, t] W[n, t] over t: 0 on the
    diagonal, near 1 far from it.

    Args:
      objective: any that returns its intermediates.
      attentions: of the system.
      options: which attention to guide, and how much.
    """

    def with_guidance(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        loss = objective(model, variables, batch, replace(context, sows=True))
        weights = attentions(loss.intermediates)
        attention = _chosen(_chosen(weights, options.layers, 0), options.heads, 2).mean(axis=(0, 2))
        target, source = (_segments(model, batch, side) for side in ("target", "source"))
        off, same = off_diagonal(target, source, options.width)
        penalties = (attention[:, : off.shape[1]] * off).sum(axis=-1)
        lengths = jnp.maximum(same.sum(axis=-1), 1)
        num_tokens = (target > 0).sum().astype(jnp.float32)
        total = (penalties / lengths).sum()
        mean = jax.lax.stop_gradient(penalties.sum())
        share = loss.weight / jnp.maximum(num_tokens, 1)  # the objective may count others than target tokens
        metrics = {**loss.metrics, "off diagonal": (mean, num_tokens)}
        return replace(loss, total=loss.total + options.weight * share * total, metrics=metrics)

    return with_guidance


def off_diagonal(
    target: Array, source: Array, width: float
) -> tuple[Float[Array, "b t s"], Bool[Array, "b t s"]]:
    """W[n, t] = 1 - exp(-(n/N - t/T)^2 / 2 g^2) for the target token n of N and the source token t of T in
    the same sentence, and 0 elsewhere; and whether they are in the same sentence.

    Args:
      target: the sentence of each target token in its row, from 1; 0 is padding.
      source: the same of the source.
      width: g.
    """
    same = (target[:, :, None] == source[:, None, :]) & (target > 0)[:, :, None]
    distance = _relative_positions(target)[:, :, None] - _relative_positions(source)[:, None, :]
    return jnp.where(same, 1 - jnp.exp(-jnp.square(distance) / (2 * width**2)), 0), same


def _relative_positions(segments: Array) -> Float[Array, "b t"]:
    """The position of each token in its sentence, as a share of its length."""
    length = (segments[:, :, None] == segments[:, None, :]).sum(axis=-1)
    return positions_in(segments) / length


def _segments(model: nn.Module, batch: Batch, side: str) -> Array:
    """The sentence of each token: that of a packed row, or the only one."""
    if f"{side}_segments" in batch:
        return batch[f"{side}_segments"]
    if side not in batch:
        raise UserError(f"--guidance.weight: this task has no {side} of tokens; leave it out")
    assert isinstance(model, EncoderDecoder)
    mask = model.source_mask(batch[side]) if side == "source" else model.target_mask(batch[side])
    return mask.astype(jnp.int32)


def _chosen(weights: Array, which: tuple[int, ...], axis: int) -> Array:
    """Weights of an axis with these numbers, from 1; none given: all."""
    if not which:
        return weights
    return jnp.take(weights, jnp.asarray(which) - 1, axis=axis)
