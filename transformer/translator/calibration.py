"""Learns the confidence of a model in its words, from a text with references."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from transformer.config import Option
from transformer.runtime.errors import UserError
from transformer.tasks.hypotheses import Hypothesis
from transformer.tasks.metrics.calibration import area_under_curve, calibration_error, right_words
from transformer.tasks.requests import Sentence
from transformer.translator.confidence import Confidence, features_of, words_of
from transformer.translator.search_outputs import WITH_SCORES
from transformer.translator.translator import Translator

Progress = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class Quality:
    """How well a probability of each word predicts which words are wrong."""

    area: float
    """Under the ROC curve: 0.5 for chance, 1 for perfect order."""
    error: float
    """The expected calibration error: 0 if probabilities are frequencies."""

    @classmethod
    def of(cls, right: Bool[np.ndarray, " n"], probabilities: Float[np.ndarray, " n"]) -> "Quality":
        """Of probabilities that words are right."""
        return cls(area_under_curve(~right, -probabilities), calibration_error(right, probabilities))


@dataclass(frozen=True)
class Calibration:
    """What was learned from a text, and how good it is."""

    confidence: Confidence
    words: int
    """Of the outputs."""
    wrong: float
    """The share of them that is wrong."""
    before: Quality
    """Of the model's own probability of each word."""
    after: Quality
    """Of the confidence: of each half of the sentences by that learned from the other half."""


def scored_outputs(
    translator: Translator,
    records: Sequence[Sentence],
    progress: Progress = lambda items, _: items,
    **options: Option,
) -> list[Hypothesis]:
    """The best output for each record, with the scores of its tokens.

    Args:
      translator: of the run.
      records: with sources that are not empty, such as pairs of texts.
      progress: is given the outputs as they are made, and their number, and yields them again.
      options: any field of `DecodingConfig`.

    Raises:
      UserError: the system does not score outputs.
    """
    translator.system.required("scores")
    settings = translator.settings(1, options)
    outputs = translator.outputs(enumerate(records, start=1), settings, 1, WITH_SCORES)
    return [hypotheses[0] for hypotheses in progress(outputs, len(records))]


def labels_of(outputs: Sequence[Hypothesis], references: Sequence[str]) -> list[Bool[np.ndarray, " words"]]:
    """Which words of each output are right, see `right_words`."""
    pairs = zip(outputs, references, strict=True)
    return [right_words(words_of(output.text), words_of(reference)) for output, reference in pairs]


def calibrated(outputs: Sequence[Hypothesis], references: Sequence[str]) -> Calibration:
    """The confidence learned from some outputs.

    Args:
      outputs: with the scores of their tokens.
      references: one for each.

    Raises:
      UserError: there are fewer than two sentences, or no word of some half is right or wrong.
    """
    outputs, references = list(outputs), list(references)
    if len(outputs) < 2:
        raise UserError("confidence is learned from at least two sentences with references: give more")
    labels = labels_of(outputs, references)
    right = np.concatenate(labels)
    features = features_of(outputs)
    is_odd = np.repeat(np.arange(len(outputs)) % 2 == 1, list(map(len, labels)))
    after = np.zeros(len(right))
    for half in is_odd, ~is_odd:
        after[half] = Confidence.fitted(features[~half], right[~half]).probabilities(features[half])
    return Calibration(
        Confidence.fitted(features, right),
        len(right),
        float(1 - right.mean()),
        Quality.of(right, features[:, 0]),
        Quality.of(right, after),
    )
