"""Prepares a corpus for training: the arrays of its examples, and its batches."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from transformer.config import Config
from transformer.data.batching import Batcher
from transformer.data.corpus import Corpus, Progress, silent
from transformer.data.example_store import stored
from transformer.data.sequences import Arrays, Example, Sequences, arrays_of
from transformer.tasks.task import Task
from transformer.tasks.text import TextTask

VERSION = 1  # changes with what `stored_examples` of a task here makes of the same record
MOST_UNKNOWN = 0.1  # share of unknown tokens that is not warned of
CHUNK = 4096  # records that become examples at a time


@dataclass(frozen=True)
class TrainingData:
    """What the training loop needs."""

    corpus: Corpus
    task: Task
    batcher: Batcher

    def size(self, step: int, weight: float) -> float:
        """What the speed of training counts in the batch of a step (from 0).

        Args:
          step: of the update.
          weight: of its loss.
        """
        if self.task.counted is None:
            return weight
        counted = self.batcher.examples[self.task.counted]
        assert isinstance(counted, Sequences)
        return float(counted.sizes(self.batcher.plan(step).chosen).sum())

    def unknown(self, config: Config) -> list[str]:
        """Warnings of texts, in a run that starts from another one, of whose tokens too many are unknown to
        the vocabulary that it takes from there."""
        special = config.model.special
        warnings = []
        for side in ("source", "target") if isinstance(self.task, TextTask) else ("source",):
            texts = self.batcher.examples.get(side)
            if isinstance(texts, Sequences) and texts.values.dtype.kind in "iu":
                tokens = texts.values[texts.values != special.eos]
                share = (tokens == special.unk).sum() / max(len(tokens), 1)
                if share > MOST_UNKNOWN:
                    warnings.append(
                        f"{share:.0%} of the {side} tokens are unknown to the vocabulary of "
                        f"{config.training.init_from}: spell the text as its training text is, or train "
                        "without --init-from"
                    )
        return warnings


def prepare(
    task: Task, corpus: Corpus, *, host: int = 0, hosts: int = 1, progress: Progress = silent
) -> TrainingData:
    """Makes the examples (once per corpus and task) and plans the batches.

    Args:
      task: what to learn.
      corpus: its records.
      host: index of this process.
      hosts: number of processes.
      progress: shows the progress.

    Raises:
      UserError: no record is short enough, or the examples cannot be stored.
    """
    examples = examples_of(task, corpus, progress)
    plan = task.plan(corpus.splits["train"], examples, progress)
    return TrainingData(corpus, task, Batcher(examples, task.fields, plan, host, hosts))


def examples_of(task: Task, corpus: Corpus, progress: Progress = silent) -> Arrays:
    """The training examples, made once and stored in the corpus's folder.

    The name of their folder changes with all that they depend on: the kind of task, since several may share a
    corpus, its `content`, the types of the arrays, and the version of what this program makes of records.

    Raises:
      UserError: they cannot be stored, or the stored files are damaged.
    """
    records = corpus.splits["train"]
    content = task.content()

    def chunks() -> Iterator[list[Example]]:
        shown = iter(progress("examples", records, len(records)))
        while chunk := list(itertools.islice(shown, CHUNK)):
            yield task.stored_examples(chunk)

    if not content:
        return arrays_of([example for chunk in chunks() for example in chunk], task.stored_fields)
    made_by = f"{VERSION} {type(task).__module__}.{type(task).__qualname__} {task.stored_fields}"
    digest = hashlib.blake2b(made_by.encode() + content, digest_size=8).hexdigest()
    return stored(corpus.folder / f"examples-{digest}", task.stored_fields, chunks())
