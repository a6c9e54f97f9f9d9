"""The scores of what is heard: error rates, the errors of each speaker, words that are confused, and
comparisons of errors for the report."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transformer.config.options import Config
from transformer.config.training import ErrorRate, TextNormalisation
from transformer.data.store import Corpus
from transformer.runtime.errors import counted
from transformer.tasks.exhibit import Comparison, Overview, Table, in_a_cell
from transformer.tasks.metrics.error_rates import (
    ErrorsOf,
    Pair,
    Unit,
    aligned,
    character_errors,
    normalised,
    of_normalised,
    sentence_errors,
    word_errors,
)
from transformer.tasks.metrics.scores import CHARACTERS, SENTENCES, WORDS, Metric, Score, is_unspaced
from transformer.tasks.task import Evaluation

# What is recognised, compared with what was said: the errors of each speaker, words that are confused, and
# the texts with the most errors.


MOST_CONFUSED = 20
"""Pairs of words in a table."""
MOST_SPEAKERS = 100
"""Speakers in a table."""
WORST = 20
"""Texts that are compared with what was said."""
MOST_PAIRS = 300
"""Words of such a text that are shown."""


def by_speaker(
    outputs: Sequence[str], references: Sequence[str], speakers: Sequence[str], unit: Unit
) -> Table:
    """The error rates of each speaker, the worst first.

    Args:
      outputs: one text for each recording.
      references: what was said in each.
      speakers: who spoke; empty if that is not known.
      unit: what the error rate that decides the order is counted in.
    """
    rows = []
    for name in dict.fromkeys(speakers):
        chosen = [index for index, speaker in enumerate(speakers) if speaker == name]
        heard, said = ([texts[index] for index in chosen] for texts in (outputs, references))
        rates = {"word": word_errors(heard, said), "character": character_errors(heard, said)}
        shown = *(f"{rate.value:.2f}" for rate in rates.values()), f"{sentence_errors(heard, said).value:.2f}"
        words = sum(len(text.split()) for text in said)
        row = in_a_cell(name) or "unknown", f"{len(chosen):,}", f"{words:,}", *shown
        rows.append((rates[unit].value, row))
    rows.sort(key=lambda item: -item[0])
    caption = "Error rates of each speaker, in percent, the worst first."
    if len(rows) > MOST_SPEAKERS:
        caption += f" {MOST_SPEAKERS} of {len(rows):,} speakers."
    head = "", "recordings", "words", "word errors", "character errors", "texts with errors"
    return Table(caption, head, tuple(row for _, row in rows[:MOST_SPEAKERS]))


def confusions(outputs: Sequence[str], references: Sequence[str], unit: Unit) -> list[Table]:
    """The pairs of words that are most often confused; no table if there is no error. Arguments as of
    `by_speaker`."""
    counts = Counter(
        pair for pairs in aligned(outputs, references, unit) for pair in pairs if _is_error(pair)
    )
    if not counts:
        return []
    missing = sum(count for (_, heard), count in counts.items() if not heard)
    added = sum(count for (said, _), count in counts.items() if not said)
    order = sorted(
        ((pair, count) for pair, count in counts.items() if all(pair)), key=lambda item: (-item[1], item[0])
    )
    rows = tuple(
        ((in_a_cell(said), in_a_cell(heard), f"{count:,}") for (said, heard), count in order[:MOST_CONFUSED])
    )
    caption = (
        f"The most frequent confusions: a {unit} that was said, and another that was heard in its place "
        f"({sum(counts.values()) - missing - added:,} in all, and {missing:,} deleted, {added:,} inserted)."
    )
    return [Table(caption, ("said", "heard", "times"), rows)]


def worst(
    outputs: Sequence[str], references: Sequence[str], names: Sequence[str], unit: Unit
) -> list[Comparison]:
    """The texts with the highest error rates beside what was said, the worst first.

    Args:
      outputs: one text for each recording.
      references: what was said in each.
      names: of the recordings.
      unit: what is aligned and counted.
    """
    compared = []
    for name, pairs in zip(names, aligned(outputs, references, unit), strict=True):
        errors = sum(map(_is_error, pairs))
        size = sum(bool(said) for said, _ in pairs)
        if errors:
            caption = f"{in_a_cell(name)}: {counted(errors, 'error')}, {counted(size, unit)} said"
            compared.append((errors / max(size, 1), errors, caption, tuple(pairs[:MOST_PAIRS])))
    compared.sort(key=lambda item: item[:2], reverse=True)
    return [Comparison(caption, pairs) for _, _, caption, pairs in compared[:WORST]]


def _is_error(pair: Pair) -> bool:
    said, heard = pair
    return said != heard


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
        sample = validation.__getitems__(range(min(len(validation), training.evaluate_sentences)))
        unspaced = is_unspaced([record.text for record in sample])
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
