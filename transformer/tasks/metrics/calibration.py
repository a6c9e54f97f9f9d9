"""How well numbers predict which words of an output are right."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

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
        for j, other in enumerate(reference):
            aligned = costs[i, j] + (-1 if word == other else edit)
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


def calibration_error(
    is_positive: Bool[np.ndarray, " n"], probabilities: Float[np.ndarray, " n"], bins: int = BINS
) -> float:
    """The expected calibration error: the mean distance of predicted probabilities and observed frequencies
    over intervals of equal width, each counted by its examples (Guo et al. 2017, Eq. 3 and 5). An interval
    has its upper bound and not its lower one, as there, but for 0."""
    which = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], probabilities)
    gaps = np.bincount(which, weights=probabilities - is_positive, minlength=bins)
    return float(np.abs(gaps).sum() / len(probabilities))
