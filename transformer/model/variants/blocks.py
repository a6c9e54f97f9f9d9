"""Restricted self-attention (section 4) block by block."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.model.kernels import SMALLEST_BLOCK, Einsums
from transformer.model.masks import AttentionInputs


def in_blocks(inputs: AttentionInputs, einsums: Einsums) -> Float[Array, "b h t d_v"]:
    """Restricted self-attention (section 4) block by block, at a cost linear in the length."""
    assert inputs.mask.window is not None
    query = inputs.query
    block = max(inputs.mask.window, SMALLEST_BLOCK)
    blocks = jnp.pad(query, ((0, 0), (0, 0), (0, -query.shape[2] % block), (0, 0)))
    blocks = blocks.reshape(*query.shape[:2], -1, block, query.shape[3])
    keys, values = _neighbours(inputs.keys, block), _neighbours(inputs.values, block)
    context, _ = einsums(blocks, keys, values, _mask_of_blocks(inputs.allowed(), block))
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
