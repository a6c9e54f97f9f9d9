"""The vocabularies of a translation; texts that begin with the code of their language, or are read after
those before them."""

import copy
import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from transformer.config.corpus import DataConfig
from transformer.config.model import SpecialIds
from transformer.config.options import Config, first_added, text_data
from transformer.data.sources.context import SEPARATOR, TURN, shortened
from transformer.data.sources.text_files import one_line
from transformer.data.store import TextRecord
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.trained import Tokenizers, first_new, replaced
from transformer.decoding.hooks import NO_OUTPUT
from transformer.decoding.steering import prefix as opening
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief
from transformer.tasks.task import Task
from transformer.tasks.text import Steering, TextTask
from transformer.tasks.texts import text_task_of
from transformer.tasks.texts.requests import Sentence, TranslationRequest, languages_of
from transformer.tasks.texts.steering import TextSteering

# The vocabularies of a translation: stored ones, their sizes, and the languages that their texts are in.


SIDES = ("source", "target")


def in_languages(tokenizers: Tokenizers, data: DataConfig) -> Tokenizers:
    """Tokenizers for the languages that options name, where texts begin with codes; or for the tag, where
    sources alone begin with one.

    Raises:
      UserError: there is no code of such a language, of one of the directions, or of a tag.
    """
    if not tokenizers:
        return tokenizers
    if data.default_tag:
        source, target = tokenizers
        for tag in data.tags:
            source.in_language(tag, "--data.default-tag, tag")
        target = copy.copy(target)
        target.has_codes = False
        return source.in_language(data.default_tag, "--data.default-tag"), target
    for side, (tokenizer, languages) in enumerate(
        zip(tokenizers, zip(*data.pairs, strict=True), strict=False)
    ):
        if not tokenizer.has_codes:
            raise UserError(
                f"--data.directions: texts of the given {SIDES[side]} vocabulary begin with no code of a "
                "language; leave out one of them"
            )
        for language in languages:
            tokenizer.in_language(language, "--data.directions, language")
    if not tokenizers[0].has_codes:
        return tokenizers
    named = zip(SIDES, tokenizers, data.named_languages, strict=True)
    source, target = (
        tokenizer if language is None else tokenizer.in_language(language, f"--data.{side}-language")
        for side, tokenizer, language in named
    )
    return source, target


def with_vocabulary(config: Config, tokenizers: Tokenizers) -> Config:
    """The config, with the sizes of the vocabularies.

    Raises:
      UserError: it has another size.
    """
    source, target = (tokenizer.vocab_size for tokenizer in tokenizers)
    model = config.model
    if model.vocab_size and model.vocab_size != source:
        raise UserError(
            f"--model.vocab-size {model.vocab_size} but the tokenizer has {source} ids: leave it out"
        )
    separate = None if text_data(config).joint_vocabulary else target
    return replace(config, model=replace(model, vocab_size=source, target_vocab_size=separate))


