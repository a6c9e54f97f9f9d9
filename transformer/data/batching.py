"""Makes batches of arrays from examples, by a plan."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from transformer.data.plans import Plan, bucket_of
from transformer.data.sequences import Arrays, Example, Fields, arrays_of, gathered, side_lengths
from transformer.runtime.errors import UserError


@dataclass(frozen=True)
class Batcher:
    """Makes the batches of a plan: this process's share of the rows. `batcher(step)` has an array for each
    field; packed rows add segments. The number of rows depends only on the padded lengths, so there is one
    shape for each bucket."""

    examples: Arrays
    fields: Fields
    plan: Plan
    host: int = 0
    hosts: int = 1

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        rows = self.plan(step)
        share = -(-rows.size // self.hosts)
        before, counts = np.split(rows.counts, [self.host * share])
        counts = counts[:share]
        local = slice(before.sum(), before.sum() + counts.sum())
        examples, chosen = rows.examples or (self.examples, rows.chosen)
        return gathered(examples, chosen[local], counts, self.fields, rows.lengths, share, self.plan.packed)

    def stream(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps [start, stop), prepared ahead by Grain's threads."""
        import grain

        steps = grain.MapDataset.range(start, stop).map(self)
        options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
        return iter(steps.to_iter_dataset(options))


def fixed_batches(
    examples: Sequence[Example],
    fields: Fields,
    buckets: Sequence[tuple[int, ...]],
    batch_tokens: int,
    host: int = 0,
    hosts: int = 1,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of all examples, shortest first, in the buckets of training: for the validation loss.

    Args:
      examples: each no longer than the last bucket.
      fields: of the examples.
      buckets: ascending padded lengths of the sequences.
      batch_tokens: rows times the longest length of a batch.
      host: index of this process, which gets its share of the rows.
      hosts: number of processes.

    Raises:
      UserError: one is longer.
    """
    arrays = arrays_of(examples, fields)
    lengths = side_lengths(arrays)
    order = np.argsort(lengths.max(axis=1, initial=0), kind="stable")
    bucket_index = bucket_of(lengths[order], buckets)
    if (bucket_index == len(buckets)).any():
        raise UserError(
            f"an example is longer than the longest bucket, {buckets[-1]}: a task must shorten it"
        )
    for index, bucket in enumerate(buckets):
        members = order[bucket_index == index]
        rows = batch_tokens // max(bucket, default=1)
        share = math.ceil(rows / hosts)
        for start in range(0, len(members), rows):
            local = members[start : start + rows][host * share :][:share]
            yield gathered(arrays, local, np.ones_like(local), fields, bucket, share)
