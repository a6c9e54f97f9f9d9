"""The contract of tasks that are decoded: what a search reads of records, the outputs that it finds, and how
lines of text hold both."""

import dataclasses
import functools
import itertools
import logging
import math
import shlex
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from transformer.config.decoding import DecodingConfig
from transformer.data.sequences import Example, Fields
from transformer.data.store import Record
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, brief
from transformer.tasks.task import Task

# Outputs as values: equal if their fields are, and written as JSON.


class Plain:
    """What a dataclass of outputs inherits to be compared by value, arrays included, and to become a
    dictionary for `json.dumps`. It is declared with `eq=False`: the comparison of dataclasses fails on
    arrays."""

    computed: ClassVar[tuple[str, ...]] = ()
    """Properties that the dictionary has besides the fields."""
    written: ClassVar[tuple[str, ...]] = ()
    """The fields that `to_json` has. Empty: all."""
    written_if_true: ClassVar[tuple[str, ...]] = ()
    """Further fields that `to_json` has if they are true."""

    def to_dict(self) -> Json:
        """The fields by their names, as JSON values: arrays and tuples are lists, parts are dictionaries.
        What was not requested is omitted; a number that is not finite is None."""
        values = self.fields() | {name: getattr(self, name) for name in self.computed}
        return {name: _plain(value) for name, value in values.items() if value is not None}

    def to_json(self) -> Json:
        """What decode.py and a server write of it in JSON: values for `json.dumps`."""
        values = self.to_dict()
        exceptions = [name for name in self.written_if_true if values[name]]
        names = [*self.written, *exceptions] if self.written else values
        return {name: values[name] for name in names if name in values}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plain) or type(other) is not type(self):
            return NotImplemented
        other_fields = other.fields()
        return all(_equal(value, other_fields[name]) for name, value in self.fields().items())

    def __hash__(self) -> int:
        return hash(tuple(x for x in self.fields().values() if not isinstance(x, np.ndarray)))

    def fields(self) -> Json:
        """The fields by their names, as they are."""
        declared: Any = self
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(declared)}


def rounded(numbers: Sequence[float] | np.ndarray) -> list[float | None]:
    """Numbers with the four digits that JSON has; None: it is not finite."""
    return [round(float(number), 4) if math.isfinite(number) else None for number in numbers]


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    return bool(value == other)


def _plain(value: Any) -> Any:
    match value:
        case Plain():
            return value.to_dict()
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


# What a vocabulary lacks: the characters or words of a text that become <unk>, and how often they occur.


log = logging.getLogger("transformer")
NAMED = 10  # characters or words that a message names


def most_frequent_in_words(unknown: Counter[str]) -> str:
    """The most frequent characters or words, with their numbers, for people."""
    named = [f"{brief(token)} ({counted(count, 'time')})" for token, count in unknown.most_common(NAMED)]
    more = len(unknown) - len(named)
    return ", ".join(named) + f" and {more:,} more" * bool(more)


