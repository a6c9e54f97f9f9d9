"""Classification: the label of a text, or a set of labels, written as text; and tables about labels."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from transformer.config.options import Config
from transformer.data.epochs import Keys, LabelOrderPlan, sampled_by, shuffled
from transformer.data.plans import Plan
from transformer.data.sequences import Arrays
from transformer.data.sources.tables import SEPARATOR
from transformer.data.store import Corpus, Progress, Records, TextRecord, silent
from transformer.decoding.steering.structures import EachOnce
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, brief, read_stored, write_whole
from transformer.runtime.text import has_text
from transformer.tasks.exhibit import Overview, Table, in_a_cell
from transformer.tasks.metrics.labels import (
    EXACT_SETS,
    MACRO_F1,
    MICRO_F1,
    Labels,
    confusion,
    label_accuracy,
    label_counts,
    macro_f1,
    micro_f1,
)
from transformer.tasks.metrics.scores import ACCURACY, Metric, Score
from transformer.tasks.task import Evaluation
from transformer.tasks.text import Steering
from transformer.tasks.texts.requests import Sentence
from transformer.tasks.texts.text_to_text import TextToText

# Tables about the labels of a split: which are confused, and how good each is.


MOST_CONFUSED = 24
"""Rows of a confusion table: those of the most frequent labels."""
MOST_SCORED = 100
"""Labels of a table with their scores."""
OTHERS = "\n"  # no label is a line break


def confusion_table(hypotheses: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> Table:
    """How often each label was output for each expected one. Of many labels, the most frequent ones.

    Args:
      hypotheses: one label for each text or word.
      references: the right one of each.
      labels: all that the model has learned.
    """
    counts = Counter(references)
    frequent = sorted(counts, key=lambda label: (-counts[label], label))[:MOST_CONFUSED]
    rare = {*labels, *references} - {*frequent}

    def grouped(chosen: Sequence[str]) -> list[str]:
        return [OTHERS if label in rare else label for label in chosen]

    _, table = confusion(grouped(hypotheses), grouped(references), [*frequent, OTHERS])
    names = [*map(in_a_cell, frequent), f"others ({len(rare):,})"]
    rows = [row for row in range(len(names)) if table[row].any()]
    shown = {*rows, *np.flatnonzero(table.any(axis=0)).tolist()}
    columns = [column for column in range(table.shape[1]) if column in shown]
    cells = table[np.ix_(rows, columns)]
    return Table(
        "Confused labels: a row for each label of the references, a column for each output. The shade is the "
        "square root of the share of the row.",
        ("", *([*names, "no label"][column] for column in columns)),
        tuple(
            (names[row], *(f"{count:,}" if count else "" for count in line))
            for row, line in zip(rows, cells.tolist(), strict=True)
        ),
        tuple(map(tuple, np.round(np.sqrt(cells / cells.sum(axis=1, keepdims=True)), 3).tolist())),
    )


def scores_of_labels(hypotheses: Labels, references: Labels, labels: Sequence[str]) -> Table:
    """Precision, recall and F1 of each label, the most frequent first.

    Args:
      hypotheses: what was output for each text: a label, or a set of them.
      references: what is right.
      labels: all that the model has learned.
    """
    all_labels = {*labels, *_all(references)}
    counts = label_counts(hypotheses, references, sorted(all_labels))
    order = sorted(all_labels, key=lambda label: -(counts[label].right + counts[label].missed))
    rows = []
    for label in order[:MOST_SCORED]:
        right, wrong, missed = counts[label]
        shares = right / max(right + wrong, 1), right / max(right + missed, 1), counts[label].f1
        sizes = right + missed, right + wrong
        rows.append(
            (in_a_cell(label), *map("{:,}".format, sizes), *(f"{100 * share:.1f}" for share in shares))
        )
    caption = "Scores of each label, in percent."
    if len(order) > MOST_SCORED:
        caption += f" The {MOST_SCORED} most frequent of {counted(len(order), 'label')}."
    if strange := sum(label not in all_labels for label in _all(hypotheses)):
        caption += f" Outputs that are no label of the training text: {strange:,}."
    return Table(caption, ("", "in references", "in outputs", "precision", "recall", "F1"), tuple(rows))


def _all(labels: Labels) -> list[str]:
    return [label for item in labels for label in ([item] if isinstance(item, str) else set(item))]


FILE = "labels.json"
MOST_LABELS = 10_000
"""Labels of a task: a text that is longer than a label is usually different in each record."""


class Classification(Overview, TextToText):
    """One label for each text, with accuracy and macro F1."""

    criterion = ACCURACY
    scorers: ClassVar = {ACCURACY: label_accuracy, MACRO_F1: macro_f1}
    learned = "vocabulary and labels"
    labels: tuple[str, ...] = ()
    """All labels of the training text, in alphabetical order."""
    counts: tuple[int, ...] = ()
    """How many training texts have each; empty for runs of earlier versions."""

    def learn(self, corpus: Corpus, progress: Progress = silent) -> None:
        """The labels of the training text.

        Raises:
          UserError: there are more than `MOST_LABELS`, or a text has none.
        """
        counts = Counter[str]()
        records = corpus.splits["train"]
        for record in progress("reading the labels", records, len(records)):
            labels = set(self.labels_of(record[1]))
            if not all(map(has_text, labels)):
                if not has_text(record[0]):  # an empty line on both sides
                    continue
                raise UserError(
                    f"--data.task {self.data.task}: the text {brief(record[0])} has no label in the training "
                    "text: write one, or leave the text out"
                )
            counts.update(labels)
            if len(counts) > MOST_LABELS:
                raise UserError(
                    f"--data.task {self.data.task}: the training text has more than {MOST_LABELS:,} "
                    f"labels, such as {brief(record[1])}; is the target the label?"
                )
        self.labels = tuple(sorted(counts))
        self.counts = tuple(counts[label] for label in self.labels)

    def decide(self, corpus: Corpus) -> list[str]:
        """Decides as `TextToText.decide`, and reports labels of the validation text that no training text
        has."""
        training_labels = set(self.labels)
        targets = (self.labels_of(record[1]) for record in corpus.splits["validation"])
        if unknown := sorted({label for labels in targets for label in labels} - training_labels):
            more = f" and {len(unknown) - 1:,} more" * (len(unknown) > 1)
            note = f"the training text has no label {brief(unknown[0])}{more}, which the validation text has"
            return [*super().decide(corpus), note]
        return super().decide(corpus)

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        """The task of a run directory, with the labels of labels.json if it has them."""
        task = super().load(config, folder)
        if stored := read_stored(folder / FILE, _labels_and_counts):
            task.labels, task.counts = stored
        return task

    def save(self, folder: Path) -> None:
        super().save(folder)
        content = {"labels": self.labels, "counts": self.counts}
        write_whole(folder / FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    @staticmethod
    def labels_of(text: str) -> list[str]:
        """The labels that a target has."""
        return [text]

    def describe(self) -> str:
        """How many labels there are."""
        return counted(len(self.labels), "label")

    def compared(self, evaluation: Evaluation) -> tuple[Labels, Labels]:
        """The labels that were written, and those that are right."""
        outputs, references = self.texts(evaluation)
        return [output.strip() for output in outputs], [
            text if isinstance(text, str) else text[0] for text in references
        ]

    def overview(self, evaluation: Evaluation) -> Sequence[Table]:
        """Which labels are confused, and the scores of each."""
        outputs, references = self.compared(evaluation)
        confused = confusion_table(list(map(str, outputs)), list(map(str, references)), self.labels)
        return confused, scores_of_labels(outputs, references, self.labels)


def _labels_and_counts(stored: Json) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Labels and counts of labels.json; earlier runs have no counts. Raises ValueError if it has others."""
    labels, counts = stored.get("labels"), stored.get("counts", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError("labels must be a list of texts")
    if not isinstance(counts, list) or not all(type(count) is int for count in counts):
        raise ValueError("counts must be a list of numbers")
    if len(counts) not in (0, len(labels)):
        raise ValueError("there must be a count for each label")
    return tuple(labels), tuple(counts)


# Classification with several labels for a text, written one after another.


class LabelSets(Classification):
    """Any number of labels for each text, separated by commas. Their order does not count."""

    criterion = MICRO_F1
    needs_steps = "--data.task label-sets"

    @staticmethod
    def labels_of(text: str) -> list[str]:
        return [label for entry in text.split(SEPARATOR.strip()) if (label := entry.strip())]

    # The order in which labels are learned

    def decide(self, corpus: Corpus) -> list[str]:
        """Decides as `Classification.decide`, and checks that the vocabulary allows the order of the
        labels."""
        self._reordering()
        return super().decide(corpus)

    def content(self) -> bytes:
        """What examples depend on, with the order of the labels if targets are stored in it."""
        order = repr(self._ranks()).encode() if self.data.label_order == "sorted" else b""
        return super().content() + order

    def plan(self, records: Records, examples: Arrays, progress: Progress = silent) -> Plan:
        """The plan of the training batches, with new orders of labels in each batch if they are drawn."""
        plan, reordering = super().plan(records, examples, progress), self._reordering()
        return LabelOrderPlan(plan, examples, *reordering, self.data.seed) if reordering else plan

    def _encoded(self, records: Sequence[Sentence], side: int) -> list[list[int]]:
        if side == 1 and self.data.label_order == "sorted":
            ranks = self._ranks()
            records = [TextRecord(record[0], self._sorted(record[1], ranks)) for record in records]
        return super()._encoded(records, side)

    def _sorted(self, target: str, ranks: Mapping[str, int]) -> str:
        """A target with frequent labels first. Those that the training text lacks are last."""
        labels = sorted(self.labels_of(target), key=lambda label: (ranks.get(label, len(ranks)), label))
        return SEPARATOR.join(labels)

    def _ranks(self) -> dict[str, int]:
        """The labels by frequency, then in alphabetical order; none before they are learned."""
        counts = self._counts()
        ordered = sorted(counts, key=lambda label: (-counts[label], label))
        return {label: rank for rank, label in enumerate(ordered)}

    def _counts(self) -> dict[str, int]:
        """How many training texts have each label."""
        if len(self.counts) != len(self.labels):
            raise UserError(
                f"{FILE} of this run has no counts, and --data.label-order {self.data.label_order} needs "
                "them: restore it"
            )
        return dict(zip(self.labels, self.counts, strict=True))

    def _label_ids(self) -> list[list[int]]:
        return self.tokenizers[1].encode_all(list(self.labels))

    def _reordering(self) -> tuple[int, Keys] | None:
        """The token between labels, and what draws orders. None: they are not drawn.

        Raises:
          UserError: the vocabulary does not encode labels apart, or as single tokens.
        """
        order = self.data.label_order
        if order == "shuffled":
            return self._separator(), shuffled
        if order != "sampled":
            return None
        counts = np.zeros(self.config.model.output_size, np.int64)
        for ids, (label, count) in zip(self._label_ids(), self._counts().items(), strict=True):
            if len(ids) > 1:
                raise UserError(
                    f"--data.label-order sampled: {brief(label)} is more than one token; use "
                    "--data.tokenizer word, or shuffled"
                )
            counts[ids] += count
        return self._separator(), sampled_by(counts)

    def _separator(self) -> int:
        """The token between labels."""
        pairs = self.tokenizers[1].encode_all([f"{label}{SEPARATOR}{label}" for label in self.labels])
        alone = self._label_ids()
        encoded = list(zip(pairs, alone, strict=True))
        separators = {tuple(ids[len(single) : len(ids) - len(single)]) for ids, single in encoded}
        separator = separators.pop() if len(separators) == 1 else ()
        inside = {token for single in alone for token in single}
        is_apart = all(ids == [*single, *separator, *single] for ids, single in encoded)
        if len(separator) != 1 or not is_apart or separator[0] in inside:
            raise UserError(
                f"--data.label-order {self.data.label_order}: this vocabulary does not encode labels and the "
                "commas between them as separate tokens; use --data.tokenizer word, or sorted"
            )
        return separator[0]

    # What is written

    def steering(self, records: Sequence[Sentence], lines: Sequence[int]) -> list[Steering]:
        """How outputs begin, and that no label is written twice, of those that are one token."""
        tokens = [ids[0] for ids in self._label_ids() if len(ids) == 1 and ids[0] != self.special.unk]
        steerings = super().steering(records, lines)
        if not tokens:
            return steerings
        hook = EachOnce(tokens, self.config.model.output_size)
        return [*steerings, Steering("label-sets", hook, {}, [{} for _ in records], [0] * len(records))]

    def compared(self, evaluation: Evaluation) -> tuple[Labels, Labels]:
        """The sets that were written, and those that are right."""
        outputs, references = super().compared(evaluation)
        return list(map(self.labels_of, map(str, outputs))), list(map(self.labels_of, map(str, references)))

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """Micro F1, macro F1, and the share of texts with exactly the right labels."""
        return {
            MICRO_F1: lambda evaluation: micro_f1(*self.compared(evaluation), self.labels),
            MACRO_F1: lambda evaluation: macro_f1(*self.compared(evaluation), self.labels),
            EXACT_SETS: lambda evaluation: label_accuracy(*self.compared(evaluation), EXACT_SETS),
        }

    def overview(self, evaluation: Evaluation) -> Sequence[Table]:
        """The scores of each label."""
        return (scores_of_labels(*self.compared(evaluation), self.labels),)
