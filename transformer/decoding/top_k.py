"""The most probable tokens of wide vocabularies, exactly, in few passes over the logits."""

import functools

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import SpecialIds
from transformer.decoding.scores import NEVER, TopK

BLOCK = 128  # logits


def top_k(x: Float[Array, "b n v"], k: int) -> TopK:
    """`lax.top_k`, exact, but faster for wide rows: the k largest values are in the k groups with the largest
    maxima, so only those are sorted. (Twice as fast on CPUs; TPUs would sort the whole vocabulary.) Of equal
    values a TPU may choose others."""
    k = min(k, x.shape[-1])
    whole = functools.partial(_whole, k)
    if x.shape[-1] < 2 * k * BLOCK:
        return whole(x)
    from transformer.decoding.strides import top_k_of_strides

    # a GPU has its own kernel
    result: TopK = jax.lax.platform_dependent(
        x,
        cuda=whole,
        tpu=functools.partial(top_k_of_strides, k),
        default=functools.partial(_top_k_of_blocks, k),
    )
    return result


@struct.dataclass
class Unrestricted:
    """Logits of which no hook has forbidden any."""

    logits: Float[Array, "b n v"]
    last: Bool[Array, " b"]
    """Whether only <eos> may follow."""
    special: SpecialIds = struct.field(pytree_node=False)


Best = tuple[Float[Array, "b n k"], Int[Array, "b n k"], Float[Array, "b n 1"]]
"""Logits, tokens, and the log-sum-exp of all logits."""


def best_of(
    unrestricted: Unrestricted, k: int, logits: Float[Array, "b n v"], log_normaliser: Float[Array, "b n 1"]
) -> Best:
    """The k best tokens that are allowed. An accelerator, whose time is that of passes over the
    logits, removes <pad> and <bos> from its winners only.

    Args:
      unrestricted: the logits.
      k: number of tokens.
      logits: the same logits, -inf for what is forbidden.
      log_normaliser: their log-sum-exp before.
    """

    def plain(logits: Array, log_normaliser: Array, unrestricted: Unrestricted) -> Best:
        return *top_k(logits, k), log_normaliser

    if logits.shape[-1] < 2 * (k + 2) * BLOCK:
        return plain(logits, log_normaliser, unrestricted)

    best: Best = jax.lax.platform_dependent(
        logits,
        log_normaliser,
        unrestricted,
        cuda=lambda _, log_normaliser, unrestricted: (*best_of_whole(unrestricted, k), log_normaliser),
        tpu=lambda _, log_normaliser, unrestricted: best_in_one_pass(unrestricted, k),
        default=plain,
    )
    return best


def best_in_one_pass(unrestricted: Unrestricted, k: int) -> Best:
    """`best_of` for TPUs, in one pass over the logits."""
    from transformer.decoding.strides import largest

    never = unrestricted.special.never_predicted
    values, tokens, log_normaliser = largest(unrestricted.logits, k, never)
    return *_or_eos(unrestricted, values, tokens), log_normaliser


def best_of_whole(unrestricted: Unrestricted, k: int) -> TopK:
    """The k best tokens that are allowed, with `lax.top_k`, which is a kernel on GPUs."""
    never = unrestricted.special.never_predicted
    values, tokens = _whole(k + len(never), unrestricted.logits)
    values = jnp.where(jnp.isin(tokens, jnp.array(never)), NEVER, values)
    values, chosen = jax.lax.top_k(values, k)
    return _or_eos(unrestricted, values, jnp.take_along_axis(tokens, chosen, axis=-1))


def _or_eos(unrestricted: Unrestricted, values: Float[Array, "b n k"], tokens: Int[Array, "b n k"]) -> TopK:
    """The best tokens, or <eos> where it is the last step."""
    eos, last = unrestricted.special.eos, unrestricted.last[:, None, None]
    first = jnp.arange(values.shape[-1]) == 0
    ending = jnp.where(first, unrestricted.logits[..., eos, None], NEVER)
    return jnp.where(last, ending, values), jnp.where(last & first, eos, tokens)


def _whole(k: int, x: Float[Array, "b n v"]) -> TopK:
    return tuple(jax.lax.top_k(x, k))  # type: ignore[return-value]


def _top_k_of_blocks(k: int, x: Float[Array, "b n v"]) -> TopK:
    block = BLOCK
    width = x.shape[-1]
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, -width % block)), constant_values=NEVER)
    blocks = padded.reshape(*x.shape[:-1], -1, block)
    _, winners = jax.lax.top_k(blocks.max(axis=-1), k)
    winners = jnp.sort(winners, axis=-1)  # ties go to the first, as in lax.top_k
    inside = jnp.take_along_axis(blocks, winners[..., None], axis=-2)
    values, chosen = jax.lax.top_k(inside.reshape(*x.shape[:-1], -1), k)
    winner = jnp.take_along_axis(winners, chosen // block, axis=-1)
    return values, winner * block + chosen % block
