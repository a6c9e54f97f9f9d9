"""What a line of the input asks for: a sentence, how its translation begins, and the terms in it."""

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Iterator

from transformer.cli.decode_arguments import DecodeArguments, columns_of
from transformer.config import BeamConfig
from transformer.decoding.terms import SIZES
from transformer.errors import UserError
from transformer.files import brief
from transformer.tasks.glossary import Glossary
from transformer.tasks.requests import TranslationRequest
from transformer.text import has_text, without_formatting
from transformer.translator.search_inputs import room_of
from transformer.translator.translator import Translator

log = logging.getLogger("transformer")
NAMED = 3  # terms of a line that get a warning each, if they are left out


class RequestParser:
    """Reads lines by `--tsv`, `--glossary` and `--keep`.

    Args:
      given: the command line.
      translator: of the run.

    Raises:
      UserError: the glossary or the regular expression is invalid, or the search cannot do it.
    """

    def __init__(self, given: DecodeArguments, translator: Translator) -> None:
        self.translator, search = translator, given.decoding
        self.options, self._warned = vars(search), False
        if (given.glossary or given.keep) and not (isinstance(search, BeamConfig) and search.groups == 1):
            option = "glossary" if given.glossary else "keep"
            raise UserError(f"--{option}: only --method beam, without --groups, can find terms")
        path = given.glossary
        self.glossary = Glossary.read(path, given.keep) if path else Glossary({}, given.keep)
        self.tsv, self.identity = given.tsv, (given.tsv, self.glossary.entries, given.keep)

    def __call__(self, number: int, line: str) -> TranslationRequest:
        """What a line asks for. Raises UserError if it has too many columns."""
        if "\t" in line and not self.tsv and not self._warned:
            self._warned = True
            log.warning("line %d: a tab is read as a space; --tsv reads a prefix and terms after it", number)
        source, prefix, terms = columns_of(number, line) if self.tsv else (line, "", "")
        own = tuple(filter(has_text, map(str.strip, without_formatting(terms).split("|"))))
        if not has_text(source) and (has_text(prefix) or own):
            log.warning("line %d: an empty sentence stays empty; its prefix and terms do not count", number)
        return TranslationRequest(source, "", prefix, own + tuple(self._found(number, source, own)))

    def _found(self, number: int, source: str, own: tuple[str, ...]) -> Iterator[str]:
        """The terms of the glossary that a line does not have itself. Those that no search can hold are left
        out, with a warning."""
        try:
            wanted = [text for text in self.glossary.terms(source) if text not in own]
        except UserError as error:
            raise UserError(f"line {number}: {error}") from error
        if not wanted:
            return
        size_of = functools.cache(lambda text: len(self.translator.task.term(text)))
        settings = self.translator.settings(None, self.options)
        room = room_of(self.translator.task, TranslationRequest(source), settings) - sum(map(size_of, own))
        held, dropped = set(own), Counter[str]()
        for text in wanted:
            try:
                if len(held | {text}) > SIZES[-1]:
                    raise UserError(f"the term {brief(text)} is one more than the {SIZES[-1]} of a search")
                if (size := size_of(text)) > room:
                    raise UserError(f"the output has no room for the term {brief(text)} (see --extra-length)")
            except UserError as error:
                dropped[str(error)] += 1
            else:
                room -= size
                held.add(text)
                yield text
        for why, count in itertools.islice(dropped.items(), NAMED):
            log.warning("line %d: %s; it is left out%s", number, why, f" {count:,} times" * (count > 1))
        if more := sum(dropped.values()) - sum(list(dropped.values())[:NAMED]):
            log.warning("line %d: %s more terms are left out", number, f"{more:,}")
