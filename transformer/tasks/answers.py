"""Answers to questions."""

from collections.abc import Callable, Mapping

from transformer.tasks.metrics.answers import ANSWER_EXACT, ANSWER_F1, answer_exact, answer_f1
from transformer.tasks.metrics.scores import Metric, Score
from transformer.tasks.task import Evaluation
from transformer.tasks.text_to_text import TextToText


class Answers(TextToText):
    """Answers to questions, with exact match and F1 as of SQuAD."""

    criterion = ANSWER_F1

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """F1 of words, and exact match."""
        return {
            ANSWER_F1: lambda evaluation: answer_f1(*self.texts(evaluation)),
            ANSWER_EXACT: lambda evaluation: answer_exact(*self.texts(evaluation)),
        }
