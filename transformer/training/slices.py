"""Functions of the logits of a batch, which never exist as a whole.

The logits, `[tokens, vocabulary]`, are the largest array of a training step. Writing and rereading them for
the softmax, the loss and its gradient takes most of a small model's step on a CPU, so they are computed in
slices of the time axis; on accelerators, in slices of all tokens. If a mesh shards the rows (`p` shards),
each shard sums its own gradient of the table, so nothing is communicated between slices.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.model.placement import shards_of

SLICE = {"cpu": 2**21, "cuda": 2**26, "default": 2**26}
"""Number of logits in memory at a time: on a CPU a few caches full; elsewhere enough to use the device."""
TILE = 128  # tokens, or logits; accelerators multiply whole tiles
T = TypeVar("T")
Sums = dict[str, Float[Array, ""]]
"""Sums over the tokens of a batch, by name, with `loss` among them."""
LossAndGrad = Callable[..., tuple[Sums, tuple[Float[Array, "*time v"], ...]]]
"""(platform, logits `[*time, v]` of each state, arrays `[*time, ...]`) -> the sums, and the gradients of
`loss` with respect to the logits. The platform is one of `SLICE`."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sums_in_slices(
    loss_and_grad: LossAndGrad,
    table: Float[Array, "v m"],
    states: tuple[Float[Array, "b t m"], ...],
    *arrays: Array,
) -> Sums:
    """The sums over slices of `loss_and_grad(platform, logits, *arrays)`.

    The gradient of a slice is computed together with its logits, so nothing is computed twice. Only `loss`
    has a gradient, with respect to the table and the states.

    Args:
      loss_and_grad: of the logits and arrays of a slice, token by token. Tokens that pad the last
        slice are zeros.
      table: the output embeddings.
      states: hidden states whose products with the table are logits.
      arrays: `[b, t, ...]`, without gradients.
    """

    def on(platform: str, table: Array, states: tuple[Array, ...], arrays: tuple[Array, ...]) -> Sums:
        cast_table = _cast_table(table, states[0], platform)
        loss_of_slice = functools.partial(
            _loss_of_slice, loss_and_grad, platform, cast_table, len(table), len(states)
        )
        slices = _split_time(_lined_up((*states, *arrays), platform), len(states) * len(table), platform)
        _, sums = jax.lax.scan(lambda none, one_slice: (none, loss_of_slice(one_slice)[0]), None, slices)
        return jax.tree.map(jnp.sum, sums)

    return _by_platform(on, table, states, arrays)


def _by_platform(on: Callable[..., T], *arrays: Any) -> T:
    """`on(platform, *arrays)` for the platform that the program is compiled for, one of `SLICE`."""
    variants = {platform: functools.partial(on, platform) for platform in SLICE}
    result: T = jax.lax.platform_dependent(*arrays, **variants)
    return result


def _forward(
    loss_and_grad: LossAndGrad, table: Array, states: tuple[Array, ...], *arrays: Array
) -> tuple[Sums, tuple[Array, tuple[Array, ...], int]]:
    on = functools.partial(_sums_and_gradients, loss_and_grad)
    sums, (of_table, of_states) = _by_platform(on, table, states, arrays)
    return sums, (of_table, of_states, len(arrays))


def _sums_and_gradients(
    loss_and_grad: LossAndGrad,
    platform: str,
    table: Array,
    states: tuple[Array, ...],
    arrays: tuple[Array, ...],
) -> tuple[Sums, tuple[Array, tuple[Array, ...]]]:
    cast_table = _cast_table(table, states[0], platform)
    on_cpu = platform == "cpu"
    loss_of_slice = functools.partial(
        _loss_of_slice, loss_and_grad, platform, cast_table, len(table), len(states)
    )

    def add(of_table: Array, one_slice: tuple[Array, ...]) -> tuple[Array, tuple[Sums, tuple[Array, ...]]]:
        sums, gradients = loss_of_slice(one_slice)
        gradients = tuple(gradient.astype(cast_table.dtype) for gradient in gradients)
        for state, gradient in zip(one_slice[: len(states)], gradients, strict=True):
            # on a CPU the longer axis last, so that it has to transpose the smaller operand
            if on_cpu:
                of_table += _exact("pbtm,pbtv->pmv", state, gradient)
            else:
                of_table += _exact("pbtv,pbtm->pvm", gradient, state)
        return of_table, (
            sums,
            tuple(_exact("pbtv,vm->pbtm", gradient, cast_table) for gradient in gradients),
        )

    slices = _split_time(_lined_up((*states, *arrays), platform), len(states) * len(table), platform)
    order = -1 if on_cpu else 1
    zeros = jnp.zeros((shards_of(), *cast_table.shape[::order]), jnp.float32)
    zeros = nn.with_logical_constraint(zeros, ("rows", *("vocabulary", None)[::order]))
    of_table, (sums, of_states) = jax.lax.scan(add, zeros, slices)
    gradients = tuple(
        _join(_merged(x, 1), state.shape[:2]).astype(state.dtype)
        for x, state in zip(of_states, states, strict=True)
    )
    of_table = of_table.sum(axis=0)
    if on_cpu:  # fused with this transpose, CPUs do not support the product in bfloat16 (JAX 0.12)
        of_table = jax.lax.optimization_barrier(of_table).T
    return jax.tree.map(jnp.sum, sums), (of_table[: len(table)], gradients)


