"""Rows of parameters for words that were added to a vocabulary."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.model.parameters import Declarations, Params, vocabulary_axes


def with_added_rows(
    params: Params, declared: Declarations, first: int, replaced: Sequence[Sequence[int]]
) -> Params:
    """Parameters in which each added id has the mean of the rows of the ids that it replaces: the embeddings,
    the output matrix and the bias of the logits.

    Args:
      params: of the model before.
      declared: its declarations, which name the axis of the vocabulary.
      first: the first added id. Rows from there on that the model has already are those of no token.
      replaced: for each added id, the ids whose mean it has.
    """
    leaves = flatten_dict(params)
    for path, axis in vocabulary_axes(declared).items():
        table = jnp.moveaxis(leaves[path], axis, 0)
        rows = [table[jnp.array(ids)].mean(0) for ids in replaced]
        grown = jnp.concatenate([table[:first], jnp.stack(rows), table[first + len(rows) :]])
        leaves[path] = jnp.moveaxis(grown, 0, axis)
    return unflatten_dict(leaves)
