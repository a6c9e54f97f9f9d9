"""Summaries of texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from transformer.config import Config
from transformer.tasks.metrics.rouge import ROUGE_1, ROUGE_2, ROUGE_L, rouge
from transformer.tasks.metrics.scores import Metric, Score
from transformer.tasks.task import Evaluation
from transformer.tasks.text_to_text import TextToText


class Summaries(TextToText):
    """Summaries, with ROUGE."""

    criterion = ROUGE_L

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        """Also that of ROUGE."""
        return (*super().libraries(config), "rouge_score")

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """ROUGE-L, ROUGE-1 and ROUGE-2."""

        def of(kind: Literal["1", "2", "L"]) -> Callable[[Evaluation], Score]:
            return lambda evaluation: rouge(*self.texts(evaluation), kind)

        return {ROUGE_L: of("L"), ROUGE_1: of("1"), ROUGE_2: of("2")}
