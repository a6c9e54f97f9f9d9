"""chrF between all pairs of candidates, in one compiled program: the utility of minimum Bayes risk decoding.

The output with the least expected risk is the one most like the model's other outputs (Kumar and Byrne 2004;
Eikema and Aziz 2020).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

ORDER = 6
BETA = 2.0
LENGTHS = 64  # texts are padded to a multiple of this
_FACTORS = (1_000_003, 2_654_435_761)


def pairwise_chrf(texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
    """chrF (Popovic 2015; sacreBLEU's default) of each text as a hypothesis against each as the reference,
    from 0 to 100."""
    squeezed = ["".join(text.split()) for text in texts]
    longest = max(1, *map(len, squeezed)) if squeezed else 1
    codes = np.zeros((len(texts), -(-longest // LENGTHS) * LENGTHS), np.int32)
    for row, text in enumerate(squeezed):
        codes[row, : len(text)] = list(map(ord, text))
    return np.asarray(_chrf(jnp.asarray(codes)))


def expected_chrf(texts: Sequence[str]) -> Float[np.ndarray, " n"]:
    """The mean chrF of each text, with all the others as references; of a single one 100."""
    if len(texts) < 2:
        return np.full(len(texts), 100.0)
    matrix = pairwise_chrf(texts).astype(np.float64)
    return (matrix.sum(axis=1) - matrix.diagonal()) / (len(texts) - 1)


@jax.jit
def _chrf(codes: Int[Array, "n t"]) -> Float[Array, "n n"]:
    length = (codes != 0).sum(axis=1)
    precision = recall = orders = jnp.zeros((len(codes), len(codes)))
    for order in range(1, ORDER + 1):
        matches = _matches(codes, order, length)
        count = jnp.maximum(length - order + 1, 0).astype(jnp.float32)
        both_have = (count[:, None] > 0) & (count[None, :] > 0)
        precision += jnp.where(both_have, matches / jnp.maximum(count[:, None], 1), 0)
        recall += jnp.where(both_have, matches / jnp.maximum(count[None, :], 1), 0)
        orders += both_have
    precision, recall = (total / jnp.maximum(orders, 1) for total in (precision, recall))
    divisor = BETA**2 * precision + recall
    return 100 * (1 + BETA**2) * precision * recall / jnp.where(divisor > 0, divisor, 1)


def _matches(codes: Int[Array, "n t"], order: int, length: Int[Array, " n"]) -> Float[Array, "n n"]:
    """How many n-grams each pair has in common, each as often as in both. An n-gram and how often it
    occurred before is one item. So a text is a set of items, and a product of matrices counts what two sets
    share."""
    texts, time = codes.shape
    valid = jnp.arange(time) < (length - order + 1)[:, None]
    keys = [_hashes(codes, order, factor) for factor in _FACTORS]
    same = (keys[0][:, :, None] == keys[0][:, None, :]) & (keys[1][:, :, None] == keys[1][:, None, :])
    earlier = same & valid[:, None, :] & jnp.tri(time, k=-1, dtype=bool)
    nth = earlier.sum(axis=-1).astype(jnp.uint32)
    items = _numbered(keys[0] + nth * jnp.uint32(0x9E3779B1), keys[1] ^ (nth * jnp.uint32(0x85EBCA6B)), valid)
    sets = jnp.zeros((texts, texts * time + 1)).at[jnp.arange(texts)[:, None], items].set(1.0)
    sets = sets[:, :-1]
    return jnp.matmul(sets, sets.T, precision="highest")


def _hashes(codes: Int[Array, "n t"], order: int, factor: int) -> UInt[Array, "n t"]:
    """A hash of the n-gram that begins at each position."""
    hashes = jnp.zeros(codes.shape, jnp.uint32)
    padded = jnp.pad(codes, ((0, 0), (0, order - 1))).astype(jnp.uint32)
    for offset in range(order):
        hashes = hashes * jnp.uint32(factor) + padded[:, offset : offset + codes.shape[1]] + jnp.uint32(1)
        hashes ^= hashes >> 15
    return hashes


def _numbered(
    first: UInt[Array, "n t"], second: UInt[Array, "n t"], valid: Bool[Array, "n t"]
) -> Int[Array, "n t"]:
    """A number for each different pair of hashes; the last number for what is not valid."""
    size = first.size
    order = jnp.arange(size)
    one, two, positions = jax.lax.sort((first.ravel(), second.ravel(), order), num_keys=2)
    changes = (one[1:] != one[:-1]) | (two[1:] != two[:-1])
    numbers = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changes.astype(jnp.int32))])
    numbered = jnp.zeros(size, jnp.int32).at[positions].set(numbers).reshape(first.shape)
    return jnp.where(valid, numbered, size)
