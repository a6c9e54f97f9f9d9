"""What a line of the input asks for: a sentence, how its translation begins, and the terms in it."""

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Iterator

from transformer.cli.decode_arguments import DecodeArguments, columns_of
from transformer.config import BeamConfig
from transformer.decoding.terms import SIZES
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief
from transformer.runtime.text import has_text, without_formatting
from transformer.tasks.glossary import Glossary
from transformer.tasks.requests import TranslationRequest
from transformer.translator.search_inputs import room_of
from transformer.translator.translator import Translator

log = logging.getLogger("transformer")
NAMED = 3  # terms of a line that get a warning each, if they are dropped


class RequestParser:
    """Reads lines by `--tsv`, `--glossary` and `--keep`.

    Args:
      arguments: the command line.
      translator: of the run.

    Raises:
      UserError: the glossary or the regular expression is invalid, or the search cannot do it.
    """

    def __init__(self, arguments: DecodeArguments, translator: Translator) -> None:
        search = arguments.decoding
        self.translator = translator
        self.options = vars(search)
        self._warned = False
        can_require_terms = isinstance(search, BeamConfig) and search.groups == 1
        if (arguments.glossary or arguments.keep) and not can_require_terms:
            option = "glossary" if arguments.glossary else "keep"
            raise UserError(f"--{option}: only --method beam, without --groups, can find terms")
        path = arguments.glossary
        self.glossary = Glossary.read(path, arguments.keep) if path else Glossary({}, arguments.keep)
        self.tsv = arguments.tsv
        self.identity = (arguments.tsv, self.glossary.entries, arguments.keep)

    def __call__(self, number: int, line: str) -> TranslationRequest:
        """What a line asks for. Raises UserError if it has too many columns."""
        if "\t" in line and not self.tsv and not self._warned:
            self._warned = True
            log.warning("line %d: a tab is read as a space; --tsv reads a prefix and terms after it", number)
        source, prefix, terms = columns_of(number, line) if self.tsv else (line, "", "")
        line_terms = tuple(filter(has_text, map(str.strip, without_formatting(terms).split("|"))))
        if not has_text(source) and (has_text(prefix) or line_terms):
            log.warning("line %d: an empty sentence stays empty; its prefix and terms do not count", number)
        glossary_terms = tuple(self._glossary_terms(number, source, line_terms))
        return TranslationRequest(source, "", prefix, line_terms + glossary_terms)

    def _glossary_terms(self, number: int, source: str, line_terms: tuple[str, ...]) -> Iterator[str]:
        """The terms of the glossary that a line does not have itself. Those that no search can hold are
        dropped, with a warning."""
        try:
            glossary_terms = [text for text in self.glossary.terms(source) if text not in line_terms]
        except UserError as error:
            raise UserError(f"line {number}: {error}") from error
        if not glossary_terms:
            return
        size_of = functools.cache(lambda text: len(self.translator.task.term(text)))
        settings = self.translator.settings(None, self.options)
        room = room_of(self.translator.task, TranslationRequest(source), settings)
        room -= sum(map(size_of, line_terms))
        required = set(line_terms)
        dropped = Counter[str]()
        for text in glossary_terms:
            try:
                if len(required | {text}) > SIZES[-1]:
                    raise UserError(f"the term {brief(text)} is one more than the {SIZES[-1]} of a search")
                if (size := size_of(text)) > room:
                    raise UserError(f"the output has no room for the term {brief(text)} (see --extra-length)")
            except UserError as error:
                dropped[str(error)] += 1
            else:
                room -= size
                required.add(text)
                yield text
        for why, count in itertools.islice(dropped.items(), NAMED):
            log.warning("line %d: %s; it is dropped%s", number, why, f" {count:,} times" * (count > 1))
        if more := sum(dropped.values()) - sum(list(dropped.values())[:NAMED]):
            log.warning("line %d: %s more terms are dropped", number, f"{more:,}")
