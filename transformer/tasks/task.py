"""The contract of a task: what goes into a system and what comes out of it.

Training, evaluation and decoding know records, examples and outputs only through a task. A *record* is what
a corpus holds, such as a pair of sentences; an *example* its arrays; an *output* what decoding makes of one
record, such as a translation.
"""

import logging
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from transformer.config import Config, DecodingConfig
from transformer.data.batching import fixed_batches
from transformer.data.corpus import Corpus, Progress, Record, Records, silent
from transformer.data.plans import Batching, Plan, plan_of
from transformer.data.sequences import Arrays, Example, Fields, side_lengths, sides
from transformer.decoding.hooks import SearchHook
from transformer.errors import UserError
from transformer.evaluation.scores import Metric, Score
from transformer.model.parameters import Arguments
from transformer.tasks.exhibit import ReportSample

Output = Any

log = logging.getLogger("transformer")


@dataclass(frozen=True)
class Steering:
    """A hook of a search, and what it reads of each record."""

    name: str
    """Of what is asked for, such as "prefix"."""
    hook: SearchHook
    fields: Fields
    examples: Sequence[Example]
    min_lengths: list[int]
    """The fewest tokens of each output, without <eos>."""
    by_beam: bool = False
    """Whether only a beam search can do it."""


@dataclass(frozen=True)
class Evaluation:
    """What scores are computed from."""

    records: Sequence[Record]
    outputs: Sequence[Any]
    """What `Task.scored` made of the best output for each record; empty if the task does not decode."""
    means: Mapping[str, float]
    """The mean of the loss and of each metric of the objective, over all records of the split."""


