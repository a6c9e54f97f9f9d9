"""Forced alignment by CTC: the most probable path that spells a given text (Viterbi), also through a
recording of any length."""

import functools
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt

from transformer.decoding.calls import Inputs, special_ids
from transformer.decoding.scores import NEVER
from transformer.decoding.searches.ctc import log_probs_and_mask
from transformer.model.parameters import Variables
from transformer.model.variants.ctc import log_likelihoods, positions_needed


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

    def step(best: Array, frame: tuple[Array, Array]) -> tuple[Array, Array]:
        log_p, is_there = frame
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


# Forced alignment by CTC through a recording of any length, of which the encoder reads one window after
# another. Memory does not grow with the recording, but for how each position was reached: two bits for each
# state, which are written to a file when they are many.


IN_MEMORY = 2**27
"""Bytes of what is written to a file beyond that."""
BLOCK = 1024
"""Positions that are read back at once."""
Scores = Float[Array, " states"]


class Window(NamedTuple):
    """What the encoder reads at once."""

    inputs: Inputs
    """The arguments of `encode`, one row."""
    first: int
    """Of its positions that count; those before it are in the window before."""
    last: int
    """The one after the last that counts."""


def best_path_through(
    model: nn.Module, variables: Variables, windows: Iterable[Window], labels: Int[np.ndarray, " t"]
) -> tuple[Int[np.ndarray, " s"], float]:
    """The states of the most probable path of a text (`BestPaths`), and log P of the text by all paths;
    without states, and -inf, if there are too few positions.

    Args:
      model: with `encode` and `ctc_log_probs`.
      variables: of the model.
      windows: in order.
      labels: the tokens of the text, then blanks.
    """
    count = 2 * len(labels) + 1
    best = total = jnp.full(count, NEVER).at[0].set(0.0)
    offset, positions = 0.0, 0
    row = 2 * -(-count // 8)
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as file:
        for window in windows:
            counted = jnp.asarray([window.first, window.last])
            best, total, added, moves = _read(
                model, variables, window.inputs, jnp.asarray(labels), counted, best, total
            )
            offset += float(added)
            steps = np.asarray(moves)[window.first : window.last]
            packed = [np.packbits((steps >> bit) & 1, axis=1) for bit in (0, 1)]
            file.write(np.concatenate(packed, axis=1).tobytes())
            positions += len(steps)
        length = int((labels != special_ids(model).pad).sum())
        ends = np.array([2 * length, max(2 * length - 1, 0)])  # a blank, or the last token
        state = int(ends[np.asarray(best)[ends].argmax()])
        if not np.isfinite(np.asarray(best)[state]):
            return np.zeros(0, int), float("-inf")
        states = np.zeros(positions, int)
        for stop in range(positions, 0, -BLOCK):
            start = max(stop - BLOCK, 0)
            file.seek(start * row)
            block = np.frombuffer(file.read((stop - start) * row), np.uint8).reshape(-1, 2, row // 2)
            for position in range(stop - 1, start - 1, -1):
                states[position] = state
                low, high = (block[position - start, :, state >> 3] >> (7 - state % 8)) & 1
                state -= int(low) + 2 * int(high)
    log_p = np.asarray(total)[np.unique(ends)]
    return states, offset + float(np.logaddexp.reduce(log_p.astype(np.float64)))


@functools.partial(jax.jit, static_argnums=0)
def _read(
    model: nn.Module,
    variables: Variables,
    inputs: Inputs,
    labels: Int[Array, " t"],
    counted: Int[Array, "2"],
    best: Scores,
    total: Scores,
) -> tuple[Scores, Scores, Float[Array, ""], UInt[Array, "s states"]]:
    """The states after a window.

    Args:
      model: of the encoder.
      variables: of the model.
      inputs: a window.
      labels: the tokens of the text, then blanks.
      counted: the first of its positions that count, and the one after the last.
      best: log P of the best path to each state, before.
      total: log P of all, less the same number as the sums of all windows so far.

    Returns:
      `best` less its maximum, `total` less another one, that one's sum, and how many states each state
      is after the one before it, at each position.
    """
    blank = special_ids(model).pad
    log_probs, _ = log_probs_and_mask(model, variables, inputs)
    tokens = states_of(labels[None], blank)[0]
    leaps = can_leap(tokens[None], blank)[0]
    emitted = log_probs[0][:, tokens]
    positions = jnp.arange(len(emitted))

    def ways_to(scores: Scores) -> Float[Array, "3 states"]:
        one, two = later(scores[None], 1, NEVER)[0], later(scores[None], 2, NEVER)[0]
        return jnp.stack([scores, one, jnp.where(leaps, two, NEVER)])

    def step(
        state: tuple[Scores, Scores, Array], frame: tuple[Array, Array]
    ) -> tuple[tuple[Scores, Scores, Array], Array]:
        best, total, offset = state
        log_p, is_kept = frame
        ways = ways_to(best)
        reached = ways.max(axis=0) + log_p
        summed = jax.nn.logsumexp(ways_to(total), axis=0) + log_p
        highest = summed.max()
        new = reached - reached.max(), summed - highest, offset + highest
        moved = jnp.where(is_kept, ways.argmax(axis=0), 0).astype(jnp.uint8)
        after: tuple[Scores, Scores, Array] = jax.tree.map(lambda x, y: jnp.where(is_kept, y, x), state, new)
        return after, moved

    is_kept = (positions >= counted[0]) & (positions < counted[1])
    (best, total, offset), moves = jax.lax.scan(step, (best, total, jnp.float32(0)), (emitted, is_kept))
    return best, total, offset, moves
