"""Prepares a corpus for training: the arrays of its examples, and its batches."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from transformer.config.options import Config, text_data
from transformer.data.plans import Batcher
from transformer.data.sequences import Arrays, Example, Sequences, arrays_of, side_lengths, stored
from transformer.data.shards import WINDOW, ShardPlan, shard_order
from transformer.data.sources.blocks import PairBlocks
from transformer.data.store import Chosen, Corpus, Progress, Records, silent
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.tasks.outputs import most_frequent_in_words, unknown_of
from transformer.tasks.task import Task
from transformer.tasks.workers import PreparedShards

VERSION = 1  # changes with what `stored_examples` of a task here makes of the same record
MOST_NAMED = 10_000  # texts of which it is said what the vocabulary does not know
CHUNK = 4096  # records that become examples at a time


@dataclass(frozen=True)
class TrainingData:
    """What the training loop needs."""

    corpus: Corpus
    task: Task
    batcher: Batcher
    records: Records
    """Those of the examples of the batcher: of a corpus in shards, of the first one."""

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
        (record,) = self.records.__getitems__([int(examples[0])])
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
        records = self.records.__getitems__(examples.tolist())
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
    train = corpus.splits["train"]
    if isinstance(train, PairBlocks):
        return _in_shards(task, corpus, train, host, hosts, progress)
    examples = examples_of(task, corpus, progress)
    plan = task.plan(train, examples, progress)
    return TrainingData(corpus, task, Batcher(examples, task.fields, plan, host, hosts), train)


def _in_shards(
    task: Task, corpus: Corpus, pairs: PairBlocks, host: int, hosts: int, progress: Progress
) -> TrainingData:
    """Begins to make the shards of a corpus, and waits for the first ones; for all if the length of an epoch
    counts."""
    data, config = text_data(task.config), task.config
    shards = PreparedShards(task, pairs, data.shard_pairs, corpus.folder, _made_by(task), data.workers)
    with contextlib.ExitStack() as if_it_fails:
        if_it_fails.callback(shards.close)
        order = shard_order(len(shards), data.seed, epoch=0).tolist()
        shards.begin(order)
        needs_all = config.training.epochs is not None or config.optimizer.in_steps(1) != config.optimizer
        shards.wait(order if needs_all else order[:WINDOW], progress)
        plan = ShardPlan(shards, task.batching())
        number, first = order[0], shards(order[0])
        task.check_plan(plan, plan.examined or 0, side_lengths(first.examples))
        if_it_fails.pop_all()
    batcher = Batcher(first.examples, task.fields, plan, host, hosts)
    return TrainingData(corpus, task, batcher, Chosen(shards.parts[number], first.lines))


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
    digest = hashlib.blake2b(_made_by(task), digest_size=8).hexdigest()
    return stored(corpus.folder / f"examples-{digest}", task.stored_fields, chunks())


def _made_by(task: Task) -> bytes:
    """What decides about the examples of a record."""
    kind = f"{VERSION} {type(task).__module__}.{type(task).__qualname__} {task.stored_fields}"
    return kind.encode() + task.content()