def _backward(
    loss_and_grad: LossAndGrad, residuals: tuple[Array, tuple[Array, ...], int], cotangents: Sums
) -> tuple[Any, ...]:
    of_table, of_states, others = residuals
    scale = cotangents["loss"]
    return of_table * scale, tuple((x * scale).astype(x.dtype) for x in of_states), *(None,) * others


sums_in_slices.defvjp(_forward, _backward)

_exact = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _loss_of_slice(
    loss_and_grad: LossAndGrad,
    platform: str,
    cast_table: Array,
    vocabulary: int,
    states: int,
    one_slice: tuple[Array, ...],
) -> tuple[Sums, tuple[Float[Array, "p b t v"], ...]]:
    """The sums of a slice and the gradients of its logits, from its states and arrays `[p, b, t, ...]`. Rows
    of the table after those of the vocabulary get none."""
    logits = tuple(
        _exact("pbtm,vm->pbtv", state, cast_table)[..., :vocabulary] for state in one_slice[:states]
    )
    rows = tuple(_merged(x, 0) if platform == "cpu" else _tokens(x) for x in (*logits, *one_slice[states:]))
    sums, gradients = loss_and_grad(platform, rows[:states], *rows[states:])
    return sums, tuple(_more(x.reshape(logits[0].shape), -1, len(cast_table)) for x in gradients)


def _cast_table(table: Float[Array, "v m"], state: Array, platform: str) -> Float[Array, "v_or_more m"]:
    """The table in the dtype of the states, gathered once instead of for every slice. On NVIDIA GPUs with as
    many rows as their products need: the compiler would copy it, and the gradients, for every slice."""
    cast = nn.with_logical_constraint(table.astype(state.dtype), ("vocabulary", None))
    whole = platform == "cuda" and shards_of("vocabulary") == 1
    return _more(cast, 0, math.ceil(len(table) / TILE) * TILE) if whole else cast


def _more(x: Array, axis: int, size: int) -> Array:
    """The array with zeros up to a size of the axis."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths) if size > x.shape[axis] else x


def _lined_up(arrays: tuple[Array, ...], platform: str) -> tuple[Array, ...]:
    """Arrays `[rows, time, ...]` with all tokens of a shard in one row, on accelerators."""
    if platform == "cpu":
        return arrays
    return tuple(x.reshape(shards_of(), -1, *x.shape[2:]) for x in arrays)


def _split_time(arrays: tuple[Array, ...], logits: int, platform: str) -> tuple[Array, ...]:
    """The slices `[slices, p, b, width, ...]` of arrays `[rows, time, ...]`, the last one padded with
    zeros. A token has so many logits."""
    rows, time = arrays[0].shape[:2]
    num_shards = shards_of()
    width = _width(time, max(1, SLICE[platform] // (rows // num_shards * logits)), platform)
    slices = math.ceil(time / width)

    def split(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, slices * width - time), *((0, 0),) * (x.ndim - 2)))
        x = jnp.moveaxis(x.reshape(num_shards, rows // num_shards, slices, width, *x.shape[2:]), 2, 0)
        return nn.with_logical_constraint(x, (None, "rows", *(None,) * (x.ndim - 2)))

    return tuple(map(split, arrays))


def _width(time: int, most: int, platform: str) -> int:
    """The length of a slice, at most `most`. On accelerators it consists of tiles, as many as need little
    padding, and there are two slices: compilers unroll a loop that runs once, and what they make of it can
    take twice the time."""
    width = math.ceil(time / math.ceil(time / most))
    if platform == "cpu" or width < TILE:
        return width
    most = min(most // TILE, math.ceil(time / 2 / TILE))
    widths = (TILE * tiles for tiles in range(most, most // 2, -1))
    return min(widths, key=lambda width: math.ceil(time / width) * width)


def _merged(x: Array, axis: int) -> Array:
    """An array `[..., p, b, ...]` as `[..., rows, ...]`."""
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _tokens(x: Array) -> Array:
    """An array `[p, b, t, ...]` as `[tokens, ...]`. Compilers fuse all sums over such logits with the product
    that computes them, also under a mesh."""
    return x.reshape(-1, *x.shape[3:])


def _join(x: Array, shape: tuple[int, ...]) -> Array:
    """The array `[rows, time, ...]` of this shape of slices `[slices, rows, width, ...]`, or of slices of
    lined-up rows."""
    x = jnp.moveaxis(x, 0, 1)
    x = x.reshape(len(x), -1, *x.shape[3:])
    return x[:, : math.prod(shape) // len(x)].reshape(*shape, *x.shape[2:])


def in_slices(function: Callable[..., Any], vocabulary: int, *arrays: Array) -> Any:
    """`function` of arrays `[b, t, ...]`, computed on slices one after the other, and again for their
    gradients.

    Args:
      function: of slices of the arrays; returns a pytree of arrays `[b, t, ...]`.
      vocabulary: logits of each token.
      arrays: to slice.
    """

    def of_slice(one_slice: tuple[Array, ...]) -> Any:
        return function(*(_merged(x, 0) for x in one_slice))

    def on(platform: str, *arrays: Array) -> Any:
        slices = jax.lax.map(jax.checkpoint(of_slice), _split_time(arrays, vocabulary, platform))
        return jax.tree.map(lambda x: _join(x, arrays[0].shape[:2]), slices)

    return _by_platform(on, *arrays)
