"""Classification with several labels for a text, written one after another."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from transformer.data.corpus import Corpus, Progress, Records, silent
from transformer.data.label_orders import Keys, LabelOrderPlan, sampled_by, shuffled
from transformer.data.plans import Plan
from transformer.data.sequences import Arrays
from transformer.data.sources.tables import SEPARATOR
from transformer.data.store import TextRecord
from transformer.decoding.once import EachOnce
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief
from transformer.tasks.exhibit import Table
from transformer.tasks.label_tables import scores_of_labels
from transformer.tasks.labels import FILE, Classification
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

    # The order in which labels are learned

    def decide(self, corpus: Corpus) -> list[str]:
        """Also checks that the vocabulary allows the order of the labels."""
        self._reordering()
        return super().decide(corpus)

    def content(self) -> bytes:
        """Also the order of the labels, if targets are stored in it."""
        order = repr(self._ranks()).encode() if self.data.label_order == "sorted" else b""
        return super().content() + order

    def plan(self, records: Records, examples: Arrays, progress: Progress = silent) -> Plan:
        """As for other texts; with new orders in each batch if they are drawn."""
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
        both = list(zip(pairs, alone, strict=True))
        separators = {tuple(ids[len(one) : len(ids) - len(one)]) for ids, one in both}
        separator = separators.pop() if len(separators) == 1 else ()
        inside = {token for one in alone for token in one}
        is_apart = all(ids == [*one, *separator, *one] for ids, one in both)
        if len(separator) != 1 or not is_apart or separator[0] in inside:
            raise UserError(
                f"--data.label-order {self.data.label_order}: this vocabulary does not encode labels and the "
                "commas between them as separate tokens; use --data.tokenizer word, or sorted"
            )
        return separator[0]

    # What is written

    def steering(self, records: Sequence[Sentence], lines: Sequence[int]) -> list[Steering]:
        """Also that no label is written twice, of those that are one token."""
        tokens = [ids[0] for ids in self._label_ids() if len(ids) == 1 and ids[0] != self.special.unk]
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
            EXACT_SETS: lambda evaluation: label_accuracy(*self.both(evaluation), EXACT_SETS),
        }

    def overview(self, evaluation: Evaluation) -> Sequence[Table]:
        """The scores of each label."""
        return (scores_of_labels(*self.both(evaluation), self.labels),)
