"""Makes batches of arrays from examples, by a plan."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer.data.corpus import Record, Records
from transformer.data.plans import Example, Plan, bucket_of
from transformer.errors import UserError


@dataclass(frozen=True)
class Field:
    """One array of every example, which a batch stacks as `[rows, ...]`."""

    dtype: str = "int32"
    fill: float = 0
    """The value of padding."""
    shape: tuple[int, ...] = ()
    """Of one element if it is a sequence, otherwise of the whole."""
    padded: bool = True
    """Whether its first axis is a sequence. Sequences are padded, and their lengths plan the batches."""


Fields = Mapping[str, Field]


def sides(fields: Fields) -> list[str]:
    """The names of the sequences."""
    return [name for name, field in fields.items() if field.padded]


def stacked(
    rows: Sequence[Sequence[Example]],
    fields: Fields,
    lengths: Sequence[int],
    size: int,
    segments: bool = False,
) -> dict[str, np.ndarray]:
    """A batch.

    Args:
      rows: the examples of each row, which follow each other in its sequences.
      fields: of the examples.
      lengths: padded length of each sequence.
      size: number of rows; those that are missing are padding.
      segments: whether to add `<name>_segments`, the index of each element's example in its row, from 1.
    """
    batch = {}
    length = dict(zip(sides(fields), lengths, strict=True))
    for name, field in fields.items():
        axes = (length[name],) if field.padded else ()
        batch[name] = np.full((size, *axes, *field.shape), field.fill, field.dtype)
        if segments and field.padded:
            batch[f"{name}_segments"] = np.zeros((size, length[name]), np.int32)
    for row, members in enumerate(rows):
        filled = dict.fromkeys(length, 0)
        for segment, example in enumerate(members, start=1):
            for name, values in example.items():
                if name not in length:
                    batch[name][row] = values
                    continue
                place = slice(filled[name], filled[name] + len(values))
                batch[name][row, place] = values
                if segments:
                    batch[f"{name}_segments"][row, place] = segment
                filled[name] += len(values)
    return batch


@dataclass(frozen=True)
class Batcher:
    """Makes the batches of a plan: this process's share of the rows. `batcher(step)` has an array for each
    field; packed rows add segments. The number of rows depends only on the padded lengths, so there is one
    shape for each bucket."""

    records: Records
    examples: Callable[[Sequence[Record]], Sequence[Example]]
    fields: Fields
    plan: Plan
    host: int = 0
    hosts: int = 1

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        rows = self.plan(step)
        share = -(-rows.size // self.hosts)
        mine = rows.members[self.host * share : (self.host + 1) * share]
        chosen = [index for row in mine for index in row]
        if rows.examples is None:
            made = iter(self.examples(self.records.__getitems__(chosen)))
        else:
            made = map(rows.examples.__getitem__, chosen)
        given = [[next(made) for _ in row] for row in mine]
        return stacked(given, self.fields, rows.lengths, share, segments=self.plan.packed)

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
    lengths = np.array([[len(example[name]) for name in sides(fields)] for example in examples])
    order = np.argsort(lengths.max(axis=1), kind="stable")
    place = bucket_of(lengths[order], buckets)
    if (place == len(buckets)).any():
        raise UserError(
            f"an example is longer than the longest bucket, {buckets[-1]}: a task must shorten it"
        )
    for index, bucket in enumerate(buckets):
        members, rows = order[place == index], batch_tokens // max(bucket)
        share = math.ceil(rows / hosts)
        for start in range(0, len(members), rows):
            mine = members[start : start + rows][host * share :][:share]
            yield stacked([[examples[i]] for i in mine], fields, bucket, share)
