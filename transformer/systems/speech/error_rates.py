"""The scores of what is heard: error rates, and tables and comparisons of errors for the report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transformer.config import Config, ErrorRate, TextNormalisation
from transformer.data.corpus import Corpus
from transformer.tasks.error_tables import by_speaker, confusions, worst
from transformer.tasks.exhibit import Comparison, Overview, Table
from transformer.tasks.metrics.normalisation import ErrorsOf, normalised, of_normalised
from transformer.tasks.metrics.scores import CHARACTERS, SENTENCES, WORDS, Metric, Score
from transformer.tasks.metrics.segmentation import is_unspaced
from transformer.tasks.metrics.words import Unit, character_errors, sentence_errors, word_errors
from transformer.tasks.task import Evaluation


class ErrorRates(Overview):
    """What `SpeechToText` does with outputs, which are texts, and references, which are those of its
    recordings."""

    config: Config
    criterion: Metric

    def _decide_error_rate(self, corpus: Corpus) -> list[str]:
        """Chooses the criterion by the validation texts, unless an option has. Returns notes for the log."""
        training = self.config.training
        if training.error_rate:
            return []
        validation = corpus.splits["validation"]
        some = validation.__getitems__(range(min(len(validation), training.evaluate_sentences)))
        unspaced = is_unspaced([record.text for record in some])
        chosen: ErrorRate = "characters" if unspaced else "words"
        self.config = replace(self.config, training=replace(training, error_rate=chosen))
        why = "the texts are in a language without spaces, so the character error rate decides which "
        return [f"{why}checkpoint is best (--training.error-rate characters)"] if unspaced else []

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """The error rates of the outputs."""

        def of(rate: ErrorsOf) -> Callable[[Evaluation], Score]:
            return lambda evaluation: rate(evaluation.outputs, [record.text for record in evaluation.records])

        return {measure: of(rate) for measure, rate in self.error_rates().items()}

    def error_rates(self, normalisation: TextNormalisation | None = None) -> Mapping[Metric, ErrorsOf]:
        """Word, character and sentence error rate; the criterion first.

        Args:
          normalisation: of the texts. None: that of the run.
        """
        how = normalisation or self.config.training.text_normalisation
        rates = {WORDS: word_errors, CHARACTERS: character_errors, SENTENCES: sentence_errors}
        compared = {measure: of_normalised(rate, how) for measure, rate in rates.items()}
        return {self.criterion: compared[self.criterion]} | compared

    def overview(self, evaluation: Evaluation) -> Sequence[Table]:
        """The error rates of each speaker, if speakers are known, and the most frequent confusions."""
        outputs, references = self._compared(evaluation)
        speakers = [record.speaker for record in evaluation.records]
        tables = [by_speaker(outputs, references, speakers, self._unit)] if any(speakers) else []
        return [*tables, *confusions(outputs, references, self._unit)]

    def comparisons(self, evaluation: Evaluation) -> Sequence[Comparison]:
        """The texts with the most errors."""
        names = [record.name for record in evaluation.records]
        return worst(*self._compared(evaluation), names, self._unit)

    @property
    def _unit(self) -> Unit:
        """What the error rate that decides is counted in."""
        return "character" if self.criterion == CHARACTERS else "word"

    def _compared(self, evaluation: Evaluation) -> tuple[list[str], list[str]]:
        """Outputs and references as error rates compare them."""
        how = self.config.training.text_normalisation
        sides = evaluation.outputs, [record.text for record in evaluation.records]
        outputs, references = ([normalised(text, how) for text in side] for side in sides)
        return outputs, references
