"""The contract of tasks that are decoded: what a search reads of records, and the outputs that it finds."""

import functools
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from transformer.config import DecodingConfig
from transformer.data.corpus import Record
from transformer.data.sequences import Example, Fields
from transformer.runtime.errors import UserError
from transformer.tasks.task import Task
from transformer.tasks.unknown_text import UnknownText

Output = Any
"""What decoding makes of one record, such as a translation."""
TRUNCATED = "truncated"
"""True in the example of an input of which the search reads only a part, and in its outputs (a field)."""

log = logging.getLogger("transformer")


class DecodingTask(Task):
    """A task whose records are decoded."""

    decodes: ClassVar[bool] = True
    inputs: tuple[str, ...]
    """The fields that decoding has, by name."""

    @property
    def input_fields(self) -> Fields:
        """Their types, padding values and shapes."""
        return {name: self.fields[name] for name in self.inputs}

    # What a search reads

    def as_read(self, record: Record, longest: int) -> Record:
        """A record without what is longer than the search reads, so that no more of it stays in memory."""
        return record

    def input_examples(
        self, records: Sequence[Record], longest: int, lines: Sequence[int] = ()
    ) -> list[Example]:
        """The arrays that decoding reads.

        Args:
          records: as `examples`, but what has to be decoded may be missing.
          longest: sequences are truncated to this length.
          lines: number of each record, to warn of truncated ones. Empty: no warnings.

        Returns:
          An example for each record, with `TRUNCATED` if a sequence was.
        """

        examples: list[dict[str, Any]] = [
            {name: example[name] for name in self.inputs} for example in self.examples(records)
        ]
        if lines:
            self._warn_of_unknown(records, examples, lines)
        for index, example in enumerate(examples):
            for name in self.inputs:
                if self.fields[name].padded and (size := len(example[name])) > longest:
                    example[name] = example[name][:longest]
                    example[TRUNCATED] = True
                    if lines:
                        log.warning("line %d: %s", lines[index], self.shortened(name, size, longest))
        return list(examples)

    @functools.cached_property
    def _unknown(self) -> UnknownText:
        return UnknownText("; --data.add-tokens FILE adds them in fine-tuning" * self.grows)

    def _warn_of_unknown(
        self, records: Sequence[Record], examples: Sequence[Example], lines: Sequence[int]
    ) -> None:
        """Warns of texts that a vocabulary does not know."""
        for name in self.inputs:
            known = [fields[name] for fields in map(self.texts_of_fields, records) if name in fields]
            if known and len(known) == len(records):
                ids = [example[name] for example in examples]
                self._unknown.warn(lines, [text for text, _ in known], ids, known[0][1])

    def shortened(self, name: str, size: int, longest: int) -> str:
        """A warning that an array of an input was longer than the search reads."""
        return f"{name} truncated from {size:,} to {longest:,}: raise buckets"

    def truncated(self, records: Sequence[Record], longest: int) -> str:
        """A warning if inputs of a split are longer than the search reads, with %s for its name; or empty."""
        return ""

    def is_empty(self, record: Record) -> bool:
        """Whether a record is not decoded."""
        return False

    def check_search(self, settings: DecodingConfig) -> None:
        """Raises UserError if these outputs cannot be searched with such options."""
        if settings.method == "mbr":
            raise UserError(f"--decoding.method mbr: it compares texts; {self.config.system} writes none")

    # Outputs

    @abstractmethod
    def outputs(self, result: Any, record: Record, n_best: int | None) -> list[Output]:
        """The outputs for one record, best first.

        Args:
          result: the row of what the system's search returned, as NumPy arrays.
          record: what was decoded.
          n_best: at most so many. None: all.
        """

    def empty_output(self) -> Output:
        """The output for an empty record."""
        raise NotImplementedError

    def scored(self, output: Output) -> Any:
        """What scores and samples need of an output: JSON values, which processes can exchange."""
        return output

    # Samples of a validation

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
