"""What a line of the input asks for: a sentence, how its translation begins, and the terms in it."""

import logging
from collections.abc import Iterator

from transformer.cli.decode_arguments import DecodeArguments
from transformer.config import BeamConfig
from transformer.decoding.terms import SIZES
from transformer.errors import UserError
from transformer.tasks.asked import Asked
from transformer.tasks.glossary import Glossary
from transformer.tasks.translation import Translation

log = logging.getLogger("transformer")


class Asking:
    """Reads lines by `--tsv`, `--glossary` and `--keep`.

    Args:
      given: the command line.
      task: of the run.

    Raises:
      UserError: the glossary or the regular expression is invalid, or the search cannot do it.
    """

    def __init__(self, given: DecodeArguments, task: Translation) -> None:
        self.task, search = task, given.decoding
        if (given.glossary or given.keep) and not (isinstance(search, BeamConfig) and search.groups == 1):
            option = "glossary" if given.glossary else "keep"
            raise UserError(f"--{option}: only --method beam, without --groups, can find terms")
        path = given.glossary
        self.glossary = Glossary.read(path, given.keep) if path else Glossary({}, given.keep)
        self.tsv, self.identity = given.tsv, (given.tsv, self.glossary.entries, given.keep)

    def __call__(self, number: int, line: str) -> Asked:
        """What a line asks for. Raises UserError if it has too many columns."""
        columns = line.split("\t") if self.tsv else [line]
        if len(columns) > 3:
            raise UserError(
                f"line {number}: {len(columns)} columns; --tsv reads a sentence, a prefix and terms, "
                "with tabs between them"
            )
        source, prefix, terms = columns + [""] * (3 - len(columns))
        own = tuple(filter(None, map(str.strip, terms.split(" | "))))
        return Asked(source, "", prefix, own + tuple(self._found(number, source, own)))

    def _found(self, number: int, source: str, own: tuple[str, ...]) -> Iterator[str]:
        """The terms of the glossary that a line does not have itself. Those that no search can hold are left
        out, with a warning."""
        held = set(own)
        for text in self.glossary.terms(source):
            if text in own:
                continue
            try:
                self.task.term(text)
                if len(held | {text}) > SIZES[-1]:
                    raise UserError(f"the term {text!r} is one more than the {SIZES[-1]} that a search holds")
            except UserError as error:
                log.warning("line %d: %s; it is left out", number, error)
            else:
                held.add(text)
                yield text
