"""Forced alignment by CTC: the most probable path that spells a given text (Viterbi)."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.decoding.calls import Inputs, special_ids
from transformer.decoding.ctc_search import log_probs_and_mask
from transformer.decoding.scores import NEVER
from transformer.model.ctc import log_likelihoods, positions_needed
from transformer.model.parameters import Variables


@struct.dataclass
class BestPaths:
    """The most probable paths of texts. A text of n tokens has 2 n + 1 states: a blank, the first token, a
    blank, and so on."""

    states: Int[Array, "b s"]
    """The state at each position; of padding the last one."""
    log_p: Float[Array, " b"]
    """log P of the path. -inf: the text has none, since there are too few positions."""
    log_likelihoods: Float[Array, " b"]
    """log P of the text, by all its paths; -inf as above."""


@functools.partial(jax.jit, static_argnums=0)
def best_paths_of(
    model: nn.Module,
    variables: Variables,
    inputs: Inputs,
    labels: Int[Array, "b t"],
    positions: Int[Array, ""],
) -> BestPaths:
    """The most probable path of each text through the encoder of one input.

    Args:
      model: with `encode` and `ctc_log_probs`.
      variables: of the model.
      inputs: the arguments of `encode`, one row.
      labels: the tokens of each text, then blanks.
      positions: of the encoder at most; what follows is padding that the model hears.
    """
    log_probs, mask = log_probs_and_mask(model, variables, inputs)
    mask &= jnp.arange(mask.shape[1]) < positions
    log_probs, mask = (jnp.broadcast_to(x, (len(labels), *x.shape[1:])) for x in (log_probs, mask))
    return best_paths(log_probs, mask, labels, special_ids(model).pad)


def best_paths(
    log_probs: Float[Array, "b s v"], mask: Bool[Array, "b s"], labels: Int[Array, "b t"], blank: int
) -> BestPaths:
    """The most probable path that spells each text.

    Args:
      log_probs: of each token at each position.
      mask: False for padding, which is at the end.
      labels: the tokens of each text, then blanks.
      blank: its id.
    """
    tokens = states_of(labels, blank)
    emitted = jnp.take_along_axis(log_probs, tokens[:, None], axis=2)
    leaps = can_leap(tokens, blank)

    def step(best: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        log_p, is_there = at
        ways = [best, later(best, 1, NEVER), jnp.where(leaps, later(best, 2, NEVER), NEVER)]
        came = jnp.stack(ways)
        moved = jnp.where(is_there[:, None], came.argmax(axis=0), 0)
        return jnp.where(is_there[:, None], came.max(axis=0) + log_p, best), moved

    start = jnp.full(tokens.shape, NEVER).at[:, 0].set(0.0)
    last, moves = jax.lax.scan(step, start, (emitted.swapaxes(0, 1), mask.T))
    length = (labels != blank).sum(axis=1)
    ends = jnp.stack([2 * length, jnp.maximum(2 * length - 1, 0)], axis=1)  # a blank, or the last token
    of_ends = jnp.take_along_axis(last, ends, axis=1)
    end = jnp.take_along_axis(ends, of_ends.argmax(axis=1)[:, None], axis=1)[:, 0]

    def back(state: Array, moved: Array) -> tuple[Array, Array]:
        return state - jnp.take_along_axis(moved, state[:, None], axis=1)[:, 0], state

    _, states = jax.lax.scan(back, end, moves, reverse=True)
    has_path = positions_needed(labels, blank) <= mask.sum(axis=1)
    likelihoods = jnp.where(has_path, log_likelihoods(log_probs, mask, labels, blank), NEVER)
    return BestPaths(states.T, jnp.where(has_path, of_ends.max(axis=1), NEVER), likelihoods)


def spans_of(states: Int[np.ndarray, " s"], count: int) -> list[tuple[int, int]]:
    """The first position of each of so many tokens in a path, and the one after its last."""
    tokens = 2 * np.arange(count) + 1
    starts = np.searchsorted(states, tokens, side="left")
    ends = np.searchsorted(states, tokens, side="right")
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def states_of(labels: Int[Array, "b t"], blank: int) -> Int[Array, "b states"]:
    """The token of each state of texts: a blank, the first token, a blank, and so on."""
    rows, room = labels.shape
    return jnp.full((rows, 2 * room + 1), blank, labels.dtype).at[:, 1::2].set(labels)


def can_leap(tokens: Int[Array, "b states"], blank: int) -> Bool[Array, "b states"]:
    """Which states a path may reach from the token before, without the blank between them."""
    return (tokens != blank) & (tokens != later(tokens, 2, blank))


def later(x: Array, steps: int, fill: float | int) -> Array:
    """Each state's value of an earlier state."""
    return jnp.pad(x, ((0, 0), (steps, 0)), constant_values=fill)[:, : x.shape[1]]
