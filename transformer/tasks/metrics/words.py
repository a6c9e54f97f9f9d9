"""Error rates of speech recognition, of words and of characters, by jiwer."""

from collections.abc import Sequence
from importlib import metadata
from typing import Any, Literal

from transformer.runtime.extras import library
from transformer.tasks.metrics.scores import Score

Unit = Literal["word", "character"]
"""What errors are counted in."""
Pair = tuple[str, str]
"""A word or character of a reference and that of the output beside it; empty: there is none."""


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


def aligned(hypotheses: Sequence[str], references: Sequence[str], unit: Unit) -> list[list[Pair]]:
    """The words or characters of each text beside those of its reference, with the fewest errors.

    Args:
      hypotheses: one text for each recording.
      references: what was said in each.
      unit: whether words or characters are aligned.

    Raises:
      UserError: jiwer is not installed.
    """
    counts = _counted(unit, hypotheses, references)
    texts = zip(counts.references, counts.hypotheses, counts.alignments, strict=True)
    return [
        [
            (
                reference[chunk.ref_start_idx + at] if chunk.type != "insert" else "",
                hypothesis[chunk.hyp_start_idx + at] if chunk.type != "delete" else "",
            )
            for chunk in chunks
            for at in range(
                max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
            )
        ]
        for reference, hypothesis, chunks in texts
    ]


def _counted(unit: Unit, hypotheses: Sequence[str], references: Sequence[str]) -> Any:
    """What jiwer has found."""
    jiwer: Any = library("jiwer")
    return getattr(jiwer, f"process_{unit}s")(list(references), list(hypotheses))


def _errors(unit: Unit, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    counts = _counted(unit, hypotheses, references)
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