def unknown_of(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """The characters or words of texts that are unknown to a vocabulary."""
    return Counter(itertools.chain.from_iterable(map(tokenizer.unknown, texts)))


class UnknownText:
    """Warns of text to decode that a vocabulary lacks: once, since a text that has such characters has many.

    Args:
      remedy: what to do about it, at the end of the sentence.
    """

    def __init__(self, remedy: str = "") -> None:
        self._remedy = remedy
        self._has_warned = False

    def warn(
        self,
        lines: Sequence[int],
        texts: Sequence[str],
        ids: Sequence[Sequence[int]],
        tokenizer: Tokenizer,
        prefix: str = "",
    ) -> None:
        """Logs what is unknown in the first texts that have something unknown.

        Args:
          lines: numbers of the texts. Empty: nothing is logged.
          texts: as they are read.
          ids: of each.
          tokenizer: which made the ids.
          prefix: what of a line they are, such as "the target of ", or empty.
        """
        unk = tokenizer.special.unk
        unknown = (
            []
            if self._has_warned
            else [(line, text) for line, text, row in zip(lines, texts, ids, strict=False) if unk in row]
        )
        if not unknown:
            return
        self._has_warned = True
        (line, _), *further_lines = unknown
        more = f" and {counted(len(further_lines), 'line')} after it" * bool(further_lines)
        log.warning(
            "%sline %d%s: the vocabulary lacks %s, which are read as unknown%s. Further lines are not named",
            prefix,
            line,
            more,
            most_frequent_in_words(unknown_of((text for _, text in unknown), tokenizer)),
            self._remedy,
        )


Output = Any
"""What decoding makes of one record, such as a translation."""
TRUNCATED = "truncated"
"""True in the example of an input of which the search reads only a part, and in its outputs (a field)."""


class DecodingTask(Task):
    """A task whose records are decoded."""

    decodes: ClassVar[bool] = True
    inputs: tuple[str, ...]
    """The fields that decoding has, by name."""
    record_type: ClassVar[type] = object
    """The type of a record; object: `examples` says what is none."""

    @property
    def input_fields(self) -> Fields:
        """The types, padding values and shapes of the fields that decoding has."""
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
            pairs = [fields[name] for fields in map(self.texts_of_fields, records) if name in fields]
            if pairs and len(pairs) == len(records):
                ids = [example[name] for example in examples]
                self._unknown.warn(lines, [text for text, _ in pairs], ids, pairs[0][1])

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


# The contract of tasks whose records and outputs are lines of text, for the command line.


LONGEST_EXAMPLE = 300
"""Characters of a line that is printed to try a model on."""
CANDIDATES = 100
"""Records among which a short one is looked for."""


def shortened(line: str, longest: int) -> str:
    """The first words of a line that have at most so many characters; of a text without spaces, the first
    characters."""
    if len(line) <= longest:
        return line
    return line[: longest + 1].rpartition(" ")[0].rstrip() or line[:longest]


class Lines(ABC):
    """What a `DecodingTask` adds, so that decode.py can run it."""

    writer: ClassVar[str] = "transformer.cli.writer"
    """The module whose `WRITER` is what decode.py writes; or `module:Class`."""
    service: ClassVar[str] = ""
    """The module whose `SERVICE` is what a server does with its runs; empty: they are not served."""

    aligner: ClassVar[str] = ""
    """The module whose `ALIGNER` says when the words of a text are said in a recording, for `transformer
    align`: a decoder with `check_ctc`, `check_alignment` and `align` as `Transcriber` has them. Empty:
    nothing does."""

    @abstractmethod
    def record(self, line: str) -> Record:
        """The record to decode that a line of input names.

        Raises:
          UserError: it names none.
        """

    def line(self, output: Output) -> str:
        """An output as a line of text."""
        return str(output)

    def example_line(self, record: Record) -> str:
        """A record as a line of input, to try the model on; empty if it cannot be one."""
        return ""

    def example_command(self, record: Record, decode: str) -> str:
        """A command to try the model on a record; empty if there is none.

        Args:
          record: an example.
          decode: the command that decodes with this run, without options.
        """
        line = shortened(self.example_line(record), LONGEST_EXAMPLE)
        return f"echo {shlex.quote(line)} | {decode}" if line else ""

    def short_example(self, records: Iterable[Record], decode: str) -> str:
        """As `example_command`, of one of the first `CANDIDATES` records: of one with a short line, if there
        is one.

        Args:
          records: examples.
          decode: as of `example_command`.
        """
        candidates = list(itertools.islice(records, CANDIDATES))
        lines = [self.example_line(record) for record in candidates]
        short = itertools.compress(candidates, (0 < len(line) <= LONGEST_EXAMPLE for line in lines))
        chosen = next(itertools.chain(short, itertools.compress(candidates, lines), candidates), None)
        return "" if chosen is None else self.example_command(chosen, decode)
