"""Attention of the few queries of a decoding step on a TPU."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.model.cache import join_heads
from transformer.model.masks import AttentionInputs, masked_softmax


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
    bias = inputs.dense_bias()
    heads = inputs.query.shape[1]
    keys, values = inputs.keys[:, 0], inputs.values[:, 0]
    apart = jnp.where(head_columns(keys), join_heads(query).swapaxes(1, 2), 0)
    scores = jnp.einsum("bqhm,bkm->bqhk", apart, keys, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(query.shape[3])
    scores = scores if bias is None else scores + bias.swapaxes(1, 2)
    weights = masked_softmax(scores, inputs.allowed().swapaxes(1, 2))
    contexts = jnp.einsum("bqhk,bkm->bqhm", weights.astype(values.dtype), values)
    context = jnp.where(head_columns(values), contexts, 0).sum(axis=2)
    return context.reshape(*context.shape[:2], heads, -1).swapaxes(1, 2), weights.swapaxes(1, 2)
