"""Texts that a search is steered to: the code of their language, prefixes and terms."""

import functools
from collections.abc import Sequence

from transformer.config import SpecialIds
from transformer.decoding import opening
from transformer.decoding.hooks import NO_OUTPUT
from transformer.runtime.files import brief
from transformer.tasks.languages import TextInLanguages
from transformer.tasks.requests import Sentence, TranslationRequest
from transformer.tasks.steering import TextSteering
from transformer.tasks.text import Steering


class SteeredText(TextInLanguages):
    """A task whose outputs may have to begin with a prefix, and to have terms."""

    special: SpecialIds

    def steering(self, records: Sequence[Sentence], lines: Sequence[int]) -> list[Steering]:
        """How outputs begin, prefixes and terms."""
        requests = list(map(TranslationRequest.of, records))
        starts = list(map(self.forced_ids, requests))
        tokenizer = self.tokenizers[1]
        steerings = []
        if (tokenizer.start and tokenizer.forces_start) or tokenizer.has_codes:
            examples = list(map(opening.example, starts))
            size = len(tokenizer.start) or 1  # without records, to compile a search before one is chosen
            hook, lengths = opening.Opening(size), list(map(len, starts))
            steerings.append(Steering("start", hook, opening.FIELDS, examples, lengths))
        if any(request.prefix for request in requests):
            prefixes = [request.prefix for request in requests]
            steerings.append(self._steering.prefixes(prefixes, lines, starts))
        if any(request.terms for request in requests):
            steerings.append(self._steering.terms([request.terms for request in requests], lines))
        return steerings

    @functools.cached_property
    def _steering(self) -> TextSteering:
        return TextSteering(self.tokenizers[1], self.special)

    def term(self, text: str) -> tuple[int, ...]:
        """The ids of a term. Raises UserError if the vocabulary cannot spell it."""
        return self._steering.term(text)

    def some_word(self) -> str:
        """A word that can be a term."""
        return self._steering.some_word()

    def split_prefix(self, text: str) -> tuple[list[int], str]:
        """The ids of a prefix's whole words, and the letters of an unfinished last one. Raises UserError if
        the vocabulary cannot spell it."""
        return self._steering.split_prefix(text)

    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """All divisions of a phrase into subwords, at the beginning of a word."""
        return self._steering.phrases(text)

    def impossible(self, record: Sentence) -> str:
        """What an output was asked to have, if none has it."""
        if not isinstance(record, TranslationRequest) or not (record.prefix or record.terms):
            return NO_OUTPUT
        demands = [f"the prefix {brief(record.prefix)}"] * bool(record.prefix)
        demands += [f"the term {brief(term)}" for term in record.terms]
        return (
            f"no output can have {', '.join(demands)} by the rules of this search: change these, or options "
            "such as --decoding.forbidden"
        )
