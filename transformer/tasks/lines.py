"""The contract of tasks whose records and outputs are lines of text, for the command line."""

import shlex
from abc import ABC, abstractmethod
from typing import ClassVar

from transformer.data.corpus import Record
from transformer.tasks.outputs import Output


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
        line = self.example_line(record)
        return f"echo {shlex.quote(line)} | {decode}" if line else ""
