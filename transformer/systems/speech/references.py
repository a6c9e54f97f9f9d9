"""The error rates of what decode.py writes, as its options ask for them."""

import itertools
from collections.abc import Sequence

from transformer.config import TextNormalisation
from transformer.runtime.errors import UserError
from transformer.runtime.extras import check_libraries
from transformer.systems.speech.task import SpeechToText
from transformer.tasks.metrics.normalisation import ErrorsOf, libraries_of
from transformer.tasks.metrics.scores import SENTENCES


def check_normalisation(normalisation: TextNormalisation | None, has_references: bool) -> None:
    """Raises UserError if texts are to be normalised, and none are compared."""
    if normalisation and not has_references:
        raise UserError(
            "--text-normalisation: there are no texts to compare with; give --reference, or a list with texts"
        )


def rates_of(task: SpeechToText, normalisation: TextNormalisation | None, count: int) -> list[ErrorsOf]:
    """The error rates of a task, that which decides first.

    Args:
      task: of the run.
      normalisation: of the texts. None: that of the run.
      count: of the references. One has no sentence error rate, which could only be 0 or 100 %.

    Raises:
      UserError: a library that they need is not installed.
    """
    how = normalisation or task.config.training.text_normalisation
    check_libraries(("jiwer", *libraries_of(how)), "error rates")
    rates = task.error_rates(how).items()
    return [rate for measure, rate in rates if count > 1 or measure != SENTENCES]


def lines_of_speakers(
    rate: ErrorsOf, outputs: Sequence[str], references: Sequence[str], speakers: Sequence[str]
) -> list[str]:
    """An error rate for each speaker, where some are known: a line each, the worst first."""
    if not any(speakers):
        return []
    scores = []
    for name in dict.fromkeys(speakers):
        is_theirs = [speaker == name for speaker in speakers]
        heard, said = (list(itertools.compress(side, is_theirs)) for side in (outputs, references))
        scores.append((name or "unknown speaker", rate(heard, said)))
    return [f"{name}: {score.detail}" for name, score in sorted(scores, key=lambda item: -item[1].value)]
