"""Scores of labels of words: accuracy, macro F1, and F1 of the spans that they mark."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from transformer.runtime.errors import counted
from transformer.runtime.extras import library
from transformer.tasks.metrics.scores import Metric, Score

MACRO_F1 = Metric("macro_f1", "macro F1 of labels")
SPAN_F1 = Metric("span_f1", "span F1")
OUTSIDE = "O"
_IN_SPAN = re.compile(r"[BIES]-.+")

Labels = Sequence[Sequence[str]]
"""The labels of each sentence."""


def word_accuracy(predicted: Labels, expected: Labels) -> Score:
    """The percentage of words whose label is right."""
    pairs = list(_pairs(predicted, expected))
    right = sum(label == correct for label, correct in pairs)
    value, words = 100 * right / max(len(pairs), 1), counted(len(pairs), "word")
    return Score(value, words, f"{value:.2f} ({right:,} of {words})")


def macro_f1(predicted: Labels, expected: Labels) -> Score:
    """The mean of the F1 of all labels, in percent: of those that are expected or predicted anywhere. They
    count the same, however frequent they are."""
    right, outputs, references = Counter[str](), Counter[str](), Counter[str]()
    for label, correct in _pairs(predicted, expected):
        outputs[label] += 1
        references[correct] += 1
        right[label] += label == correct
    labels = sorted(outputs | references)
    scores = [2 * right[label] / (outputs[label] + references[label]) for label in labels]
    value, mean_of = 100 * sum(scores) / max(len(scores), 1), counted(len(labels), "label")
    return Score(value, mean_of, f"{value:.2f} (mean of {mean_of})")


def span_f1(predicted: Labels, expected: Labels) -> Score:
    """F1 of spans with their types, in percent, as the program conlleval of the shared tasks CoNLL-2000 and
    CoNLL-2003 counts them: by seqeval (Nakayama 2018).

    Raises:
      UserError: seqeval is not installed.
    """
    metrics = library("seqeval.metrics")
    both = [list(labels) for labels in expected], [list(labels) for labels in predicted]
    precision, recall, f1 = (
        100 * float(getattr(metrics, f"{name}_score")(*both, zero_division=0))
        for name in ("precision", "recall", "f1")
    )
    return Score(f1, "seqeval, as conlleval", f"{f1:.2f} (precision {precision:.2f}, recall {recall:.2f})")


def mark_spans(labels: Iterable[str]) -> bool:
    """Whether labels mark spans: each is O, or begins with B-, I-, E- or S-, and some do."""
    marks = set(labels) - {OUTSIDE}
    return bool(marks) and all(map(_IN_SPAN.fullmatch, marks))


def _pairs(predicted: Labels, expected: Labels) -> Iterable[tuple[str, str]]:
    for labels, correct in zip(predicted, expected, strict=True):
        yield from zip(labels, correct, strict=True)
