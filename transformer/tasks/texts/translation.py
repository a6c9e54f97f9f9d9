"""Translation, answers and summaries: texts in, texts out, which differ in their scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

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

        return {
            BLEU: bleu_of,
            CHRF: lambda evaluation: chrf(*self.texts(evaluation)),
            EXACT: lambda evaluation: exact_match(*self.texts(evaluation)),
        }


# Answers to questions.


class Answers(TextToText):
    """Answers to questions, with exact match and F1 as of SQuAD."""

    criterion = ANSWER_F1

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """F1 of words, and exact match."""
        return {
            ANSWER_F1: lambda evaluation: answer_f1(*self.texts(evaluation)),
            ANSWER_EXACT: lambda evaluation: answer_exact(*self.texts(evaluation)),
        }


# Summaries of texts.


class Summaries(TextToText):
    """Summaries, with ROUGE."""

    criterion = ROUGE_L

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        return (*super().libraries(config), "rouge_score")

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:

        def of(variant: Literal["1", "2", "L"]) -> Callable[[Evaluation], Score]:
            return lambda evaluation: rouge(*self.texts(evaluation), variant)

        return {ROUGE_L: of("L"), ROUGE_1: of("1"), ROUGE_2: of("2")}
