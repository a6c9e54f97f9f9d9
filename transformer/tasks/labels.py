"""Classification: the label of a text, written as text."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from transformer.config import Config
from transformer.data.corpus import Corpus, Progress, silent
from transformer.data.features.trained import Tokenizers
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, brief, read_stored, write_whole
from transformer.runtime.text import has_text
from transformer.tasks.exhibit import Overview, Table
from transformer.tasks.label_tables import confusion_table, scores_of_labels
from transformer.tasks.metrics.labels import MACRO_F1, Labels, label_accuracy, macro_f1
from transformer.tasks.metrics.scores import ACCURACY, Metric, Score
from transformer.tasks.task import Evaluation
from transformer.tasks.text_to_text import TextToText

FILE = "labels.json"
MOST = 10_000
"""Labels of a task: a text that is longer than a label is usually different in each record."""


class Classification(Overview, TextToText):
    """One label for each text, with accuracy and macro F1."""

    criterion = ACCURACY
    learned = "vocabulary and labels"
    labels: tuple[str, ...] = ()
    """All labels of the training text, in alphabetical order."""
    counts: tuple[int, ...] = ()
    """How many training texts have each; empty for runs of earlier versions."""

    def learn(self, corpus: Corpus, progress: Progress = silent) -> None:
        """The labels of the training text.

        Raises:
          UserError: there are more than `MOST`, or a text has none.
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
            if len(counts) > MOST:
                raise UserError(
                    f"--data.task {self.data.task}: the training text has more than {MOST:,} labels, such as "
                    f"{brief(record[1])}; is the target the label?"
                )
        self.labels = tuple(sorted(counts))
        self.counts = tuple(counts[label] for label in self.labels)

    def decide(self, corpus: Corpus) -> list[str]:
        """Also reports labels of the validation text that no training text has."""
        known = set(self.labels)
        targets = (self.labels_of(record[1]) for record in corpus.splits["validation"])
        if unknown := sorted({label for labels in targets for label in labels} - known):
            more = f" and {len(unknown) - 1:,} more" * (len(unknown) > 1)
            note = f"the training text has no label {brief(unknown[0])}{more}, which the validation text has"
            return [*super().decide(corpus), note]
        return super().decide(corpus)

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        """Also with the labels of labels.json, if this is a run of such a task."""
        task = super().load(config, folder)
        if stored := read_stored(folder / FILE, _labels_and_counts):
            task.labels, task.counts = stored
        return task

    def again(self, config: Config, tokenizers: Tokenizers) -> Self:
        """Also with these labels."""
        task = super().again(config, tokenizers)
        task.labels, task.counts = self.labels, self.counts
        return task

    def save(self, folder: Path) -> None:
        """Also writes the labels."""
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

    def both(self, evaluation: Evaluation) -> tuple[Labels, Labels]:
        """The labels that were written, and those that are right."""
        outputs, references = self.texts(evaluation)
        return [output.strip() for output in outputs], [
            text if isinstance(text, str) else text[0] for text in references
        ]

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """Accuracy, and the mean F1 of the labels."""
        return {
            ACCURACY: lambda evaluation: label_accuracy(*self.both(evaluation)),
            MACRO_F1: lambda evaluation: macro_f1(*self.both(evaluation)),
        }

    def overview(self, evaluation: Evaluation) -> Sequence[Table]:
        """Which labels are confused, and the scores of each."""
        outputs, references = self.both(evaluation)
        confused = confusion_table(list(map(str, outputs)), list(map(str, references)), self.labels)
        return confused, scores_of_labels(outputs, references, self.labels)


def _labels_and_counts(stored: Json) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Those of labels.json; runs of earlier versions have no counts. Raises ValueError if it has others."""
    labels, counts = stored.get("labels"), stored.get("counts", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError("labels must be a list of texts")
    if not isinstance(counts, list) or not all(type(count) is int for count in counts):
        raise ValueError("counts must be a list of numbers")
    if len(counts) not in (0, len(labels)):
        raise ValueError("there must be a count for each label")
    return tuple(labels), tuple(counts)