class Task(ABC):
    """A task, with what it learned from the corpus, such as vocabularies.

    Args:
      config: of the run.
    """

    criterion: Metric
    """The first score. The best checkpoint has the best one, and `--training.patience` watches it."""
    unit: ClassVar[str] = "examples"
    """What a corpus consists of, for messages."""
    kept: ClassVar[str] = "vocabulary"
    """What it learned from the corpus, for messages."""
    counted: ClassVar[str | None] = None
    """The field whose elements the speed of training counts. None: the weight of the loss."""
    decodes: ClassVar[bool] = True
    """Whether scores need outputs, so that evaluation decodes."""
    writer: ClassVar[str] = "transformer.cli.writer"
    """The module whose `WRITER` is what decode.py writes."""
    fields: Fields
    """The arrays of an example."""
    inputs: tuple[str, ...]
    """The fields that decoding has."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def drops(self) -> str:
        """Which examples the plan drops, for people."""
        return f"longer than {self.config.data.max_length}, or empty"

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
        (`transformer.extras`)."""
        return ()

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

    def decide(self, corpus: Corpus) -> list[str]:
        """Decides in its config what the options of a new run leave open and its corpus tells, such as how
        scores are computed. Returns sentences about it for people."""
        return []

    def save(self, folder: Path) -> None:
        """Writes what `load` reads; by default nothing."""
        return

    def content(self) -> bytes:
        """What examples depend on besides records, such as a vocabulary: it names the files that store
        them. By default nothing, and they are made at every start and held in memory."""
        return b""

    # To batches

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

    def batching(self) -> Batching:
        """How plans make batches. By default all sides share the config's lengths."""
        data, count = self.config.data, len(sides(self.fields))
        buckets = tuple((length,) * count for length in data.lengths)
        return Batching(buckets, data.batch_tokens, data.batching == "packed", data.seed)

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
        self.check_plan(plan, len(records))
        return plan

    def check_plan(self, plan: Plan, count: int) -> None:
        """Raises UserError if a plan has dropped all of so many records."""
        if plan.dropped == count:
            raise UserError(
                f"all {plan.dropped} training {self.unit} are empty or longer than --data.max-length "
                f"{self.config.data.max_length}: raise it"
            )

    def fixed_batches(self, records: Records, host: int, hosts: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of an evaluation, in which every record is once: this process's share of the rows."""
        examples, batching = self.examples(list(records), truncate=True), self.batching()
        return fixed_batches(examples, self.fields, batching.buckets, batching.batch_tokens, host, hosts)

    # From decoding

    def as_read(self, record: Record, longest: int) -> Record:
        """A record without what is longer than the search reads, so that no more of it is kept."""
        return record

    def input_examples(
        self, records: Sequence[Record], longest: int, lines: Sequence[int] = ()
    ) -> list[Example]:
        """The arrays that decoding reads.

        Args:
          records: as `examples`, but what has to be decoded may be missing.
          longest: sequences are truncated to this length.
          lines: number of each record, to warn of truncated ones. Empty: no warnings.
        """

        found: list[dict[str, Any]] = [
            {name: example[name] for name in self.inputs} for example in self.examples(records)
        ]
        for index, example in enumerate(found):
            for name in self.inputs:
                if self.fields[name].padded and (size := len(example[name])) > longest:
                    example[name] = example[name][:longest]
                    if lines:
                        log.warning("line %d: %s", lines[index], self.shortened(name, size, longest))
        return list(found)

    def shortened(self, name: str, size: int, longest: int) -> str:
        """A warning that an array of an input was longer than the search reads."""
        return f"{name} truncated from {size:,} to {longest:,}: raise buckets"

    def steering(self, records: Sequence[Record], lines: Sequence[int]) -> list[Steering]:
        """What is asked of the outputs of these records, such as how they begin.

        Args:
          records: what is decoded.
          lines: their numbers, for messages.
        """
        return []

    def check_search(self, settings: DecodingConfig) -> None:
        """Raises UserError if these outputs cannot be searched with such options."""
        if settings.method == "mbr":
            raise UserError(f"--decoding.method mbr: it compares translations; {self.config.system} has none")
        if getattr(settings, "coverage_penalty", 0):
            raise UserError(
                f"--decoding.coverage-penalty: {self.config.system} does not translate; leave it out"
            )

    def consensus(self, outputs: list[Output]) -> list[Output]:
        """The outputs, those first that are most like all (minimum Bayes risk)."""
        raise NotImplementedError

    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """The sequences of output ids that spell a phrase; empty if the output cannot have it.

        Raises:
          UserError: outputs have no words.
        """
        raise UserError(f"--decoding.forbidden {text!r}: {self.config.system} writes no words; leave it out")

    def pieces(self, ids: Sequence[int], record: Record) -> list[str]:
        """What each output id of a record is written as, such as its subword.

        Raises:
          UserError: outputs have no text.
        """
        raise UserError(f"the outputs of {type(self).__name__} have no text")

    def spell(self, ids: Sequence[int]) -> str:
        """The text of output ids, for rewards of text.

        Raises:
          UserError: outputs have no text.
        """
        raise UserError(f"the outputs of {type(self).__name__} have no text")

    def truncated(self, records: Sequence[Record], longest: int) -> str:
        """A warning if inputs of a split are longer than the search reads, with %s for its name; or empty."""
        return ""

    def is_empty(self, record: Record) -> bool:
        """Whether a record is not decoded."""
        return False

    def empty_output(self) -> Output:
        """The output for an empty record."""
        raise NotImplementedError

    @abstractmethod
    def outputs(self, found: Any, record: Record, n_best: int | None) -> list[Output]:
        """The outputs for one record, best first.

        Args:
          found: the row of what the system's search returned, as NumPy arrays.
          record: what was decoded.
          n_best: at most so many. None: all.
        """

    def scored(self, output: Output) -> Any:
        """What scores and samples need of an output: JSON values, which processes can exchange."""
        return output

    @abstractmethod
    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """The scores, the criterion first. Validation computes only that, the test all."""

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """What a validation logs of the objective's means."""
        return dict(means)

    def prompts(self, records: Sequence[Record], count: int) -> list[Record]:
        """What a validation decodes to show samples, if scores need no outputs; by default nothing.

        Args:
          records: of the validation.
          count: how many samples are wanted.
        """
        return []

    def shown(self, record: Record, output: Any) -> tuple[str, str, str]:
        """Input, reference and output as text, for samples of the validation; `output` is from `scored`."""
        return str(record), "", str(output)

    def exhibited(self, records: Records, count: int) -> list[Record]:
        """The records whose exhibits a report shows; by default none.

        Args:
          records: of the validation.
          count: at most so many.
        """
        return []

    def exhibit(
        self, record: Record, output: Output, attention: Float[np.ndarray, "t s"] | None
    ) -> ReportSample:
        """Sounds and pictures of an exhibited record and its best output.

        Args:
          record: one of `exhibited`.
          output: the first of `outputs`.
          attention: of each target position to each source position, given the reference. None: the system
            has no alignments.
        """
        raise NotImplementedError

    # Lines in, lines out

    def record(self, line: str) -> Record:
        """The record to decode that a line of input names.

        Raises:
          UserError: this task does not read lines.
        """
        raise UserError(f"system {self.config.system} does not read lines of text")

    def example_line(self, record: Record) -> str:
        """A record as a line of input, to try the model on; empty if it cannot be one."""
        return ""

    def example_command(self, record: Record, decode: str) -> str:
        """A command to try the model on a record; empty if there is none.

        Args:
          record: an example.
          decode: the command that decodes with this run, without options.
        """
        line = self.example_line(record)
        return f"echo {shlex.quote(line)} | {decode}" if line else ""

    def line(self, output: Output) -> str:
        """An output as a line of text."""
        return str(output)
