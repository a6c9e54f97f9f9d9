"""Prepares a corpus for training: the arrays of its examples, and its batches."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer.config.corpus import DataConfig
from transformer.config.options import Config, text_data
from transformer.data.plans import Batcher
from transformer.data.sequences import Arrays, Example, Sequences, arrays_of, side_lengths, stored
from transformer.data.shards import WINDOW, MixedPlan, ShardPlan, mixed_order, shard_order
from transformer.data.sources.blocks import PairBlocks
from transformer.data.sources.directions import group_shares
from transformer.data.store import Chosen, Corpus, Progress, Records, silent
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.runtime.errors import UserError
from transformer.tasks.outputs import most_frequent_in_words, unknown_of
from transformer.tasks.prepared_shards import PreparedShards
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
    first_shard: Records | None = None
    """The records of the batcher's examples, if these are not all: of a corpus in shards, the first one's."""

    @property
    def _records(self) -> Records:
        return self.corpus.splits["train"] if self.first_shard is None else self.first_shard

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

    def drawn(self, step: int) -> str:
        """How many pairs of each corpus of a mixture the updates before a step have, and their share, for
        people; empty if there is no mixture."""
        plan, train = self.batcher.plan, self.corpus.splits["train"]
        if not isinstance(plan, MixedPlan) or not isinstance(train, PairBlocks):
            return ""
        names = _group_names(text_data(self.task.config))
        counts, planned = plan.drawn(step), plan.planned(self.task.config.training.steps)
        sizes = map(len, train.by_group())
        return "; ".join(
            f"{name} {count:,.0f} ({count / max(1, sum(counts)):.1%}, planned {share:.1%}; each pair "
            f"{count / size:.2g} times)"
            for name, count, share, size in zip(names, counts, planned, sizes, strict=True)
        )

    def unknown(self, config: Config) -> list[str]:
        """Warnings of texts with tokens that their vocabulary does not know: how many, and which characters
        or words they are."""
        warnings, special = [], config.model.special
        for side, ids in self.batcher.examples.items():
            if not isinstance(ids, Sequences) or ids.values.dtype.kind not in "iu":
                continue
            where = np.flatnonzero(ids.values == special.unk)
            examples = np.unique(np.searchsorted(ids.ends, where, side="right") - 1)[:MOST_NAMED].tolist()
            if not examples or side not in self._texts(examples[:1])[0]:  # the ids of something else
                continue
            fields = [texts[side] for texts in self._texts(examples)]
            named = most_frequent_in_words(unknown_of((text for text, _ in fields), fields[0][1]))
            share = 100 * len(where) / int((ids.values != special.eos).sum())
            among = f" in the first {MOST_NAMED:,} such texts" * (len(examples) == MOST_NAMED)
            whose, remedy = self._vocabulary(config, side)
            lost = ", which outputs cannot have" * (side == "target")
            warnings.append(
                f"{share:.2g}% of the {side} tokens are unknown to {whose}{among}: {named}. Training reads "
                f"them as one token{lost}: {remedy}"
            )
        return warnings

    def _texts(self, examples: Sequence[int]) -> list[Mapping[str, tuple[str, Tokenizer]]]:
        """The texts of the fields of some examples."""
        return list(map(self.task.texts_of_fields, self._records.__getitems__(examples)))

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
    return TrainingData(corpus, task, Batcher(examples, task.fields, plan, host, hosts))


def _in_shards(
    task: Task, corpus: Corpus, pairs: PairBlocks, host: int, hosts: int, progress: Progress
) -> TrainingData:
    """Begins to make the shards of a corpus, and waits for the first ones; for all if the length of an epoch
    counts."""
    data, config = text_data(task.config), task.config
    if not all(field.padded for field in task.stored_fields.values()):
        raise UserError(
            f"--data.shard-pairs: {type(task).__name__} has fields that are no sequences; leave it out"
        )
    made_by = _made_by(task) + "".join(data.filter_key).encode()
    made_by += f"{data.noise} {data.seed}".encode() if data.noise else b""
    needs_all = config.training.epochs is not None or config.optimizer.in_steps(1) != config.optimizer
    if pairs.groups and needs_all:
        raise UserError(
            "--data.mix, --data.temperature: a mixture in shards has no epochs: give --training.steps, and "
            "--optimizer.decay-steps if the schedule asks for it"
        )
    shards = PreparedShards(
        task,
        pairs,
        data.pairs_of_a_shard,
        corpus.folder,
        made_by,
        data.workers,
        data.engine == "ray",
        data.exchange,
        host,
        hosts,
    )
    with contextlib.ExitStack() as if_it_fails:
        if_it_fails.callback(shards.close)
        plan: ShardPlan | MixedPlan
        if pairs.groups:
            sizes = [sum(len(shards.pairs[number]) for number in group) for group in shards.groups]
            stages = group_shares(data, sizes)
            order = mixed_order(shards.groups, stages[0].shares, data.seed)
            shards.begin(order)
            shards.wait(order[: np.count_nonzero(stages[0].shares)], progress)
            plan = MixedPlan(shards, shards.groups, _group_names(data), stages, task.batching())
        else:
            order = shard_order(len(shards), data.seed, epoch=0).tolist()
            shards.begin(order)
            shards.wait(order if needs_all else order[:WINDOW], progress)
            plan = ShardPlan(shards, task.batching())
        first = shards(order[0])
        task.check_plan(plan, plan.examined or 0, side_lengths(first.examples))
        if_it_fails.pop_all()
    batcher = Batcher(first.examples, task.fields, plan, host, hosts)
    return TrainingData(corpus, task, batcher, Chosen(pairs, first.lines))


def _group_names(data: DataConfig) -> Sequence[str]:
    """The names of the corpora of a mixture, or of directions, for people."""
    return data.mixed or [" to ".join(pair) for pair in data.pairs]


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
    description = f"{VERSION} {type(task).__module__}.{type(task).__qualname__} {task.stored_fields}"
    return description.encode() + task.content()