class TextInLanguages(TextTask):
    """A task whose inputs and outputs are texts, each in a language that options or a record name. Outputs
    may have to begin with a prefix and to have terms, and sources may have context."""

    data: DataConfig
    special: SpecialIds
    tokenizers: Tokenizers
    """The tokenizers of source and target."""
    _starts: dict[tuple[int, str], tuple[int, ...]]
    """Ids that begin a side in a language."""

    def forced_ids(self, record: Sentence) -> tuple[int, ...]:
        """How an output is forced to begin, such as with the code of the target language. Outputs of some
        models are so only before a prefix."""
        begins = self.tokenizers[1].forces_start or (
            isinstance(record, TranslationRequest) and bool(record.prefix)
        )
        return self.start(record, 1) if begins else ()

    def start(self, record: Sentence, side: int) -> tuple[int, ...]:
        """The ids that begin a side of a record, such as the code of its language.

        Raises:
          UserError: no language is chosen, or the vocabulary has no such code.
        """
        language = languages_of(record)[side]
        if self.data.default_tag and isinstance(record, TextRecord) and not side:
            language = record.group or None
        prefix = "--" if isinstance(record, TranslationRequest) else "--data."
        tokenizer, option = self.tokenizers[side], f"{prefix}{SIDES[side]}-language"
        if language is None:
            tokenizer.check_language(option)
            return tokenizer.start
        if not tokenizer.has_codes:
            raise UserError(f"{option} {language}: the texts of this model begin with no code of a language")
        if (side, language) not in self._starts:
            self._starts[side, language] = tokenizer.in_language(language, option).start
        return self._starts[side, language]

    def between(self, source_language: str | None, target_language: str | None) -> Self:
        """This task for other languages. None: that of this one.

        Raises:
          UserError: texts of this model begin with no code, or there is no such language.
        """
        pair = {"source_language": source_language, "target_language": target_language}
        changes: dict[str, Any] = {name: code for name, code in pair.items() if code is not None}
        without = [name for side, name in enumerate(pair) if not self.tokenizers[side].has_codes]
        if wrong := [f"--{name.replace('_', '-')}" for name in changes if name in without]:
            raise UserError(
                f"{' and '.join(wrong)}: the texts of this model begin with no code of a language; leave it "
                "out"
            )
        data = self.data if self.data.default_tag else replace(self.data, **changes)
        for tokenizer, (name, code) in zip(self.tokenizers, pair.items(), strict=True):
            if name not in without:
                tokenizer.in_language(code, f"--{name.replace('_', '-')}")
        if data.default_tag and source_language:
            data = replace(data, default_tag=source_language)
        return self.again(replace(self.config, data=data), self.tokenizers)

    @abstractmethod
    def again(self, config: Config, tokenizers: Tokenizers) -> Self:
        """This task with other options and tokenizers of the same vocabulary."""

    def grown(self, config: Config, words: Sequence[str], languages: Sequence[str]) -> "TextInLanguages":
        """As `Task.grown`, without the shortlist, which does not know the words."""
        source, target = self.tokenizers
        model = config.model
        if not self.data.joint_vocabulary or source.vocab_size != target.vocab_size:
            raise UserError(
                "--data.add-tokens, --data.add-language: this model has a vocabulary for each side, and only "
                "one for both can grow; leave them out"
            )
        if model.growth_conflict:
            raise UserError(
                f"--data.add-tokens: with {model.growth_conflict} outputs depend on the size of the "
                "vocabulary, which therefore cannot grow"
            )
        new = source.grown(words, languages)
        is_one = target is source or self.data.default_tag
        new_target = new if is_one else target.grown(words, languages)
        sizes: dict[str, Any] = {"vocab_size": new.vocab_size}
        if model.target_vocab_size is not None:
            sizes["target_vocab_size"] = new.vocab_size
        data = replace(text_data(config), first_added=first_new(source, new))
        return text_task_of(data.task)(
            replace(config, model=replace(model, **sizes), data=data), (new, new_target)
        )

    def replaced_ids(self, grown: Task) -> list[list[int]]:
        first = first_added(grown.config)
        if first is None or not isinstance(grown, TextInLanguages):
            return []
        return replaced(self.tokenizers[0], grown.tokenizers[0], first)

    # The code of their language, prefixes and terms, to which a search is steered

    def steering(self, records: Sequence[Sentence], lines: Sequence[int]) -> list[Steering]:
        """How outputs begin, prefixes and terms."""
        requests = list(map(TranslationRequest.of, records))
        starts = list(map(self.forced_ids, requests))
        tokenizer = self.tokenizers[1]
        steerings = []
        if (tokenizer.start and tokenizer.forces_start) or tokenizer.has_codes:
            examples = list(map(opening.opening_example, starts))
            size = len(tokenizer.start) or 1  # without records, to compile a search before one is chosen
            hook, lengths = opening.Opening(size), list(map(len, starts))
            steerings.append(Steering("start", hook, opening.OPENING_FIELDS, examples, lengths))
        if any(request.prefix for request in requests):
            prefixes = [request.prefix for request in requests]
            steerings.append(self.text_steering.prefixes(prefixes, lines, starts))
        if any(request.terms for request in requests):
            steerings.append(self.text_steering.terms([request.terms for request in requests], lines))
        return steerings

    @functools.cached_property
    def text_steering(self) -> TextSteering:
        """Prefixes and terms as ids."""
        return TextSteering(self.tokenizers[1], self.special)

    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """All divisions of a phrase into subwords, at the beginning of a word."""
        return self.text_steering.phrases(text)

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

    # Texts that are read after those before them (`--data.context`), within the tokens that a model reads

    def read(self, source: str, longest: int) -> str:
        """A source as the model reads it within so many tokens, with <eos>: without its oldest context, if
        there is more, and with the whole sentence."""
        if not self.data.context:
            return source
        tokenizer = self.tokenizers[0]
        code = tokenizer.has_codes and not tokenizer.start  # each record has its own
        room = longest - 1 - code
        return shortened(source, lambda text: len(tokenizer.encode(one_line(text))), room)

    def as_read(self, record: Sentence, longest: int) -> Sentence:
        """A record whose source is as the model reads it within so many tokens (`read`)."""
        if not self.data.context:
            return record
        request = TranslationRequest.of(record)
        return request._replace(source=self.read(request.source, longest))


def check_turns(texts: Sequence[str], tokenizer: Tokenizer, lines: Sequence[int] = ()) -> None:
    """Raises UserError if texts are lists, such as turns, and a vocabulary has no token between them."""
    index = next((index for index, text in enumerate(texts) if TURN in text), None)
    if index is not None and not tokenizer.knows(SEPARATOR):
        where = f"line {lines[index]}: " if lines else ""
        raise UserError(
            f"{where}a list, or a text with {SEPARATOR}: the vocabulary of this model has no {SEPARATOR}, "
            "which is between the texts of a list; add it with --data.add-tokens, or give one text"
        )


def check_context(data: DataConfig, tokenizers: Tokenizers) -> None:
    """Raises UserError if a vocabulary cannot separate sentences from their context, or samples are not of
    words."""
    if data.context and not tokenizers[0].knows(SEPARATOR):
        raise UserError(
            f"--data.context: the vocabulary has no {SEPARATOR}, which is between sentences; add it with "
            "--data.add-tokens, or train a vocabulary"
        )
    if data.context and data.subword_sampling and data.sampling_by == "sentence":
        raise UserError(
            "--data.context: --data.subword-sampling by sentence does not shorten it; give "
            "--data.sampling-by word"
        )
