"""Eq. 1 as one kernel of a TPU (Pallas), in the manner of FlashAttention (Dao et al. 2022).

The scores of a block of queries stay in the memory on the chip, and the backward pass computes them again. So
the largest arrays of an attention layer, its scores and its weights, are never written. A block sees all of
its keys, so the softmax is the ordinary one.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, UInt32

from transformer.model.layers import hashed
from transformer.model.masks import AttentionInputs, Mask

MOST_SCORES = 2**18  # of a block and head: 1 MB, of which the backward pass has about five
LANES = 128


@dataclass(frozen=True)
class Shape:
    """What a kernel depends on."""

    heads: int
    """Heads at a time."""
    groups: int
    """How many times so many."""
    causal: bool
    window: int | None
    rate: float
    """Rate of attention dropout."""
    block: int
    """Queries at a time."""
    interpret: bool
    """Whether to run it without a TPU, for tests."""


def fits(inputs: AttentionInputs) -> bool:
    """Whether the kernel can compute this attention: with whole tiles, no conditions on single pairs,
    distances only where queries and keys are the same positions, and keys for which the chip has room."""
    (_, heads, queries, width), keys, mask = inputs.query.shape, inputs.keys.shape[2], inputs.mask
    if queries != keys and (mask.causal or mask.window is not None):
        return False
    values = inputs.values.shape[3]
    widest = heads_together(heads, heads * width, heads * values) * max(width, values)
    has_room = keys * max(LANES, widest) <= MOST_SCORES
    return queries % LANES == 0 and keys % LANES == 0 and mask.pairs is None and has_room


def flash(
    heads: int,
    query: Float[Array, "b q hd"],
    keys: Float[Array, "b k hd"],
    values: Float[Array, "b k hv"],
    mask: Mask,
    dropout: tuple[Array, float] | None = None,
    *,
    interpret: bool = False,
) -> Float[Array, "b q hv"]:
    """softmax(Q K^T / sqrt(d_k)) V for every head. The heads are side by side, as projections have them, so
    that a TPU need not pad narrow heads.

    Args:
      heads: their number.
      query: as `keys` and `values`, for which `fits` must hold.
      keys: of all positions.
      values: of all positions.
      mask: without `pairs`.
      dropout: of the weights: a random key and the rate. The elements that `transformer.model.layers` drops.
      interpret: run it without a TPU.
    """
    rows, queries, _ = query.shape
    num_keys = keys.shape[1]
    block = min(queries, MOST_SCORES // num_keys // LANES * LANES)
    while queries % block:
        block -= LANES
    key, rate = dropout or (None, 0.0)
    words = jnp.zeros((1, 2), jnp.uint32) if key is None else jax.random.key_data(key).astype(jnp.uint32)
    together = heads_together(heads, query.shape[2], values.shape[2])
    shape = Shape(together, heads // together, mask.causal, mask.window, rate, block, interpret)
    words = words.reshape(-1)[-2:][None]
    return _attend(shape, query, keys, values, *_segments(mask, rows, queries, num_keys), words)


def heads_together(heads: int, *widths: int) -> int:
    """How many heads the kernel has at a time: the fewest whose parts of arrays of these widths are whole
    tiles. With all at once, what it holds on the chip would grow with the model."""
    fit = (n for n in range(1, heads) if heads % n == 0 and all(n * x // heads % LANES == 0 for x in widths))
    return next(fit, heads)


def _segments(
    mask: Mask, rows: int, queries: int, keys: int
) -> tuple[Int[Array, "b q 1"], Int[Array, "b 1 k"]]:
    """Numbers that are equal where a query may attend to a key."""
    of_queries, of_keys = mask.segments or (
        jnp.zeros((rows, queries), jnp.int32),
        jnp.zeros((rows, keys), jnp.int32),
    )
    if mask.keys is not None:
        of_keys = jnp.where(mask.keys, of_keys, -1)
    return of_queries[:, :, None], of_keys[:, None, :]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    shape: Shape,
    query: Float[Array, "b q hd"],
    keys: Float[Array, "b k hd"],
    values: Float[Array, "b k hv"],
    of_queries: Int[Array, "b q 1"],
    of_keys: Int[Array, "b 1 k"],
    words: UInt32[Array, "1 2"],
) -> Float[Array, "b q hv"]:
    out = jax.ShapeDtypeStruct((*query.shape[:2], values.shape[2]), values.dtype)
    arrays = (query, keys, values, of_queries, of_keys, words)
    return _call(_forward, shape, arrays, ("query",), (out,), products=2)[0]


def _attend_forward(shape: Shape, *arrays: Array) -> tuple[Array, tuple[Array, ...]]:
    return _attend(shape, *arrays), arrays


def _attend_backward(shape: Shape, arrays: tuple[Array, ...], gradient: Array) -> tuple[Array | None, ...]:
    whole = shape.block == arrays[0].shape[1]  # otherwise the blocks' gradients of the keys are added
    roles = ("query", "keys", "keys")
    dtypes = [x.dtype for x in arrays[:3]]
    out = tuple(
        jax.ShapeDtypeStruct(x.shape, x.dtype if whole or role == "query" else jnp.float32)
        for x, role in zip(arrays, roles, strict=False)
    )
    gradients = _call(_backward, shape, (*arrays, gradient), roles, out, products=5)
    return *(x.astype(dtype) for x, dtype in zip(gradients, dtypes, strict=True)), None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _call(
    kernel: Any,
    shape: Shape,
    arrays: tuple[Array, ...],
    roles: tuple[str, ...],
    out: tuple[Any, ...],
    products: int,
) -> tuple[Array, ...]:
    """Runs a kernel for every row, group of heads and block of queries."""
    rows, queries, width = arrays[0].shape
    block = shape.block
    num_keys = arrays[1].shape[1]

    def part(x: Any, role: str) -> pl.BlockSpec:
        if role == "query":
            size = 1, block, x.shape[2] // shape.groups
            return pl.BlockSpec(size, lambda row, group, index: (row, index, group))
        if role == "keys":
            size = 1, num_keys, x.shape[2] // shape.groups
            return pl.BlockSpec(size, lambda row, group, index: (row, 0, group))
        if role == "of queries":
            return pl.BlockSpec((1, block, 1), lambda row, group, index: (row, index, 0))
        if role == "of keys":
            return pl.BlockSpec((1, 1, num_keys), lambda row, group, index: (row, 0, 0))
        return pl.BlockSpec((1, 2), lambda row, group, index: (0, 0))

    read = ("query", "keys", "keys", "of queries", "of keys", "words", "query")
    moved = sum(x.size * x.dtype.itemsize for x in (*arrays, *out))
    return pl.pallas_call(  # type: ignore[no-any-return]
        functools.partial(kernel, shape),
        grid=(rows, shape.groups, queries // block),
        in_specs=[part(x, role) for x, role in zip(arrays, read, strict=False)],
        out_specs=[part(x, role) for x, role in zip(out, roles, strict=True)],
        out_shape=out,
        interpret=shape.interpret,
        cost_estimate=pl.CostEstimate(
            flops=2 * products * rows * queries * num_keys * width,
            transcendentals=rows * shape.heads * shape.groups * queries * num_keys,
            bytes_accessed=moved,
        ),
        name=f"attention{kernel.__name__}",
    )(*arrays)


def _weights(shape: Shape, head: int, query: Array, keys: Array, allowed: Array) -> Float[Array, "q k"]:
    """The weights of one head, before dropout."""
    scores = _product(query, keys, 1, 1) / math.sqrt(query.shape[1])
    scores = jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)
    exponentials = jnp.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _product(a: Array, b: Array, axis_a: int, axis_b: int) -> Float[Array, "_ _"]:
    """The product summed over these axes, in float32."""
    return jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=jnp.float32)


def _allowed(shape: Shape, of_queries: Array, of_keys: Array) -> Array:
    """Where a query of this block may attend to a key."""
    allowed = of_queries == of_keys
    if shape.causal or shape.window is not None:
        first = pl.program_id(2) * shape.block
        distance = first + _iota(allowed.shape, 0) - _iota(allowed.shape, 1)
        if shape.causal:
            allowed &= distance >= 0
        if shape.window is not None:
            allowed &= jnp.abs(distance) <= shape.window
    return allowed


def _iota(shape: tuple[int, ...], axis: int) -> Int[Array, "q k"]:
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def _keep_mask(shape: Shape, head: int, words: Any, scores: tuple[int, ...]) -> Array:
    """Which weights dropout keeps: those of `keep_mask` for all weights of all rows."""
    queries = pl.num_programs(2) * shape.block
    row = (pl.program_id(0) * shape.groups + pl.program_id(1)) * shape.heads + head
    first_row = row * queries + pl.program_id(2) * shape.block
    index = (first_row + _iota(scores, 0)) * scores[1] + _iota(scores, 1)
    bits = hashed((index >> 1).astype(jnp.uint32), words[0, 0], words[0, 1])
    halves = jnp.where(index % 2 == 0, bits & np.uint32(0xFFFF), bits >> np.uint32(16))
    return halves.astype(jnp.int32) >= round(shape.rate * 2**16)


def _heads(shape: Shape, x: Array) -> list[Array]:
    """The part of each head."""
    width = x.shape[1] // shape.heads
    return [x[:, head * width : (head + 1) * width] for head in range(shape.heads)]


def _forward(
    shape: Shape, query: Any, keys: Any, values: Any, of_queries: Any, of_keys: Any, words: Any, context: Any
) -> None:
    allowed = _allowed(shape, of_queries[0], of_keys[0])
    contexts = []
    heads = zip(*(_heads(shape, x[0]) for x in (query, keys, values)), strict=True)
    for head, (q, k, v) in enumerate(heads):
        weights = _weights(shape, head, q, k, allowed)
        if shape.rate:
            keep = _keep_mask(shape, head, words, weights.shape)
            weights = jnp.where(keep, weights / (1 - shape.rate), 0)
        contexts.append(_product(weights.astype(v.dtype), v, 1, 0))
    context[0] = jnp.concatenate(contexts, axis=1).astype(context.dtype)


def _backward(
    shape: Shape,
    query: Any,
    keys: Any,
    values: Any,
    of_queries: Any,
    of_keys: Any,
    words: Any,
    gradient: Any,
    of_query: Any,
    of_key: Any,
    of_value: Any,
) -> None:
    allowed = _allowed(shape, of_queries[0], of_keys[0])
    gradients: tuple[list[Array], ...] = ([], [], [])
    heads = zip(*(_heads(shape, x[0]) for x in (query, keys, values, gradient)), strict=True)
    for head, (q, k, v, g) in enumerate(heads):
        weights = _weights(shape, head, q, k, allowed)
        dropped = weights
        of_weights = _product(g, v, 1, 1)
        if shape.rate:
            keep = _keep_mask(shape, head, words, weights.shape)
            dropped, of_weights = (jnp.where(keep, x / (1 - shape.rate), 0) for x in (weights, of_weights))
        of_scores = weights * (of_weights - (weights * of_weights).sum(axis=1, keepdims=True))
        of_scores = (of_scores / math.sqrt(q.shape[1])).astype(q.dtype)
        gradients[0].append(_product(of_scores, k, 1, 0))
        gradients[1].append(_product(of_scores, q, 0, 0))
        gradients[2].append(_product(dropped.astype(g.dtype), g, 0, 0))
    joined = [jnp.concatenate(parts, axis=1) for parts in gradients]
    of_query[0] = joined[0].astype(of_query.dtype)
    for total, new in zip((of_key, of_value), joined[1:], strict=True):

        @pl.when(pl.program_id(2) == 0)
        def _(total: Any = total, new: Array = new) -> None:
            total[0] = new.astype(total.dtype)

        @pl.when(pl.program_id(2) > 0)
        def _(total: Any = total, new: Array = new) -> None:
            total[0] += new.astype(total.dtype)


def flash_by_rows(
    inputs: AttentionInputs, dropout: tuple[Array, float] | None, *, interpret: bool = False
) -> Float[Array, "b h q d_v"]:
    """`flash` for the rows and heads of each device: XLA cannot shard a kernel. On a mesh, each device drops
    other elements."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = dict(nn.get_logical_axis_rules())
    one = mesh.empty or not mesh.auto_axes
    rows: Any = () if one else axes.get("rows") or ()
    heads: Any = None if one else axes.get("heads")
    number = inputs.query.shape[1]
    key, rate = dropout or (None, 0.0)
    if heads and number % mesh.shape[heads]:
        heads = None  # they are replicated

    def on_device(mask: Mask, key: Array | None, query: Array, keys: Array, values: Array) -> Array:
        local_heads = number // mesh.shape[heads] if heads else number
        if key is None:
            return flash(local_heads, query, keys, values, mask, interpret=interpret)
        key = key if one else jax.random.fold_in(key, jax.lax.axis_index((*rows, *filter(None, [heads]))))
        return flash(local_heads, query, keys, values, mask, (key, rate), interpret=interpret)

    spec = PartitionSpec(rows, None, heads)
    specs = (PartitionSpec(rows), PartitionSpec(), spec, spec, spec)
    run = on_device
    if not one:
        run = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)
    arrays = inputs.query, inputs.keys, inputs.values
    joined = [x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) for x in arrays]
    context = run(inputs.mask, key, *joined)
    return context.reshape(*context.shape[:2], number, -1).swapaxes(1, 2)
