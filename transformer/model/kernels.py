"""Kernels: the ways to compute Eq. 1. All give the same result up to rounding."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config.transformer import StackConfig
from transformer.model.masks import AttentionInputs
from transformer.model.parameters import platform, variant

SMALLEST_BLOCK = 16  # of blocks (`variants.blocks`): smaller products are no faster
FEWEST_QUERIES = 16  # for `fused`, which is no faster for the few queries of a decoding step
MOST_HEADS = 8  # for `heads.with_joined_heads`, which multiplies each query as often as there are heads
MOST_BEAMS = 16  # for the same

Einsums = Callable[..., tuple[Array, Array | None]]
"""Eq. 1 of query, keys, values, dense mask, dense bias and key of dropout: contexts and weights."""


def attend(
    config: StackConfig, inputs: AttentionInputs, einsums: Einsums, dropout_key: Callable[[], Array]
) -> tuple[Float[Array, "b h q d_v"], Float[Array, "b h q k"] | None]:
    """Contexts, by the fastest kernel that can compute them here, and the weights if they are needed."""
    rate = 0.0 if inputs.deterministic else config.attention_dropout
    key = dropout_key() if rate > 0 else None
    if inputs.keys.shape[1] != inputs.query.shape[1]:
        return variant("heads.with_joined_heads")(inputs)  # type: ignore[no-any-return]
    if runs_in_blocks(inputs):
        return variant("blocks.in_blocks")(inputs, einsums, key), None
    if runs_flash(config, inputs):
        from transformer.model.flash import flash_by_rows

        return flash_by_rows(inputs, None if key is None else (key, rate)), None
    is_fused = runs_fused(config, inputs, rate)
    kernel = functools.partial(fused, config) if is_fused else einsums
    if inputs.is_long and not (inputs.needs_weights or (is_fused and inputs.bias is None)):
        return variant("blocks.by_queries")(inputs, kernel, key), None
    return kernel(inputs.query, inputs.keys, inputs.values, inputs.allowed(), inputs.dense_bias(), key)


def runs_in_blocks(inputs: AttentionInputs) -> bool:
    """Whether `in_blocks`, which has no bias and no weights, is faster: the window is short, and queries and
    keys are the same positions."""
    queries, keys = inputs.query.shape[2], inputs.keys.shape[2]
    window = inputs.mask.window
    if inputs.needs_weights or inputs.bias is not None or window is None:
        return False
    return queries == keys and 4 * max(window, SMALLEST_BLOCK) <= queries


def runs_fused(config: StackConfig, inputs: AttentionInputs, rate: float) -> bool:
    """Whether to use `fused`, which has no weights and no attention dropout, and needs d_v = d_k."""
    if inputs.needs_weights or rate > 0 or config.key_width != config.value_width:
        return False
    if config.attention == "auto":
        queries, keys = inputs.query.shape[2], inputs.keys.shape[2]
        return queries >= FEWEST_QUERIES and _cudnn_runs(config, queries, keys)
    return config.attention == "fused"


def _cudnn_runs(config: StackConfig, queries: int, keys: int) -> bool:
    shapes_fit = config.key_width % 8 == 0 and config.key_width <= 128 and queries % 2 == keys % 2 == 0
    return shapes_fit and config.compute_dtype == "bfloat16" and platform() == "gpu"


def runs_flash(config: StackConfig, inputs: AttentionInputs) -> bool:
    """Whether to use the kernel of TPUs (`transformer.model.flash`), which has neither bias nor weights: only
    where it is known how rows are sharded over devices, as in training. Elsewhere XLA would shard them, and
    it cannot shard a kernel."""
    if inputs.needs_weights or inputs.bias is not None or platform() != "tpu":
        return False
    chosen = config.attention == "fused" or (
        config.attention == "auto" and config.compute_dtype == "bfloat16"
    )
    is_sharded = not jax.sharding.get_abstract_mesh().empty
    if not (chosen and is_sharded):
        return False
    from transformer.model.flash import fits

    return fits(inputs)


def runs_with_joined_heads(mechanism: str, heads: int, beams: int) -> bool:
    """Whether to decode with `heads.with_joined_heads`, and to cache keys and values for it."""
    few = heads <= MOST_HEADS and beams <= MOST_BEAMS
    return few and mechanism == "dot-product" and platform() == "tpu"


def fused(
    config: StackConfig, query: Array, keys: Array, values: Array, allowed: Array, bias: Array | None, _: None
) -> tuple[Float[Array, "b h q d"], None]:
    """`jax.nn.dot_product_attention`, with cuDNN's kernel where it runs. Arguments as of `Einsums`."""
    context = jax.nn.dot_product_attention(
        query.swapaxes(1, 2),
        keys.swapaxes(1, 2),
        values.swapaxes(1, 2),
        bias=bias,
        mask=jnp.broadcast_to(allowed, (*allowed.shape[:2], query.shape[2], keys.shape[2])),
        implementation="cudnn" if _cudnn_runs(config, query.shape[2], keys.shape[2]) else None,
    )
    return context.swapaxes(1, 2), None
