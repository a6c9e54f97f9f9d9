"""The contract of tasks whose records and outputs are lines of text, for the command line."""

import itertools
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from transformer.data.corpus import Record
from transformer.tasks.outputs import Output

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
    """The module whose `WRITER` is what decode.py writes."""
    service: ClassVar[str] = ""
    """The module whose `SERVICE` is what a server does with its runs; empty: they are not served."""

    aligner: ClassVar[str] = ""
    """The module whose `ALIGNER` says when the words of a text are said in a recording, for `transformer
    align`; empty: nothing does."""

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
        several = list(itertools.islice(records, CANDIDATES))
        lines = [self.example_line(record) for record in several]
        short = itertools.compress(several, (0 < len(line) <= LONGEST_EXAMPLE for line in lines))
        chosen = next(itertools.chain(short, itertools.compress(several, lines), several), None)
        return "" if chosen is None else self.example_command(chosen, decode)
