"""Error rates of speech recognition, of words and of characters, by jiwer."""

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from transformer.evaluation.scores import Score
from transformer.extras import library


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
    found = getattr(jiwer, f"process_{unit}s")(list(references), list(hypotheses))
    said = found.hits + found.substitutions + found.deletions
    wrong = found.substitutions + found.deletions + found.insertions
    rate = 100 * wrong / max(said, 1)
    kinds = f"{found.substitutions} substituted, {found.deletions} deleted, {found.insertions} inserted"
    detail = f"{unit} error rate = {rate:.2f} % ({kinds}, of {said})"
    if not said:
        detail = f"{wrong} {unit}{'' if wrong == 1 else 's'} heard where nothing is said"
    return Score(rate, f"jiwer:{metadata.version('jiwer')}|{unit}s:{said}", detail)


def sentence_errors(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percentage of texts with an error."""
    pairs = zip(hypotheses, references, strict=True)
    wrong = sum(ours.split() != theirs.split() for ours, theirs in pairs)
    rate = 100 * wrong / max(len(references), 1)
    signature = f"{wrong} of {len(references)} wrong"
    return Score(rate, signature, f"sentence error rate = {rate:.2f} % ({signature})")
