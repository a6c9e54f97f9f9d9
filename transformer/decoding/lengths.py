"""The lengths of inputs and outputs, and batches of one length."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from transformer.config import DecodingConfig


def within_positions(
    settings: DecodingConfig, longest: int | None, longest_source: int | None
) -> DecodingConfig:
    """Limits inputs and outputs to the sizes of learned position tables, if there are some."""
    if longest is not None:
        settings = dataclasses.replace(settings, max_length=min(settings.max_length or longest, longest))
    if longest_source is not None and settings.buckets[-1] > longest_source:
        shorter = (length for length in settings.buckets if length < longest_source)
        settings = dataclasses.replace(settings, buckets=(*shorter, longest_source))
    return settings


def bucket_of(length: int, settings: DecodingConfig) -> int:
    """The padded length of an input: that of the smallest bucket that holds it."""
    return next(size for size in settings.buckets if size >= length)


def of_like_length(lengths: list[int], settings: DecodingConfig) -> Iterator[tuple[list[int], int]]:
    """Yields indices of similar length, `rows` at a time, and their padded length: the smallest bucket that
    holds them. If the last batch is not full, it has the shortest."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for start in range(0, len(order), settings.rows):
        members = order[start : start + settings.rows]
        yield members, bucket_of(lengths[members[0]], settings)


def of_any_length(
    lengths: list[int], settings: DecodingConfig, table: int | None
) -> Iterator[tuple[list[int], int, int]]:
    """`of_like_length` for lengths of which some are beyond the buckets: yields indices, their padded length
    and the number of rows. Each of the longer ones is alone."""
    last = settings.buckets[-1]
    short = [index for index, length in enumerate(lengths) if length <= last]
    for members, length in of_like_length([lengths[index] for index in short], settings):
        yield [short[member] for member in members], length, settings.rows
    for index, length in enumerate(lengths):
        if length > last:
            whole = -(-length // last) * last
            yield [index], min(whole, table or whole), 1


def shapes_of_any_length(settings: DecodingConfig, table: int | None, longest: int) -> list[tuple[int, int]]:
    """All padded lengths and numbers of rows that `of_any_length` can have.

    Args:
      settings: as of `of_any_length`, and so is table.
      table: see `settings`.
      longest: of the lengths, at most.
    """
    last = settings.buckets[-1]
    longer = [min(whole, table or whole) for whole in range(2 * last, longest + last, last)]
    return [(length, settings.rows) for length in settings.buckets] + [(whole, 1) for whole in longer]


def padded(
    sentences: Sequence[Sequence[int]], length: int, rows: int, pad: int
) -> Int[np.ndarray, "{rows} {length}"]:
    """A batch of exactly `rows` rows."""
    batch = np.full((rows, length), pad, np.int32)
    for row, ids in enumerate(sentences):
        batch[row, : len(ids)] = ids
    return batch
