"""What a line of decode.py's input asks for: a sentence, a prefix, terms of the line and of the glossary."""

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Iterator

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.request_lines import request_of
from transformer.config import BeamConfig
from transformer.decoding.terms import SIZES
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief
from transformer.runtime.text import has_text, without_formatting
from transformer.tasks.glossary import Glossary
from transformer.tasks.requests import TranslationRequest, own_sentence
from transformer.tasks.vocabularies import SIDES
from transformer.translator.search_inputs import room_of
from transformer.translator.translator import Translator

NAMED = 3  # terms of a line that get a warning each, if they are dropped
log = logging.getLogger("transformer")


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
        self.arguments = arguments
        self.identity = (arguments.tsv, arguments.jsonl, self.glossary.entries, arguments.keep)

    def __call__(self, number: int, line: str) -> TranslationRequest:
        """What a line asks for. Raises UserError as `request_of`, and for an unknown language."""
        if "\t" in line and not (self.arguments.tsv or self.arguments.jsonl or self._warned):
            self._warned = True
            log.warning("line %d: a tab is read as a space; --tsv reads a prefix and terms after it", number)
        request = request_of(number, line, self.arguments, self.translator.task.data)
        try:
            for side in range(len(SIDES)):
                self.translator.task.start(request, side)
        except UserError as error:
            raise UserError(f"line {number}: {error}" if any(request[4:]) else str(error)) from error
        source = request.source
        line_terms = tuple(filter(has_text, map(without_formatting, request.terms)))
        if not has_text(source) and (has_text(request.prefix) or line_terms):
            log.warning("line %d: an empty sentence stays empty; its prefix and terms do not count", number)
        glossary_terms = tuple(self._glossary_terms(number, request, line_terms))
        return request._replace(terms=line_terms + glossary_terms)

    def _glossary_terms(
        self, number: int, request: TranslationRequest, line_terms: tuple[str, ...]
    ) -> Iterator[str]:
        """The terms of the glossary that a line does not have itself. Those that no search can hold are
        dropped, with a warning."""
        try:
            terms = self.glossary.terms(own_sentence(request.source, self.translator.task.data))
            glossary_terms = [text for text in terms if text not in line_terms]
        except UserError as error:
            raise UserError(f"line {number}: {error}") from error
        if not glossary_terms:
            return
        size_of = functools.cache(lambda text: len(self.translator.task.term(text)))
        settings = self.translator.settings(None, self.options)
        room = room_of(self.translator.task, request._replace(prefix="", terms=()), settings)
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
