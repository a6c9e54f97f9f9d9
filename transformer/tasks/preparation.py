"""Prepares a corpus for training: the lengths of its examples, and its batches."""

import hashlib
from dataclasses import dataclass

import numpy as np

from transformer.data.batching import Batcher, sides
from transformer.data.corpus import Corpus, Progress, silent
from transformer.data.plans import Lengths
from transformer.errors import UserError
from transformer.files import open_whole
from transformer.tasks.task import Task


@dataclass(frozen=True)
class TrainingData:
    """What the training loop needs."""

    corpus: Corpus
    task: Task
    batcher: Batcher
    lengths: Lengths

    def size(self, step: int, weight: float) -> float:
        """What the speed of training counts in the batch of a step (from 0).

        Args:
          step: of the update.
          weight: of its loss.
        """
        if self.task.counted is None:
            return weight
        members = [index for row in self.batcher.plan(step).members for index in row]
        return float(self.lengths[members, sides(self.task.fields).index(self.task.counted)].sum())


def prepare(
    task: Task, corpus: Corpus, *, host: int = 0, hosts: int = 1, progress: Progress = silent
) -> TrainingData:
    """Measures the examples (once per corpus and task) and plans the batches.

    Args:
      task: what to learn.
      corpus: its records.
      host: index of this process.
      hosts: number of processes.
      progress: shows the progress.

    Raises:
      UserError: no record is short enough, or the lengths cannot be cached.
    """
    records, lengths = corpus.splits["train"], lengths_of(task, corpus, progress)
    plan = task.plan(records, lengths, progress)
    batcher = Batcher(records, task.examples, task.fields, plan, host, hosts)
    return TrainingData(corpus, task, batcher, lengths)


def lengths_of(task: Task, corpus: Corpus, progress: Progress = silent) -> Lengths:
    """The lengths of the training examples; computed once and cached in the corpus's folder."""
    kept = corpus.folder / f"lengths-{hashlib.blake2b(task.content(), digest_size=8).hexdigest()}.npy"
    if kept.exists():
        found: Lengths = np.load(kept, allow_pickle=False)
        return found
    lengths = task.lengths(corpus.splits["train"], progress)
    try:
        corpus.folder.mkdir(parents=True, exist_ok=True)
        with open_whole(kept) as file:
            np.save(file, lengths)
    except OSError as error:
        raise UserError(f"cannot write {kept}: {error.strerror}; see --data.cache-dir") from error
    return lengths
