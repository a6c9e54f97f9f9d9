"""The contract of a task: its corpus, its batches and its scores.

Training knows records and examples only through a task. A *record* is what a corpus holds, such as a pair of
sentences; an *example* its arrays. What else a task can do depends on its class:

- `DecodingTask` (`transformer.tasks.outputs`): a search makes outputs of its records, such as translations;
- `TextTask` (`transformer.tasks.text`): these are texts, which can be steered, spelled and re-ranked;
- `Lines` (`transformer.tasks.outputs`): decode.py reads its records, and writes its outputs, as lines;
- `Exhibits` (`transformer.tasks.exhibit`): a report shows sounds, pictures and trees of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from transformer.config.options import Config
from transformer.config.ranges import typed
from transformer.data.plans import Batching, Plan, fixed_batches, plan_of
from transformer.data.sequences import Arrays, Example, Fields, side_lengths, sides
from transformer.data.store import Corpus, Progress, Record, Records, silent
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.model.parameters import Arguments
from transformer.runtime.errors import UserError
from transformer.tasks.metrics.scores import Metric, Score, mean_score


@dataclass(frozen=True)
class Evaluation:
    """What scores are computed from."""

    records: Sequence[Record]
    outputs: Sequence[Any]
    """What `DecodingTask.scored` made of the best output for each record; empty if scores need none."""
    means: Mapping[str, float]
    """The mean of the loss and of each metric of the objective, over all records of the split."""


class Task(ABC):
    """A task, with what it learned from the corpus, such as vocabularies.

    Args:
      config: of the run.
    """

    criterion: Metric
    """The first score. The best checkpoint has the best one, and `--training.patience` watches it."""
    scored_by: ClassVar[tuple[str, ...]] = ()
    """The options of its scores that it reads, of `SCORING`."""
    learned: ClassVar[str] = "vocabulary"
    """What it learned from the corpus, for messages."""
    decodes: ClassVar[bool] = False
    """Whether scores need outputs, so that evaluation decodes."""
    unit: ClassVar[str] = "examples"
    """What a corpus consists of, for messages."""
    counted: ClassVar[str | None] = None
    """The field whose elements the speed of training counts. None: the weight of the loss."""
    fields: Fields
    """The arrays of an example."""

    @typed
    def __init__(self, config: Config) -> None:
        self.config = config

    # What goes into a batch: how the records of a corpus become arrays, and which of them share a batch

    @property
    def drops(self) -> str:
        """Which examples the plan drops, for people."""
        return f"longer than {self.config.data.max_length}, or empty"

    @staticmethod
    @abstractmethod
    def example(config: Config) -> Arguments:
        """Arguments of the config's model for one short row, or their shapes."""

    @abstractmethod
    def examples(self, records: Sequence[Record], *, truncate: bool = False) -> list[Example]:
        """The arrays of records.

        Args:
          records: of a split.
          truncate: whether to shorten sequences to the longest of training, as in evaluation.
        """

    def filled(self, record: Record) -> Mapping[str, bool]:
        """Which parts of a record there are, such as a source and a target; by default it has none that may
        be missing."""
        return {}

    @property
    def stored_fields(self) -> Fields:
        """The arrays that `stored_examples` gives; by default those of `examples`."""
        return self.fields

    def stored_examples(self, records: Sequence[Record]) -> list[Example]:
        """The arrays of training records, which are made once and stored in files. By default
        those of `examples`; what has an empty sequence is not trained on."""
        return self.examples(records)

    def batching(self) -> Batching:
        """How plans make batches. By default all sides share the config's lengths."""
        data = self.config.data
        count = len(sides(self.fields))
        buckets = tuple((length,) * count for length in data.lengths)
        return Batching(buckets, data.batch_tokens, data.batching == "packed", data.seed)

    def plan(self, records: Records, examples: Arrays, progress: Progress = silent) -> Plan:
        """The plan of the training batches.

        Args:
          records: of the training split.
          examples: what `stored_examples` makes of them.
          progress: shows the progress.

        Raises:
          UserError: no record is short enough.
        """
        plan = plan_of(side_lengths(examples), self.batching())
        self.check_plan(plan, len(records), side_lengths(examples))
        return plan

    def hint(self, lengths: Int[np.ndarray, "examples sides"]) -> str:
        """What else may be wrong if examples are too long, at the end of a message; by default nothing.

        Args:
          lengths: of each side of the examples.
        """
        return ""

    def check_plan(
        self, plan: Plan, count: int, lengths: Int[np.ndarray, "examples sides"] | None = None
    ) -> None:
        """Raises UserError if a plan has dropped all of so many records, which have these lengths."""
        if plan.dropped == count:
            raise UserError(
                f"all {plan.dropped} training {self.unit} are empty or longer than --data.max-length "
                f"{self.config.data.max_length}: raise it{'' if lengths is None else self.hint(lengths)}"
            )

    def fixed_batches(self, records: Records, host: int, hosts: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of an evaluation, in which every record is once: this process's share of the rows."""
        examples = self.examples(list(records), truncate=True)
        batching = self.batching()
        return fixed_batches(examples, self.fields, batching.buckets, batching.batch_tokens, host, hosts)

    def describe(self) -> str:
        """A few words for people, such as the languages."""
        return ""

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError for options that are wrong, before anything is prepared."""
        return

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        """The libraries that preparing, training or evaluating needs and that are not always installed
        (`transformer.runtime.machine`)."""
        return ("jieba",) if getattr(config.data, "tokenizer", "") == "jieba" else ()

    @classmethod
    @abstractmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        """The corpus of the config, prepared on first use.

        Raises:
          UserError: it is missing or damaged.
        """

    @classmethod
    def create(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> "Task":
        """The task for a new run, with what is learned from the training split; by default nothing. Its
        config has the sizes of the model that depend on it."""
        return cls(config)

    @classmethod
    def load(cls, config: Config, folder: Path) -> "Task":
        """The task of a run directory.

        Raises:
          UserError: a file is missing or damaged.
        """
        return cls(config)

    @classmethod
    def without_corpus(cls, config: Config) -> "Task":
        """A task that knows its fields and batches, but nothing of a corpus: for `--plan`. Its config has the
        sizes of the model."""
        return cls(config)

    def grown(self, config: Config, words: Sequence[str], languages: Sequence[str]) -> "Task":
        """This task with more words and languages, for a run that starts from a model of it. Its config has
        the sizes of the model, and the first id that was added.

        Args:
          config: of the new run.
          words: as in `Tokenizer.grown`.
          languages: codes of languages.

        Raises:
          UserError: they cannot be added.
        """
        raise UserError(
            f"--data.add-tokens, --data.add-language: a {type(self).__name__} task has no vocabulary that "
            "can grow; leave them out"
        )

    @property
    def grows(self) -> bool:
        """Whether the vocabulary of the task can grow."""
        return type(self).grown is not Task.grown

    def replaced_ids(self, grown: "Task") -> list[list[int]]:
        """For each id that a task has been grown by, those of this one that it replaces. Its embedding is
        their mean."""
        return []

    def learn(self, corpus: Corpus, progress: Progress = silent) -> None:
        """Learns from the corpus of a new run what neither `create` nor a run that it starts from has; by
        default nothing."""
        return

    @classmethod
    def remarks(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> list[str]:
        """What is unusual about the training records, for people; by default nothing."""
        return []

    def decide(self, corpus: Corpus) -> list[str]:
        """Decides in its config what the options of a new run leave open and its corpus determines, such as
        how scores are computed. Returns sentences about it for people."""
        return []

    def save(self, folder: Path) -> None:
        """Writes what `load` reads; by default nothing."""
        return

    def content(self) -> bytes:
        """What examples depend on besides records, such as a vocabulary: it names the files that store
        them. By default nothing, and they are made at every start and held in memory."""
        return b""

    def texts_of_fields(self, record: Record) -> Mapping[str, tuple[str, Tokenizer]]:
        """The text of each field that has the ids of one, and its tokenizer; by default none."""
        return {}

    # Scores

    @abstractmethod
    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """The scores, the criterion first. Validation computes only that, the test all."""

    def parts(self, evaluation: Evaluation) -> Mapping[str, Evaluation]:
        """The parts of an evaluation that are scored alone, such as directions, by name: a score is then the
        mean of theirs. By default none."""
        return {}

    def scores(self, evaluation: Evaluation) -> dict[Metric, Score]:
        """All scores, the criterion first."""
        parts = self.parts(evaluation)
        return {
            measure: mean_score({name: score_of(part) for name, part in parts.items()})
            if parts
            else score_of(evaluation)
            for measure, score_of in self.measures().items()
        }

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """What a validation logs of the objective's means."""
        return dict(means)
