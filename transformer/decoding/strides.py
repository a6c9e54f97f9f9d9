"""The largest values of wide rows on a TPU, where sorting them would take most of a step: of strides, whose
maxima are found in one pass."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.scores import NEVER, TopK

TILE = 128  # logits
PARTS = 32  # of the logits, of which each stride has one element


def largest(
    x: Float[Array, "b n v"], k: int, never: tuple[int, ...]
) -> tuple[Float[Array, "b n k"], Int[Array, "b n k"], Float[Array, "b n 1"]]:
    """The k largest values of x without those in the columns `never`, their columns, and the log-sum-exp of
    all: one pass over x finds the maxima of strides and their sums of exponentials, which are relative to
    these maxima (Milakov and Gimelshein 2018)."""
    lowest = jnp.finfo(x.dtype).min
    parts = _slices_of_strides(x)
    maxima = functools.reduce(jnp.maximum, parts)
    finite = jnp.maximum(maxima, lowest)
    sums = functools.reduce(jnp.add, [jnp.exp(part - finite) for part in parts])
    maxima, sums = jax.lax.optimization_barrier((maxima, sums))  # otherwise each has its own pass
    highest, winners = jax.lax.top_k(maxima, k + len(never))
    values, tokens = _largest_of_strides(k, x, winners, maxima.shape[-1], never)
    highest = jnp.maximum(highest[..., :1], lowest)
    log_normaliser = jnp.log((sums * jnp.exp(maxima - highest)).sum(axis=-1, keepdims=True)) + highest
    return values, tokens, log_normaliser


def top_k_of_strides(k: int, x: Float[Array, "b n v"]) -> TopK:
    """Stride i has the elements i, i + w, i + 2 w, ...: their maxima need no other layout of x."""
    maxima = functools.reduce(jnp.maximum, _slices_of_strides(x))
    return _largest_of_strides(k, x, jax.lax.top_k(maxima, k)[1], maxima.shape[-1])


def _slices_of_strides(x: Float[Array, "b n v"]) -> list[Float[Array, "b n w"]]:
    """The slices of x that have one element of each stride."""
    width = x.shape[-1]
    wide = -(-width // (PARTS * TILE)) * TILE
    parts = [x[..., start : start + wide] for start in range(0, width, wide)]
    missing = wide - parts[-1].shape[-1]
    parts[-1] = jnp.pad(parts[-1], ((0, 0), (0, 0), (0, missing)), constant_values=NEVER)
    return parts


def _largest_of_strides(
    k: int, x: Float[Array, "b n v"], strides: Int[Array, "b n s"], wide: int, never: tuple[int, ...] = ()
) -> TopK:
    """The k largest values of x in these strides of `wide`, without those in the columns `never`."""
    width = x.shape[-1]
    columns = strides[..., None, :] + wide * jnp.arange(-(-width // wide))[:, None]
    columns = jnp.sort(columns.reshape(*x.shape[:-1], -1), axis=-1)
    able = functools.reduce(jnp.logical_and, [columns != column for column in never], columns < width)
    columns = jnp.minimum(columns, width - 1)
    inside = jnp.take_along_axis(x, columns, axis=-1)
    values, chosen = jax.lax.top_k(jnp.where(able, inside, NEVER), k)
    return values, jnp.take_along_axis(columns, chosen, axis=-1)
