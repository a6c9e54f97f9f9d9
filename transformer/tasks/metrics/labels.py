"""Accuracy and F1 of labels: one for each text, a set of them, or the spans that labels of words mark."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from transformer.runtime.machine import library
from transformer.tasks.metrics.scores import ACCURACY, Metric, Score, percentage, share_score

Labels = Sequence[str | Collection[str]]
"""For each text its label, or a set of labels. How often a label is in a set does not count."""
MICRO_F1 = percentage("micro_f1", "micro F1")
MACRO_F1 = percentage("macro_f1", "macro F1")
EXACT_SETS = percentage("exact_sets", "exact sets")


class Counts(NamedTuple):
    """How often a label was right, output wrongly, and missed."""

    right: int
    wrong: int
    missed: int

    @property
    def f1(self) -> float:
        """F1 from 0 to 1; 0 for a label that is neither output nor expected."""
        total = 2 * self.right + self.wrong + self.missed
        return 2 * self.right / total if total else 0.0


class Confusion(NamedTuple):
    """How often each label was output for each."""

    labels: list[str]
    counts: Int[np.ndarray, "labels outputs"]
    """Row: the expected label. Column: the output; the last one counts outputs that are no label."""


def label_accuracy(hypotheses: Labels, references: Labels, metric: Metric = ACCURACY) -> Score:
    """Percentage of texts with the right label, or with exactly the right set of labels (`EXACT_SETS`)."""
    pairs = zip(hypotheses, references, strict=True)
    right = sum(_set(output) == _set(expected) for output, expected in pairs)
    return share_score(metric.title, right, len(references), "right")


def micro_f1(hypotheses: Labels, references: Labels, labels: Sequence[str] | None = None) -> Score:
    """F1 of all decisions about all labels together.

    Args:
      hypotheses: what was output for each text.
      references: what is right.
      labels: those that count. None: those of the references; an output that is none of them is only missed.
    """
    counts = label_counts(hypotheses, references, labels)
    total = Counts(*map(sum, zip(*counts.values(), strict=True))) if counts else Counts(0, 0, 0)
    value = 100 * total.f1
    detail = f"micro F1 = {value:.2f} ({total.right} right, {total.wrong} wrong, {total.missed} missed)"
    return Score(value, f"labels:{len(counts)}", detail)


def macro_f1(hypotheses: Labels, references: Labels, labels: Sequence[str] | None = None) -> Score:
    """The mean of the F1 of each label, so that rare labels count as much as frequent ones. Arguments as of
    `micro_f1`."""
    counts = label_counts(hypotheses, references, labels)
    value = 100 * sum(count.f1 for count in counts.values()) / max(len(counts), 1)
    worst = min(counts, key=lambda label: counts[label].f1, default="")
    detail = f"macro F1 = {value:.2f}"
    if counts:
        detail += f" (mean of {len(counts)} labels, lowest {worst}: {100 * counts[worst].f1:.2f})"
    return Score(value, f"labels:{len(counts)}", detail)


def label_counts(
    hypotheses: Labels, references: Labels, labels: Sequence[str] | None = None
) -> dict[str, Counts]:
    """How often each label was right, wrong and missed. Arguments as of `micro_f1`."""
    right, wrong, missed = Counter[str](), Counter[str](), Counter[str]()
    for output, expected in zip(hypotheses, references, strict=True):
        outputs, expecteds = _set(output), _set(expected)
        right.update(outputs & expecteds)
        wrong.update(outputs - expecteds)
        missed.update(expecteds - outputs)
    counted = dict.fromkeys(_labels(references) if labels is None else labels)
    return {label: Counts(right[label], wrong[label], missed[label]) for label in counted}


def confusion(
    hypotheses: Sequence[str], references: Sequence[str], labels: Sequence[str] | None = None
) -> Confusion:
    """How often each label was output for each expected one.

    Args:
      hypotheses: one label for each text.
      references: the right one of each.
      labels: the order of rows and columns. None: those of the references, sorted.

    Raises:
      ValueError: a reference is not among the labels.
    """
    order = _labels(references) if labels is None else list(labels)
    index = {label: row for row, label in enumerate(order)}
    counts = np.zeros((len(order), len(order) + 1), np.int64)
    for output, expected in zip(hypotheses, references, strict=True):
        if expected not in index:
            raise ValueError(f"{expected!r} is not among the labels")
        counts[index[expected], index.get(output, len(order))] += 1
    return Confusion(order, counts)


def _set(labels: str | Collection[str]) -> set[str]:
    return {labels} if isinstance(labels, str) else set(labels)


def _labels(references: Labels) -> list[str]:
    return sorted(set().union(*map(_set, references)))


# F1 of the spans that labels of words mark, such as B-NP I-NP O.


SPAN_F1 = percentage("span_f1", "span F1")
OUTSIDE = "O"
_IN_SPAN = re.compile(r"[BIES]-.+")


def span_f1(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Score:
    """F1 of spans with their types, in percent, as the program conlleval of the shared tasks CoNLL-2000 and
    CoNLL-2003 counts them: by seqeval (Nakayama 2018).

    Args:
      hypotheses: the labels of the words of each sentence.
      references: what is right.

    Raises:
      UserError: seqeval is not installed.
    """
    metrics = library("seqeval.metrics")
    sides = [list(labels) for labels in references], [list(labels) for labels in hypotheses]
    precision, recall, f1 = (
        100 * float(getattr(metrics, f"{name}_score")(*sides, zero_division=0))
        for name in ("precision", "recall", "f1")
    )
    detail = f"span F1 = {f1:.2f} (precision {precision:.2f}, recall {recall:.2f})"
    return Score(f1, "seqeval, as conlleval", detail)


def mark_spans(labels: Iterable[str]) -> bool:
    """Whether labels mark spans: all are O, or begin with B-, I-, E- or S-, and not all are O."""
    marks = set(labels) - {OUTSIDE}
    return bool(marks) and all(map(_IN_SPAN.fullmatch, marks))
