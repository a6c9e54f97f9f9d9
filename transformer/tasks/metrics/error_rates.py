"""Error rates of speech recognition, of words and of characters, by jiwer, with or without differences of
notation."""

import functools
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, Literal

from transformer.config.training import TextNormalisation
from transformer.runtime.machine import library
from transformer.tasks.metrics.scores import Score, share_score

# Texts as error rates compare them: as they are written, or without differences of notation.


ENGLISH = "whisper_normalizer"
"""The library of the normalisation "english"."""
APOSTROPHES = "'’"
ErrorsOf = Callable[[Sequence[str], Sequence[str]], Score]
"""An error rate of outputs and references."""


def libraries_of(normalisation: TextNormalisation) -> tuple[str, ...]:
    """The libraries that a normalisation needs and that are not always installed."""
    return (ENGLISH,) if normalisation == "english" else ()


def normalised(text: str, normalisation: TextNormalisation) -> str:
    """A text as error rates compare it.

    Args:
      text: an output or a reference.
      normalisation: "none": as it is. "basic": in lower case, compatible characters in one form (NFKC), and
        without punctuation and symbols, except apostrophes within a word. Letters, numbers and diacritics
        stay. "english": as Whisper's normaliser of English does it (Radford et al. 2022, appendix C): also
        numbers in digits, contractions in full, American spelling, without fillers and what is in brackets.

    Raises:
      UserError: the library of "english" is not installed.
    """
    if normalisation == "none":
        return text
    if normalisation == "english":
        return " ".join(_english()(text).split())
    letters = unicodedata.normalize("NFKC", text).lower()
    spelled = (letter if _counts(letters, index) else " " for index, letter in enumerate(letters))
    return " ".join("".join(spelled).replace("’", "'").split())


def of_normalised(rate: ErrorsOf, normalisation: TextNormalisation) -> ErrorsOf:
    """An error rate that compares normalised texts, and whose signature and detail name how."""
    if normalisation == "none":
        return rate

    def score(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        sides = ([normalised(text, normalisation) for text in side] for side in (hypotheses, references))
        plain = rate(*sides)
        version = f":{ENGLISH}:{metadata.version(ENGLISH)}" if normalisation == "english" else ""
        name = normalisation + version
        detail = f"{plain.detail}, texts normalised ({normalisation})"
        return replace(plain, signature=f"{plain.signature}|normalised:{name}", detail=detail)

    return score


def _counts(text: str, index: int) -> bool:
    """Whether a character is neither punctuation nor a symbol, or is an apostrophe within a word."""
    if unicodedata.category(text[index])[0] not in "PS":
        return True
    around = text[index - 1 : index] + text[index + 1 : index + 2]
    is_within = len(around) == 2 and all(unicodedata.category(letter)[0] in "LMN" for letter in around)
    return text[index] in APOSTROPHES and is_within


@functools.cache
def _english() -> Callable[[str], str]:
    normaliser: Callable[[str], str] = library(f"{ENGLISH}.english").EnglishTextNormalizer()
    return normaliser


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
                reference[chunk.ref_start_idx + offset] if chunk.type != "insert" else "",
                hypothesis[chunk.hyp_start_idx + offset] if chunk.type != "delete" else "",
            )
            for chunk in chunks
            for offset in range(
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
    edits = f"{counts.substitutions} substituted, {counts.deletions} deleted, {counts.insertions} inserted"
    detail = f"{unit} error rate = {rate:.2f} % ({edits}, of {total})"
    if not total:
        detail = f"{wrong} {unit}{'' if wrong == 1 else 's'} heard where nothing is said"
    return Score(rate, f"jiwer:{metadata.version('jiwer')}|{unit}s:{total}", detail)


def sentence_errors(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percentage of texts with an error."""
    pairs = zip(hypotheses, references, strict=True)
    wrong = sum(hypothesis.split() != reference.split() for hypothesis, reference in pairs)
    return share_score("sentence error rate", wrong, len(references), "wrong", " %")
