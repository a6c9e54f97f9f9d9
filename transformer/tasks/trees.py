"""Parsing as translation: a sentence, and its tree as a text with brackets (Vinyals et al. 2015)."""

from collections.abc import Callable, Mapping

from transformer.tasks.metrics.bracketing import (
    BRACKETING_F1,
    TAGGING_ACCURACY,
    WELL_FORMED,
    bracketing_f1,
    tagging_accuracy,
    well_formed,
)
from transformer.tasks.metrics.scores import Metric, Score
from transformer.tasks.task import Evaluation
from transformer.tasks.text_to_text import TextToText


class Trees(TextToText):
    """Constituency trees, with F1 of labelled brackets as EVALB defines it."""

    criterion = BRACKETING_F1

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """F1 of brackets, accuracy of parts of speech, and the share of outputs that are trees."""

        def both(evaluation: Evaluation) -> tuple[list[str], list[str]]:
            outputs, references = self.texts(evaluation)
            return outputs, [text if isinstance(text, str) else text[0] for text in references]

        return {
            BRACKETING_F1: lambda evaluation: bracketing_f1(*both(evaluation)),
            TAGGING_ACCURACY: lambda evaluation: tagging_accuracy(*both(evaluation)),
            WELL_FORMED: lambda evaluation: well_formed(self.texts(evaluation)[0]),
        }
