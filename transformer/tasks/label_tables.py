"""Tables about the labels of a split: which are confused, and how good each is."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from transformer.runtime.errors import counted
from transformer.tasks.exhibit import Table
from transformer.tasks.metrics.labels import Labels, confusion, label_counts

MOST_CONFUSED = 24
"""Rows of a confusion table: those of the most frequent labels."""
MOST = 100
"""Labels of a table with their scores."""
LONGEST = 40
"""Letters of a label."""
OTHERS = "\n"  # no label is a line break


def confusion_table(hypotheses: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> Table:
    """How often each label was output for each expected one. Of many labels, the most frequent ones.

    Args:
      hypotheses: one label for each text or word.
      references: the right one of each.
      labels: all that the model has learned.
    """
    frequent = [label for label, _ in _by_count(references)[:MOST_CONFUSED]]
    rest = {*labels, *references} - {*frequent}

    def grouped(some: Sequence[str]) -> list[str]:
        return [OTHERS if label in rest else label for label in some]

    _, counts = confusion(grouped(hypotheses), grouped(references), [*frequent, OTHERS])
    names = [*map(_short, frequent), f"others ({len(rest):,})"]
    rows = [row for row in range(len(names)) if counts[row].any()]
    shown = {*rows, *np.flatnonzero(counts.any(axis=0)).tolist()}
    columns = [column for column in range(counts.shape[1]) if column in shown]
    some = counts[np.ix_(rows, columns)]
    return Table(
        "Confused labels: a row for each label of the references, a column for each output. The shade is the "
        "square root of the share of the row.",
        ("", *([*names, "no label"][column] for column in columns)),
        tuple(
            (names[row], *(f"{count:,}" if count else "" for count in line))
            for row, line in zip(rows, some.tolist(), strict=True)
        ),
        tuple(map(tuple, np.round(np.sqrt(some / some.sum(axis=1, keepdims=True)), 3).tolist())),
    )


def scores_of_labels(hypotheses: Labels, references: Labels, labels: Sequence[str]) -> Table:
    """Precision, recall and F1 of each label, the most frequent first.

    Args:
      hypotheses: what was output for each text: a label, or a set of them.
      references: what is right.
      labels: all that the model has learned.
    """
    known = {*labels, *_all(references)}
    counts = label_counts(hypotheses, references, sorted(known))
    order = sorted(known, key=lambda label: -(counts[label].right + counts[label].missed))
    rows = []
    for label in order[:MOST]:
        right, wrong, missed = counts[label]
        shares = right / max(right + wrong, 1), right / max(right + missed, 1), counts[label].f1
        sizes = right + missed, right + wrong
        rows.append((_short(label), *map("{:,}".format, sizes), *(f"{100 * share:.1f}" for share in shares)))
    caption = "Scores of each label, in percent."
    if len(order) > MOST:
        caption += f" The {MOST} most frequent of {counted(len(order), 'label')}."
    if strange := sum(label not in known for label in _all(hypotheses)):
        caption += f" Outputs that are no label of the training text: {strange:,}."
    return Table(caption, ("", "in references", "in outputs", "precision", "recall", "F1"), tuple(rows))


def _all(labels: Labels) -> list[str]:
    return [label for some in labels for label in ([some] if isinstance(some, str) else set(some))]


def _by_count(labels: Sequence[str]) -> list[tuple[str, int]]:
    """The most frequent first, equally frequent ones by name."""
    return sorted(Counter(labels).items(), key=lambda item: (-item[1], item[0]))


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
