"""Vocabularies of which the words of a sentence are segmented independently."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Subwords:
    """A vocabulary in which a space is only at the beginning of a piece, and each character is a piece."""

    kind: Literal["unigram", "bpe"]
    ids: Mapping[str, int]
    """Of the pieces of text."""
    scores: Sequence[float]
    """Of all ids: log-probabilities (unigram), or priorities of merges (bpe)."""

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self.scores)
