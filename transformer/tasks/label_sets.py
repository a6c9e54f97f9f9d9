"""Classification with several labels for a text, written one after another."""

from collections.abc import Callable, Mapping, Sequence

from transformer.data.sources.tables import SEPARATOR
from transformer.decoding.once import EachOnce
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
from transformer.tasks.requests import Sentence
from transformer.tasks.task import Evaluation
from transformer.tasks.text import Steering


class LabelSets(Classification):
    """Any number of labels for each text, separated by commas. Their order does not count."""

    criterion = MICRO_F1
    needs_steps = "--data.task label-sets"

    @staticmethod
    def labels_of(text: str) -> list[str]:
        """The labels that a target has."""
        return [label for part in text.split(SEPARATOR.strip()) if (label := part.strip())]

    def steering(self, records: Sequence[Sentence], lines: Sequence[int]) -> list[Steering]:
        """Also that no label is written twice, of those that are one token."""
        encoded = self.tokenizers[1].encode_all(list(self.labels))
        tokens = [ids[0] for ids in encoded if len(ids) == 1 and ids[0] != self.special.unk]
        steerings = super().steering(records, lines)
        if not tokens:
            return steerings
        hook = EachOnce(tokens, self.config.model.output_size)
        return [*steerings, Steering("label-sets", hook, {}, [{} for _ in records], [0] * len(records))]

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
