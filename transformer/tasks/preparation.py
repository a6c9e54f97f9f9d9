"""Prepares a corpus for training: the arrays of its examples, and its batches."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from transformer.config.options import Config
from transformer.data.plans import Batcher
from transformer.data.sequences import Arrays, Example, Sequences, arrays_of, stored
from transformer.data.store import Corpus, Progress, silent
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.tasks.outputs import most_frequent_in_words, unknown_of
from transformer.tasks.task import Task

VERSION = 1  # changes with what `stored_examples` of a task here makes of the same record
MOST_NAMED = 10_000  # texts of which it is said what the vocabulary does not know
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
        """Warnings of texts with tokens that their vocabulary does not know: how many, and which characters
        or words they are."""
        warnings = []
        for side, ids in self.batcher.examples.items():
            if isinstance(ids, Sequences) and ids.values.dtype.kind in "iu":
                where = np.flatnonzero(ids.values == config.model.special.unk)
                examples = np.unique(np.searchsorted(ids.ends, where, side="right") - 1)[:MOST_NAMED]
                if tokenizer := self._tokenizer(examples, side):
                    warnings.append(self._unknown_warning(config, side, ids, len(where), examples, tokenizer))
        return warnings

    def _tokenizer(self, examples: Int[np.ndarray, " n"], side: str) -> Tokenizer | None:
        """The tokenizer of the texts of a field. None: no examples, or the field is no text."""
        if not len(examples):
            return None
        (record,) = self.corpus.splits["train"].__getitems__([int(examples[0])])
        texts = self.task.texts_of_fields(record)
        return texts[side][1] if side in texts else None

    def _unknown_warning(
        self,
        config: Config,
        side: str,
        ids: Sequences,
        count: int,
        examples: Int[np.ndarray, " n"],
        tokenizer: Tokenizer,
    ) -> str:
        """How many tokens of a side are unknown, what they are, and what to do.

        Args:
          config: of the run.
          side: the name of the field.
          ids: of all texts.
          count: of unknown tokens.
          examples: some that have such tokens.
          tokenizer: of the side.
        """
        records = self.corpus.splits["train"].__getitems__(examples.tolist())
        texts = (self.task.texts_of_fields(record)[side][0] for record in records)
        tokens = int((ids.values != config.model.special.eos).sum())
        named = most_frequent_in_words(unknown_of(texts, tokenizer))
        among = f" in the first {MOST_NAMED:,} such texts" * (len(examples) == MOST_NAMED)
        whose, remedy = self._vocabulary(config, side)
        return (
            f"{_percentage(count / tokens)} of the {side} tokens are unknown to {whose}{among}: {named}. "
            f"Training reads them as one token{', which outputs cannot have' * (side == 'target')}: {remedy}"
        )

    def _vocabulary(self, config: Config, side: str) -> tuple[str, str]:
        """Whose vocabulary a side has, and what to do if it lacks something."""
        training, data = config.training, config.data
        if training.init_from:
            return f"the vocabulary of {training.init_from}", (
                "add them with --data.add-tokens FILE, " * self.task.grows
                + "spell the text as its training text is, or train without --init-from"
            )
        option = f"{side}_tokenizer"
        if path := getattr(data, option, None):
            return f"the vocabulary in {path}", f"train one of this text, without --data.{side}-tokenizer"
        return (
            "the vocabulary of the training text",
            "raise --data.vocab-size, or take another --data.tokenizer",
        )


def _percentage(share: float) -> str:
    """A share with two digits, such as 12% or 0.0034%."""
    return f"{100 * share:.2g}%"


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
