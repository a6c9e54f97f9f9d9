"""Attention block by block: restricted self-attention (section 4), and that of long inputs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.model.kernels import SMALLEST_BLOCK, Einsums
from transformer.model.masks import AttentionInputs
from transformer.model.parameters import platform

LANES = 128
MOST_SCORES = {"cpu": 2**24}  # of all rows, heads and queries at a time: 64 MB, and on accelerators 512


def by_queries(
    inputs: AttentionInputs, kernel: Einsums, dropout_key: Array | None
) -> Float[Array, "b h q d_v"]:
    """Eq. 1 for one part of the queries after another; the backward pass computes the weights of each again.
    A query attends to all of its keys at once, so the softmax is the ordinary one. Memory grows as the
    length, and not as its square (Rabe and Staats 2021)."""
    query, dtype = inputs.query, inputs.keys.dtype
    rows, heads, queries, width = query.shape
    at_once = MOST_SCORES.get(platform(), 2**27) // (rows * heads * inputs.keys.shape[2]) // LANES * LANES
    number = -(-queries // max(LANES, at_once))
    count = min(queries, -(-queries // number // LANES) * LANES)  # cuDNN has no parts of odd lengths
    number = -(-queries // count)
    last = (number - 1) * count  # the last part begins before it, if not all are equally long
    wide = inputs.keys.astype(jnp.float32), inputs.values.astype(jnp.float32)  # to add their gradients

    @jax.checkpoint
    def contexts(first: Int[Array, ""], query: Float[Array, "b h _ d_k"]) -> Float[Array, "b h _ d_v"]:
        keys, values = (x.astype(dtype) for x in wide)
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, first)
        part = first, count
        return kernel(query, keys, values, inputs.allowed(part), inputs.dense_bias(part), key)[0]

    parts = jnp.concatenate([query[:, :, :last], query[:, :, -count:]], axis=2)
    parts = jnp.moveaxis(parts.reshape(rows, heads, number, count, width), 2, 0)
    firsts = jnp.minimum(jnp.arange(number) * count, queries - count)
    several = jax.lax.map(lambda part: contexts(*part), (firsts, parts))
    joined = jnp.moveaxis(several, 0, 2).reshape(rows, heads, number * count, -1)
    return jnp.concatenate([joined[:, :, :last], joined[:, :, number * count - queries + last :]], axis=2)


def in_blocks(
    inputs: AttentionInputs, einsums: Einsums, dropout_key: Array | None
) -> Float[Array, "b h t d_v"]:
    """Restricted self-attention (section 4) block by block, at a cost linear in the length."""
    assert inputs.mask.window is not None
    query = inputs.query
    block = max(inputs.mask.window, SMALLEST_BLOCK)
    blocks = jnp.pad(query, ((0, 0), (0, 0), (0, -query.shape[2] % block), (0, 0)))
    blocks = blocks.reshape(*query.shape[:2], -1, block, query.shape[3])
    keys, values = _neighbours(inputs.keys, block), _neighbours(inputs.values, block)
    mask = _mask_of_blocks(inputs.allowed(), block)
    context, _ = einsums(blocks, keys, values, mask, None, dropout_key)
    return context.reshape(*query.shape[:2], -1, context.shape[4])[:, :, : query.shape[2]]


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
