"""Error rates of speech recognition, of words and of characters, by jiwer."""

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from transformer.runtime.extras import library
from transformer.tasks.metrics.scores import Score


def word_errors(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Words substituted, deleted and inserted, as a percentage of the words that were said.

    Args:
      hypotheses: one text for each recording.
      references: what was said in each.

    Raises:
      UserError: jiwer is not installed.
    """
    return _errors("word", hypotheses, references)


def character_errors(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Characters substituted, deleted and inserted, spaces included, as a percentage of those of the
    references: for languages without spaces. Arguments as of `word_errors`."""
    return _errors("character", hypotheses, references)


def _errors(unit: str, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    jiwer: Any = library("jiwer")
    counts = getattr(jiwer, f"process_{unit}s")(list(references), list(hypotheses))
    total = counts.hits + counts.substitutions + counts.deletions
    wrong = counts.substitutions + counts.deletions + counts.insertions
    rate = 100 * wrong / max(total, 1)
    kinds = f"{counts.substitutions} substituted, {counts.deletions} deleted, {counts.insertions} inserted"
    detail = f"{unit} error rate = {rate:.2f} % ({kinds}, of {total})"
    if not total:
        detail = f"{wrong} {unit}{'' if wrong == 1 else 's'} heard where nothing is said"
    return Score(rate, f"jiwer:{metadata.version('jiwer')}|{unit}s:{total}", detail)


def sentence_errors(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percentage of texts with an error."""
    pairs = zip(hypotheses, references, strict=True)
    wrong = sum(hypothesis.split() != reference.split() for hypothesis, reference in pairs)
    rate = 100 * wrong / max(len(references), 1)
    signature = f"{wrong} of {len(references)} wrong"
    return Score(rate, signature, f"sentence error rate = {rate:.2f} % ({signature})")
