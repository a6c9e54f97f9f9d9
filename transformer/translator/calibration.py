"""Learns the confidence of a model in its words, from a text with references, and says how well numbers
predict which words are right."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from transformer.config.ranges import Option
from transformer.runtime.errors import UserError
from transformer.tasks.text import Hypothesis
from transformer.tasks.texts.requests import Sentence
from transformer.translator.confidence import Confidence, features_of, words_of
from transformer.translator.search_outputs import WITH_SCORES
from transformer.translator.translator import Translator

BINS = 10
"""Intervals of `calibration_error`."""


def right_words(output: Sequence[str], reference: Sequence[str]) -> Bool[np.ndarray, " words"]:
    """Which words of an output are right: those that a reference has too where the two are aligned with the
    fewest edits (insertions, deletions, substitutions), and among such alignments with the most equal words.
    These are the edits of TER without shifts, as labels of word-level quality estimation are made (Specia et
    al. 2018).

    Args:
      output: its words.
      reference: the words of a correct output.
    """
    rows, columns = len(output), len(reference)
    # an edit costs more than all matches together can save
    edit = min(rows, columns) + 1
    costs = np.zeros((rows + 1, columns + 1), np.int64)
    costs[:, 0] = edit * np.arange(rows + 1)
    costs[0] = edit * np.arange(columns + 1)
    for i, word in enumerate(output):
        for j, expected in enumerate(reference):
            aligned = costs[i, j] + (-1 if word == expected else edit)
            costs[i + 1, j + 1] = min(aligned, costs[i, j + 1] + edit, costs[i + 1, j] + edit)
    right = np.zeros(rows, bool)
    i, j = rows, columns
    while i and j:
        is_equal = output[i - 1] == reference[j - 1]
        if costs[i, j] == costs[i - 1, j - 1] + (-1 if is_equal else edit):
            i, j = i - 1, j - 1
            right[i] = is_equal
        elif costs[i, j] == costs[i - 1, j] + edit:
            i -= 1
        else:
            j -= 1
    return right


def area_under_curve(is_positive: Bool[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """The area under the ROC curve: the share of pairs of a positive and a negative example in which the
    positive one has the higher score; equal scores count half. NaN if there is no such pair."""
    positives = int(is_positive.sum())
    negatives = len(is_positive) - positives
    if not positives or not negatives:
        return float("nan")
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]  # the mean rank of equal scores
    above = ranks[is_positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def calibration_error(is_positive: Bool[np.ndarray, " n"], probabilities: Float[np.ndarray, " n"]) -> float:
    """The expected calibration error: the mean distance of predicted probabilities and observed frequencies
    over intervals of equal width, each counted by its examples (Guo et al. 2017, Eq. 3 and 5). An interval
    has its upper bound and not its lower one, as there, but for 0."""
    which = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], probabilities)
    gaps = np.bincount(which, weights=probabilities - is_positive, minlength=BINS)
    return float(np.abs(gaps).sum() / len(probabilities))


# Learns the confidence of a model in its words, from a text with references.


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
