"""Label-smoothed cross-entropy (section 5.4), from logits or directly from the decoder's hidden states: the
logits of a batch never exist as a whole."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.model.parameters import shards_of

# Functions of the logits of a batch, which never exist as a whole.


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


def _width(time: int, limit: int, platform: str) -> int:
    """The length of a slice, at most `limit`. On accelerators it consists of tiles, as many as need little
    padding, and there are two slices: compilers unroll a loop that runs once, and what they make of it can
    take twice the time."""
    width = math.ceil(time / math.ceil(time / limit))
    if platform == "cpu" or width < TILE:
        return width
    limit = min(limit // TILE, math.ceil(time / 2 / TILE))
    widths = (TILE * tiles for tiles in range(limit, limit // 2, -1))
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


MOST = 70.0
"""Of exponents: exp(MOST) times the size of a vocabulary is finite in float32. A loss of so many nats is that
of a probability of 4e-31."""


def cross_entropy(
    logits: Float[Array, "*time v"], targets: Int[Array, "*time"], smoothing: float = 0.0
) -> Float[Array, "*time"]:
    """-sum_k q(k) log p(k) with q(target) = 1 - smoothing and q(k) = smoothing / (K-1) for the others.

    It needs only the logsumexp, the target's logit and the sum of all logits, and no one-hot or log-softmax.
    """
    logits = logits.astype(jnp.float32)
    others = smoothing / (logits.shape[-1] - 1)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    loss = normaliser - (1 - smoothing - others) * chosen
    return loss - others * logits.sum(axis=-1) if smoothing else loss


def output_cross_entropy(
    hidden: Float[Array, "b t m"],
    table: Float[Array, "v m"],
    targets: Int[Array, "b t"],
    weights: Float[Array, "b t"],
    smoothing: float,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """The weighted sums of `cross_entropy(hidden @ table.T, targets, smoothing)`, of the unsmoothed loss, and
    of whether the target has the highest logit (ties count), in slices.

    Only the first has a gradient, with respect to `hidden` and `table`.
    """
    loss_and_grad = functools.partial(_loss_and_grad, smoothing)
    chosen = (hidden * table[targets].astype(hidden.dtype)).sum(axis=-1, dtype=jnp.float32)
    sums = sums_in_slices(loss_and_grad, table, (hidden,), targets, weights, jax.lax.stop_gradient(chosen))
    return sums["loss"], sums["nll"], sums["correct"]


def _loss_and_grad(
    smoothing: float,
    platform: str,
    logits: tuple[Float[Array, "*time v"]],
    targets: Int[Array, "*time"],
    weights: Float[Array, "*time"],
    near: Float[Array, "*time"],
) -> tuple[Sums, tuple[Float[Array, "*time v"]]]:
    """The sums of a slice, and the gradient of its logits: weight * (softmax - q).

    A CPU subtracts the highest logit before the exponential. Accelerators subtract `near`, the target's logit
    up to rounding, which is known before the product. So the compiler sums exponentials where it computes the
    logits, instead of in another pass. Exponents are at most `MOST`: where a logit is further above the
    target's, the gradient has the right sign only.
    """
    (scores,) = logits
    others = smoothing / (scores.shape[-1] - 1)
    base = scores.max(axis=-1) if platform == "cpu" else near
    exponents = scores - base[..., None]
    exponentials = jnp.exp(exponents if platform == "cpu" else jnp.minimum(exponents, MOST))
    total, highest, chosen, all_logits = _reduced(platform, exponentials, scores, targets)
    normaliser = jnp.log(total) + base
    if platform != "cpu":
        normaliser = jnp.maximum(normaliser, highest)  # where exponents were limited
    loss = normaliser - (1 - smoothing - others) * chosen
    if smoothing:
        loss -= others * all_logits
    sums = {
        "loss": (weights * loss).sum(),
        "nll": (weights * (normaliser - chosen)).sum(),
        "correct": (weights * (chosen >= highest)).sum(),
    }
    gradient = exponentials * (weights / total)[..., None] - (others * weights)[..., None]
    return sums, (less_at_targets(platform, gradient, targets, (1 - smoothing - others) * weights),)


def _reduced(
    platform: str,
    exponentials: Float[Array, "*time v"],
    logits: Float[Array, "*time v"],
    targets: Int[Array, "*time"],
) -> tuple[Float[Array, "*time"], ...]:
    """The sum of the exponentials; the highest logit, that of the target, and the sum of the logits.

    On NVIDIA GPUs one explicit reduction computes all of them; their compiler would read the logits three
    times.
    """
    if platform != "cuda":
        chosen = at_targets(platform, logits, targets)
        return exponentials.sum(axis=-1), logits.max(axis=-1), chosen, logits.sum(axis=-1)

    def both(x: tuple[Array, ...], y: tuple[Array, ...]) -> tuple[Array, ...]:
        return x[0] + y[0], jnp.maximum(x[1], y[1]), x[2] + y[2], x[3] + y[3]

    at_target = jnp.where(_is_target(logits, targets), logits, 0)
    none = tuple(jnp.array(value, logits.dtype) for value in (0, -jnp.inf, 0, 0))
    sums: tuple[Array, ...] = jax.lax.reduce(
        (exponentials, logits, at_target, logits), none, both, (logits.ndim - 1,)
    )
    return sums


def at_targets(
    platform: str, values: Float[Array, "*time v"], targets: Int[Array, "*time"]
) -> Float[Array, "*time"]:
    """The values of the targets.

    A CPU reads and changes these values only. Accelerators compare all ids with the targets, which needs no
    separate pass: they are slow to address single elements (a TPU: one after the other).
    """
    if platform == "cpu":
        return jnp.take_along_axis(values, targets[..., None], axis=-1)[..., 0]
    return jnp.where(_is_target(values, targets), values, 0).sum(axis=-1)


def less_at_targets(
    platform: str,
    values: Float[Array, "*time v"],
    targets: Int[Array, "*time"],
    excess: Float[Array, "*time"],
) -> Float[Array, "*time v"]:
    """The values, those of the targets reduced by the excess."""
    if platform == "cpu":
        return values.at[(*jnp.indices(targets.shape), targets)].add(-excess)
    return values - jnp.where(_is_target(values, targets), excess[..., None], 0)


def _is_target(values: Float[Array, "*time v"], targets: Int[Array, "*time"]) -> Array:
    return jax.lax.broadcasted_iota(targets.dtype, values.shape, values.ndim - 1) == targets[..., None]
