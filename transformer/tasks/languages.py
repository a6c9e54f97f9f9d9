"""Texts that begin with the code of their language, and vocabularies that grow by words and languages."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from transformer.config import Config, DataConfig, first_added, text_data
from transformer.data.features.growth import first_new, replaced
from transformer.data.features.trained import Tokenizers
from transformer.runtime.errors import UserError
from transformer.tasks.requests import Sentence, TranslationRequest, languages_of
from transformer.tasks.task import Task
from transformer.tasks.text import TextTask
from transformer.tasks.text_tasks import text_task_of
from transformer.tasks.vocabularies import SIDES


class TextInLanguages(TextTask):
    """A task whose inputs and outputs are texts, each in a language that options or a record name."""

    data: DataConfig
    tokenizers: Tokenizers
    """Of source and target."""
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
        asked: dict[str, Any] = {name: code for name, code in pair.items() if code is not None}
        if not self.tokenizers[0].has_codes:
            options = " and ".join(f"--{name.replace('_', '-')}" for name in asked)
            raise UserError(
                f"{options}: the texts of this model begin with no code of a language; leave it out"
            )
        data = replace(self.data, **asked)
        for tokenizer, (name, code) in zip(self.tokenizers, pair.items(), strict=True):
            tokenizer.in_language(code, f"--{name.replace('_', '-')}")
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
        other = new if target is source else target.grown(words, languages)
        sizes: dict[str, Any] = {"vocab_size": new.vocab_size}
        if model.target_vocab_size is not None:
            sizes["target_vocab_size"] = new.vocab_size
        data = replace(text_data(config), first_added=first_new(source, new))
        return text_task_of(data.task)(
            replace(config, model=replace(model, **sizes), data=data), (new, other)
        )

    def replaced_ids(self, grown: Task) -> list[list[int]]:
        """As `Task.replaced_ids`."""
        first = first_added(grown.config)
        if first is None or not isinstance(grown, TextInLanguages):
            return []
        return replaced(self.tokenizers[0], grown.tokenizers[0], first)
