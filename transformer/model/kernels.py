"""Kernels: the ways to compute Eq. 1. All give the same result up to rounding."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from transformer.config import StackConfig
from transformer.model import cache, flash
from transformer.model.masks import Mask
from transformer.model.placement import platform

Drop = Callable[[Array], Array]
SMALLEST_BLOCK = 16  # of `in_blocks`: smaller products are no faster
FEWEST_QUERIES = 16  # for `fused`, which is no faster for the few queries of a decoding step
MOST_HEADS = 8  # for `with_joined_heads`, which multiplies each query as often as there are heads
MOST_BEAMS = 16  # for the same


def runs_in_blocks(queries: int, keys: int, mask: Mask) -> bool:
    """Whether `in_blocks` is faster: the window is short, and queries and keys are the same positions."""
    return queries == keys and mask.window is not None and 4 * max(mask.window, SMALLEST_BLOCK) <= queries


def runs_fused(config: StackConfig, queries: int, dropout: bool) -> bool:
    """Whether to use `fused`, which has no attention dropout and needs d_v = d_k."""
    if dropout or config.key_width != config.value_width:
        return False
    if config.attention == "auto":
        return queries >= FEWEST_QUERIES and _cudnn_runs(config)
    return config.attention == "fused"


def _cudnn_runs(config: StackConfig) -> bool:
    shapes_fit = config.key_width % 8 == 0 and config.key_width <= 128
    return shapes_fit and config.compute_dtype == "bfloat16" and platform() == "gpu"


def runs_flash(config: StackConfig, queries: int, keys: int, mask: Mask) -> bool:
    """Whether to use the kernel of TPUs (`transformer.model.flash`): only where it is known how rows are
    divided over devices, as in training. Elsewhere XLA would divide them, and it cannot divide a kernel."""
    wanted = config.attention == "fused" or (
        config.attention == "auto" and config.compute_dtype == "bfloat16"
    )
    divided = not jax.sharding.get_abstract_mesh().empty
    return wanted and platform() == "tpu" and divided and flash.fits(queries, keys, mask)


def flash_by_rows(
    query: Float[Array, "b h q d_k"],
    keys: Float[Array, "b h k d_k"],
    values: Float[Array, "b h k d_v"],
    mask: Mask,
    dropout: tuple[Array, float] | None,
    *,
    interpret: bool = False,
) -> Float[Array, "b h q d_v"]:
    """`flash` for the rows and heads of each device: XLA cannot divide a kernel. On a mesh, each device drops
    other elements."""
    mesh, axes = jax.sharding.get_abstract_mesh(), dict(nn.get_logical_axis_rules())
    one = mesh.empty or not mesh.auto_axes
    rows: Any = () if one else axes.get("rows") or ()
    heads: Any = None if one else axes.get("heads")
    number, (key, rate) = query.shape[1], dropout or (None, 0.0)
    if heads and number % mesh.shape[heads]:
        heads = None  # they are replicated

    def here(mask: Mask, key: Array | None, query: Array, keys: Array, values: Array) -> Array:
        mine = number // mesh.shape[heads] if heads else number
        if key is None:
            return flash.flash(mine, query, keys, values, mask, interpret=interpret)
        key = key if one else jax.random.fold_in(key, jax.lax.axis_index((*rows, *filter(None, [heads]))))
        return flash.flash(mine, query, keys, values, mask, (key, rate), interpret=interpret)

    spec = PartitionSpec(rows, None, heads)
    specs, run = (PartitionSpec(rows), PartitionSpec(), spec, spec, spec), here
    if not one:
        run = jax.shard_map(here, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)
    beside = [x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) for x in (query, keys, values)]
    context = run(mask, key, *beside)
    return context.reshape(*context.shape[:2], number, -1).swapaxes(1, 2)


def runs_with_joined_heads(mechanism: str, heads: int, beams: int) -> bool:
    """Whether to decode with `with_joined_heads`, and to cache keys and values for it."""
    few = heads <= MOST_HEADS and beams <= MOST_BEAMS
    return few and mechanism == "dot-product" and platform() == "tpu"


def with_joined_heads(
    query: Float[Array, "b h q d_k"],
    keys: Float[Array, "b 1 k hd_k"],
    values: Float[Array, "b 1 k hd_v"],
    mask: Mask,
    bias: Float[Array, "#b h #q k"] | None,
) -> tuple[Float[Array, "b h q d_v"], Float[Array, "b h q k"]]:
    """Eq. 1 for the few queries of a decoding step, as two products for each row: contexts and weights.

    A product for each head, of a few queries with narrow keys, uses little of a TPU's matrix unit, and narrow
    keys are padded in its memory. Here a head's query is zero in the columns of the other heads, and of its
    context only its own columns are kept.
    """

    def own(x: Array) -> Bool[Array, "h hd"]:
        return jnp.repeat(jnp.eye(heads, dtype=bool), x.shape[-1] // heads, axis=1)

    heads, keys, values = query.shape[1], keys[:, 0], values[:, 0]
    apart = jnp.where(own(keys), cache.join_heads(query).swapaxes(1, 2), 0)
    scores = jnp.einsum("bqhm,bkm->bqhk", apart, keys, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(query.shape[3])
    scores = scores if bias is None else scores + bias.swapaxes(1, 2)
    allowed = mask.dense(query.shape[2], keys.shape[1]).swapaxes(1, 2)
    weights = jax.nn.softmax(jnp.where(allowed, scores, jnp.finfo(jnp.float32).min))
    contexts = jnp.einsum("bqhk,bkm->bqhm", weights.astype(values.dtype), values)
    context = jnp.where(own(values), contexts, 0).sum(axis=2)
    return context.reshape(*context.shape[:2], heads, -1).swapaxes(1, 2), weights.swapaxes(1, 2)


def fused(
    config: StackConfig,
    query: Float[Array, "b h q d"],
    keys: Float[Array, "b h k d"],
    values: Float[Array, "b h k d"],
    mask: Mask,
    bias: Float[Array, "#b #h #q k"] | None,
) -> Float[Array, "b h q d"]:
    """`jax.nn.dot_product_attention`, with cuDNN's kernel where it runs."""

    def time_first(x: Array) -> Array:
        return jnp.swapaxes(x, 1, 2)

    dense = mask.dense(query.shape[2], keys.shape[2])
    context = jax.nn.dot_product_attention(
        time_first(query),
        time_first(keys),
        time_first(values),
        bias=bias,
        mask=jnp.broadcast_to(dense, (*dense.shape[:2], query.shape[2], keys.shape[2])),
        implementation="cudnn" if _cudnn_runs(config) else None,
    )
    return time_first(context)


