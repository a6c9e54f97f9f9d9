"""Translation, answers and summaries: texts in, texts out, which differ in their scores."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from transformer.config.options import Config
from transformer.config.training import BleuTokenizer
from transformer.tasks.metrics.answers import (
    ANSWER_EXACT,
    ANSWER_F1,
    ROUGE_1,
    ROUGE_2,
    ROUGE_L,
    answer_exact,
    answer_f1,
    rouge,
)
from transformer.tasks.metrics.scores import (
    BLEU,
    CHRF,
    EXACT,
    Metric,
    Score,
    bleu,
    bleu_metric,
    bleu_tokenizer,
    chrf,
    exact_match,
    warning_of,
)
from transformer.tasks.task import Evaluation
from transformer.tasks.texts.requests import Sentence, languages_of
from transformer.tasks.texts.text_to_text import TextToText


class Translation(TextToText):
    """Translation between languages, with BLEU, chrF and exact match."""

    criterion = BLEU
    scorers: ClassVar = {CHRF: chrf, EXACT: exact_match}
    scored_by = ("bleu_tokenize",)

    def describe(self) -> str:
        """The languages, as far as they are known."""
        return self.data.direction

    @classmethod
    def check(cls, config: Config) -> None:
        """As `TextToText.check`. Also raises UserError if the tokenizer of BLEU cannot be used."""
        super().check(config)
        if config.training.bleu_tokenize:
            bleu_metric(config.training.bleu_tokenize)

    def decide_scores(self, records: Sequence[Sentence], tokenize: BleuTokenizer | None = None) -> str:
        """How BLEU is computed: with a tokenizer that is given, that of the config, or the one that fits the
        language and references."""
        references = [text for record in records for text in self.references(record)]
        if tokenize:
            note = warning_of(tokenize, references)
        else:
            tokenize, note = self.bleu_tokenizer(references)
        self.config = replace(self.config, training=replace(self.config.training, bleu_tokenize=tokenize))
        bleu_metric(tokenize)  # refuses what cannot be used
        return note

    def bleu_tokenizer(
        self, references: Sequence[str], language: str | None = None
    ) -> tuple[BleuTokenizer, str]:
        """sacreBLEU's tokenizer for references, and a sentence about it if there is something to say. The
        references are in the target language, or in another one that is given."""
        tokenize = self.config.training.bleu_tokenize
        if tokenize:
            return tokenize, warning_of(tokenize, references)
        return bleu_tokenizer(language or self.data.languages[1], references)

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """BLEU, chrF and exact match."""

        def bleu_of(evaluation: Evaluation) -> Score:
            outputs, references = self.texts(evaluation)
            language = languages_of(evaluation.records[0])[1] if evaluation.records else None
            reference_texts = [text for record in evaluation.records for text in self.references(record)]
            return bleu(outputs, references, self.bleu_tokenizer(reference_texts, language)[0])

        return {BLEU: bleu_of, **super().measures()}


# Answers to questions.


class Answers(TextToText):
    """Answers to questions, with exact match and F1 as of SQuAD."""

    criterion = ANSWER_F1
    scorers: ClassVar = {ANSWER_F1: answer_f1, ANSWER_EXACT: answer_exact}


# Summaries of texts.


class Summaries(TextToText):
    """Summaries, with ROUGE."""

    criterion = ROUGE_L
    scorers: ClassVar = {
        ROUGE_L: functools.partial(rouge, variant="L"),
        ROUGE_1: functools.partial(rouge, variant="1"),
        ROUGE_2: functools.partial(rouge, variant="2"),
    }

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        return (*super().libraries(config), "rouge_score")
