"""Kernels: the ways to compute Eq. 1. All give the same result up to rounding."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.config.transformer import StackConfig
from transformer.model import cache
from transformer.model.masks import AttentionInputs, masked_softmax
from transformer.model.parameters import platform, variant

SMALLEST_BLOCK = 16  # of blocks (`variants.blocks`): smaller products are no faster
FEWEST_QUERIES = 16  # for `fused`, which is no faster for the few queries of a decoding step
MOST_HEADS = 8  # for `with_joined_heads`, which multiplies each query as often as there are heads
MOST_BEAMS = 16  # for the same

Einsums = Callable[[Array, Array, Array, Array], tuple[Array, Array]]
"""Eq. 1 of query, keys, values and dense mask: contexts and weights."""


def attend(
    config: StackConfig, inputs: AttentionInputs, einsums: Einsums, dropout_key: Callable[[], Array]
) -> tuple[Float[Array, "b h q d_v"], Float[Array, "b h q k"] | None]:
    """Contexts, by the fastest kernel that can compute them here, and the weights if they are needed."""
    rate = 0.0 if inputs.deterministic else config.attention_dropout
    if inputs.keys.shape[1] != inputs.query.shape[1]:
        return with_joined_heads(inputs)
    if runs_in_blocks(inputs):
        return variant("blocks.in_blocks")(inputs, einsums), None
    if runs_flash(config, inputs):
        from transformer.model.flash import flash_by_rows

        return flash_by_rows(inputs, (dropout_key(), rate) if rate > 0 else None), None
    if runs_fused(config, inputs, rate):
        return fused(config, inputs), None
    return einsums(inputs.query, inputs.keys, inputs.values, inputs.allowed())


def runs_in_blocks(inputs: AttentionInputs) -> bool:
    """Whether `in_blocks`, which has no bias and no weights, is faster: the window is short, and queries and
    keys are the same positions."""
    queries = inputs.query.shape[2]
    keys = inputs.keys.shape[2]
    window = inputs.mask.window
    if inputs.needs_weights or inputs.bias is not None or window is None:
        return False
    return queries == keys and 4 * max(window, SMALLEST_BLOCK) <= queries


def runs_fused(config: StackConfig, inputs: AttentionInputs, rate: float) -> bool:
    """Whether to use `fused`, which has no weights and no attention dropout, and needs d_v = d_k."""
    if inputs.needs_weights or rate > 0 or config.key_width != config.value_width:
        return False
    if config.attention == "auto":
        return inputs.query.shape[2] >= FEWEST_QUERIES and _cudnn_runs(config)
    return config.attention == "fused"


def _cudnn_runs(config: StackConfig) -> bool:
    shapes_fit = config.key_width % 8 == 0 and config.key_width <= 128
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

    return fits(inputs.query.shape[2], inputs.keys.shape[2], inputs.mask)


def runs_with_joined_heads(mechanism: str, heads: int, beams: int) -> bool:
    """Whether to decode with `with_joined_heads`, and to cache keys and values for it."""
    few = heads <= MOST_HEADS and beams <= MOST_BEAMS
    return few and mechanism == "dot-product" and platform() == "tpu"


def with_joined_heads(
    inputs: AttentionInputs,
) -> tuple[Float[Array, "b h q d_v"], Float[Array, "b h q k"]]:
    """Eq. 1 for the few queries of a decoding step, as two products for each row: contexts and weights. Keys
    and values have their heads joined, `[b, 1, k, hd]`.

    A product for each head, of a few queries with narrow keys, uses little of a TPU's matrix unit, and narrow
    keys are padded in its memory. Here a head's query is zero in the columns of the other heads, and of its
    context only its own columns are used.
    """

    def head_columns(x: Array) -> Bool[Array, "h hd"]:
        return jnp.repeat(jnp.eye(heads, dtype=bool), x.shape[-1] // heads, axis=1)

    query = inputs.query
    bias = inputs.bias
    heads = inputs.query.shape[1]
    keys, values = inputs.keys[:, 0], inputs.values[:, 0]
    apart = jnp.where(head_columns(keys), cache.join_heads(query).swapaxes(1, 2), 0)
    scores = jnp.einsum("bqhm,bkm->bqhk", apart, keys, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(query.shape[3])
    scores = scores if bias is None else scores + bias.swapaxes(1, 2)
    weights = masked_softmax(scores, inputs.allowed().swapaxes(1, 2))
    contexts = jnp.einsum("bqhk,bkm->bqhm", weights.astype(values.dtype), values)
    context = jnp.where(head_columns(values), contexts, 0).sum(axis=2)
    return context.reshape(*context.shape[:2], heads, -1).swapaxes(1, 2), weights.swapaxes(1, 2)


def fused(config: StackConfig, inputs: AttentionInputs) -> Float[Array, "b h q d"]:
    """`jax.nn.dot_product_attention`, with cuDNN's kernel where it runs."""
    allowed = inputs.allowed()
    queries, keys = (inputs.query.shape[2], inputs.keys.shape[2])
    context = jax.nn.dot_product_attention(
        inputs.query.swapaxes(1, 2),
        inputs.keys.swapaxes(1, 2),
        inputs.values.swapaxes(1, 2),
        bias=inputs.bias,
        mask=jnp.broadcast_to(allowed, (*allowed.shape[:2], queries, keys)),
        implementation="cudnn" if _cudnn_runs(config) else None,
    )
    return context.swapaxes(1, 2)
