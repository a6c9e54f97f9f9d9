"""Vocabularies of which the words of a sentence are segmented independently."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from transformer.runtime.errors import UserError


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


# Random segmentations for training: sampling among candidates, and BPE-dropout.


def check_strength(strength: float, kind: str) -> None:
    """Raises UserError if this is no alpha of a unigram model, or no dropout of a BPE model."""
    if not 0 <= strength < np.inf or (strength > 1 and kind == "bpe"):
        raise UserError(f"--data.subword-sampling {strength}: at least 0; with bpe a probability, at most 1")


def choose_candidate(log_probabilities: Sequence[float], sharpness: float, rng: np.random.Generator) -> int:
    """Samples the index of a candidate in proportion to probability^sharpness.

    Kudo 2018, section 3.2, where the sharpness is alpha. Only differences of log-probabilities matter.
    """
    log_weights = sharpness * np.asarray(log_probabilities)
    weights = np.exp(log_weights - log_weights.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def merge_with_dropout(
    word: str, scores: Mapping[str, float], dropout: float, draws: Iterator[float]
) -> list[str]:
    """Merges the characters of a word into pieces, until all possible merges are dropped.

    Provilkov et al. 2020, algorithm 1: every step drops each possible merge with probability `dropout`, and
    applies the best of the others. `scores` has the possible pieces and their priority (the highest score,
    then the leftmost); `draws` are uniform on [0, 1).
    """
    symbols = list(word)
    while True:
        best_score, best_index = -np.inf, -1
        for index in range(len(symbols) - 1):
            score = scores.get(symbols[index] + symbols[index + 1])
            # A merge that would lose anyway needs no draw: whether it drops makes no difference.
            if score is not None and score > best_score and next(draws) >= dropout:
                best_score, best_index = score, index
        if best_index < 0:
            return symbols
        symbols[best_index : best_index + 2] = [symbols[best_index] + symbols[best_index + 1]]


def uniform_draws(rng: np.random.Generator) -> Iterator[float]:
    """Endless uniform numbers on [0, 1), drawn in blocks because single calls are slow."""
    while True:
        yield from rng.random(64).tolist()
