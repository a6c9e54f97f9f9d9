"""Classification with several labels for a text, written one after another."""

from collections.abc import Callable, Mapping

from transformer.data.sources.tables import SEPARATOR
from transformer.tasks.labels import Classification
from transformer.tasks.metrics.labels import (
    EXACT_SETS,
    MACRO_F1,
    MICRO_F1,
    Labels,
    label_accuracy,
    macro_f1,
    micro_f1,
)
from transformer.tasks.metrics.scores import Metric, Score
from transformer.tasks.task import Evaluation


class LabelSets(Classification):
    """Any number of labels for each text, separated by commas. Their order does not count."""

    criterion = MICRO_F1

    @staticmethod
    def labels_of(text: str) -> list[str]:
        """The labels that a target has."""
        return [label for part in text.split(SEPARATOR.strip()) if (label := part.strip())]

    def both(self, evaluation: Evaluation) -> tuple[Labels, Labels]:
        """The sets that were written, and those that are right."""
        outputs, references = super().both(evaluation)
        return list(map(self.labels_of, map(str, outputs))), list(map(self.labels_of, map(str, references)))

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """Micro F1, macro F1, and the share of texts with exactly the right labels."""
        return {
            MICRO_F1: lambda evaluation: micro_f1(*self.both(evaluation), self.labels),
            MACRO_F1: lambda evaluation: macro_f1(*self.both(evaluation), self.labels),
            EXACT_SETS: lambda evaluation: label_accuracy(*self.both(evaluation)),
        }