def in_blocks(
    weights_of: Callable[[Array, Array, Array], Array],
    query: Float[Array, "b h t d_k"],
    keys: Float[Array, "b h t d_k"],
    values: Float[Array, "b h t d_v"],
    mask: Mask,
    drop: Drop,
) -> Float[Array, "b h t d_v"]:
    """Restricted self-attention (section 4) block by block, at a cost linear in the length.

    Args:
      weights_of: (queries, keys, dense mask) -> attention weights.
      drop: dropout of the weights.
    """
    assert mask.window is not None
    time, block = query.shape[2], max(mask.window, SMALLEST_BLOCK)
    query = jnp.pad(query, ((0, 0), (0, 0), (0, -time % block), (0, 0)))
    query = query.reshape(*query.shape[:2], -1, block, query.shape[3])
    weights = weights_of(query, _neighbours(keys, block), _mask_of_blocks(mask.dense(time, time), block))
    context = jnp.einsum("...qk,...kd->...qd", drop(weights).astype(values.dtype), _neighbours(values, block))
    return context.reshape(*context.shape[:2], -1, context.shape[4])[:, :, :time]


def _neighbours(x: Float[Array, "b h k d"], block: int) -> Float[Array, "b h _ _ d"]:
    """For each block of positions, those of the previous block, of itself and of the next block."""
    padded = jnp.pad(x, ((0, 0), (0, 0), (block, block + -x.shape[2] % block), (0, 0)))
    blocks = padded.reshape(*x.shape[:2], -1, block, x.shape[3])
    return jnp.concatenate([blocks[:, :, :-2], blocks[:, :, 1:-1], blocks[:, :, 2:]], axis=3)


def _mask_of_blocks(mask: Bool[Array, "#b 1 q k"], block: int) -> Bool[Array, "#b 1 _ _ _"]:
    """The part of a mask for the queries of each block and the keys of `_neighbours`."""
    padding = -mask.shape[2] % block
    padded = jnp.pad(mask, ((0, 0), (0, 0), (0, padding), (block, block + padding)))
    rows = jnp.arange(mask.shape[2] + padding).reshape(-1, block, 1)
    columns = jnp.arange(0, len(rows) * block, block)[:, None, None] + jnp.arange(3 * block)
    return padded[:, :, rows, columns]
