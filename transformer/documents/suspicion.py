"""What makes a translation suspicious: it is far too short, repeats itself, copies its source, leaves words
of the source unread, or is improbable. Dropped text and loops are the most frequent faults of translation
systems."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

import numpy as np

from transformer.documents.projection import Aligned
from transformer.runtime.files import Json, read_stored, write_whole
from transformer.runtime.words import UNIT, begins_with_word

FILE = "limits.json"
REMEDY = "delete it, and make it again with transformer calibrate"
LONG_WORD = 4
"""Letters of a word that counts as copied: short ones are the same in several languages."""
LONGEST_REPEATED = 100
"""Words of a part that is looked for in what was said just before."""
READ = 0.15
"""The least attention that a source word gets, summed over the output, if it was read."""
FEW = 3
"""Words of a sentence below which shares say nothing."""


@dataclass(frozen=True)
class Signs:
    """What is measured of a translation: the higher, the more suspicious."""

    short: float
    """Characters of the source for each of the output; one without text counts half a character."""
    repeated: float
    """Share of the output's words that say again what was said just before, where the source does not."""
    copied: float
    """Share of the output's long words in small letters that the source has too."""
    unread: float
    """Share of the source's words to which the output hardly attends."""
    unsure: float
    """Negative log-probability of the output, in nats for each token."""


@dataclass(frozen=True)
class Limits(Signs):
    """Above which a translation is flagged. The defaults suit pairs of European languages; `calibrated` has
    those of a model."""

    short: float = 1.7
    repeated: float = 0.2
    copied: float = 0.6
    unread: float = 0.5
    unsure: float = 2.5

    @classmethod
    def calibrated(cls, translations: Iterable[Signs], share: float = 0.005) -> "Limits":
        """Limits that this share of usual translations exceeds, for each sign. They are never below half the
        defaults, since a few sentences do not show what else is usual.

        Args:
          translations: of a validation text.
          share: of false alarms, from 0 to 1.
        """
        values = np.array([astuple(signs) for signs in translations])
        quantiles = np.quantile(values, 1 - share, axis=0, method="higher")
        least = (getattr(cls(), field.name) / 2 for field in fields(cls))
        return cls(*(float(max(limit, low)) for limit, low in zip(quantiles, least, strict=True)))

    def write(self, folder: Path) -> None:
        """Writes limits.json of a run."""
        write_whole(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Limits":
        """The limits of a run, or the defaults. Raises UserError if its limits.json is damaged."""
        return read_stored(folder / FILE, cls._of_json, REMEDY) or cls()

    @classmethod
    def _of_json(cls, content: Json) -> "Limits":
        if content.keys() - asdict(cls()).keys():
            raise ValueError(f"limits are {', '.join(asdict(cls()))}")
        limits = cls(**content)
        if not all(type(limit) in (int, float) for limit in astuple(limits)):
            raise ValueError("limits must be numbers")
        return limits

    def flags(self, signs: Signs) -> tuple[str, ...]:
        """The names of the signs that are above them."""
        return tuple(
            field.name for field in fields(self) if getattr(signs, field.name) > getattr(self, field.name)
        )


def signs_of(source: str, output: str, aligned: Aligned | None = None, unsure: float = 0.0) -> Signs:
    """The signs of a translation.

    Args:
      source: a sentence.
      output: its translation.
      aligned: the attention to its words. None: unknown, so none is unread.
      unsure: its negative log-probability, in nats for each token.
    """
    read, written = _words(source), _words(output)
    again = max(0, _repeated(written) - _repeated(read)) / max(len(written), 1)
    long = [word for word in written if len(word) >= LONG_WORD and word.islower()]
    copied = sum(word in read for word in long) / len(long) if len(long) >= FEW else 0.0
    length = len(source.strip()) / max(len(output.strip()), 0.5)
    short = length if len(read) >= FEW or not output.strip() else 0.0
    return Signs(short, again, copied, _unread(aligned) if aligned else 0.0, unsure)


def _words(text: str) -> list[str]:
    """The words and characters of a text, without punctuation. A capital is kept, which names have."""
    units = (match[0] for match in UNIT.finditer(text))
    return list(filter(begins_with_word, units))


def _repeated(words: Sequence[str]) -> int:
    """How many words belong to a part that was said just before."""
    small = [word.lower() for word in words]
    again = set[int]()
    for size in range(1, min(len(small) // 2, LONGEST_REPEATED) + 1):
        run = 0  # of words that stand where they stood so many words before
        for index in range(size, len(small)):
            run = run + 1 if small[index] == small[index - size] else 0
            if run >= size:
                again |= {*range(index - (size if run == size else 1) + 1, index + 1)}
    return len(again)


def _unread(aligned: Aligned) -> float:
    """The share of source words to which no output attends."""
    words = [
        column
        for column, (start, end) in enumerate(aligned.source_units)
        if begins_with_word(aligned.source[start:end])
    ]
    if len(words) < FEW or not len(aligned.weights):
        return 0.0
    return float((aligned.weights.sum(axis=0)[words] < READ).mean())
