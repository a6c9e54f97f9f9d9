"""What goes into a batch: how the records of a corpus become arrays, and which of them share a batch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from transformer.config import Config
from transformer.data.batching import fixed_batches
from transformer.data.corpus import Progress, Record, Records, silent
from transformer.data.plans import Batching, Plan, plan_of
from transformer.data.sequences import Arrays, Example, Fields, side_lengths, sides
from transformer.model.parameters import Arguments
from transformer.runtime.errors import UserError


class Batches(ABC):
    """The examples and batches of a task.

    Args:
      config: of the run.
    """

    unit: ClassVar[str] = "examples"
    """What a corpus consists of, for messages."""
    counted: ClassVar[str | None] = None
    """The field whose elements the speed of training counts. None: the weight of the loss."""
    fields: Fields
    """The arrays of an example."""

    def __init__(self, config: Config) -> None:
        self.config = config

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
