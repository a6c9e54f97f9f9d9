"""Texts as error rates compare them: as they are written, or without differences of notation."""

import functools
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata

from transformer.config import TextNormalisation
from transformer.runtime.extras import library
from transformer.tasks.metrics.scores import Score

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
