"""How fast this host makes batches, without a corpus."""

import time

import numpy as np

from transformer.config import Config
from transformer.data.sequences import Sequences, gathered, sides
from transformer.systems.registry import system_of
from transformer.training.plan.jobs import Job

TOKENS = 32  # of an example in packed rows: of a sentence
POOL = 8  # batches of different examples, more than caches hold


def input_rate(config: Config, seconds: float = 2.0) -> float:
    """Elements of a side, padding included, that one thread of this host gathers into batches per second.

    Args:
      config: of the job, with its batching decided.
      seconds: how long to measure.
    """
    task = Job.of(system_of(config), config).task
    fields = task.fields
    batching = task.batching()
    longest = batching.buckets[-1]
    random = np.random.default_rng(0)
    rows = batching.rows(longest)
    per_row = max(1, max(longest, default=1) // TOKENS) if batching.packed else 1
    count = POOL * rows * per_row
    arrays: dict[str, Sequences | np.ndarray] = {
        name: np.zeros((count, *field.shape), field.dtype) for name, field in fields.items()
    }
    for name, length in zip(sides(fields), longest, strict=True):
        size = max(1, length // per_row)
        field = fields[name]
        values = np.zeros((count * size, *field.shape), field.dtype)
        arrays[name] = Sequences(values, np.arange(count + 1) * size)
    counts = np.full(rows, per_row)
    made = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        chosen = random.integers(count, size=rows * per_row)
        gathered(arrays, chosen, counts, fields, longest, rows, batching.packed)
        made += rows * max(longest, default=1)
    return made / (time.perf_counter() - start)
