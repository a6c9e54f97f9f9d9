"""Random segmentations for training: sampling among candidates, and BPE-dropout.

Both draw from the generator they are given and from nothing else, so that a sample can be made
again from (seed, epoch, example).
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np


def choose_candidate(log_probabilities: Sequence[float], sharpness: float, rng: np.random.Generator) -> int:
    """The index of a candidate, drawn in proportion to probability^sharpness.

    Kudo 2018, section 3.2, where the sharpness is alpha. Only differences of log-probabilities
    count.
    """
    log_weights = sharpness * np.asarray(log_probabilities)
    weights = np.exp(log_weights - log_weights.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def merge_with_dropout(
    word: str, scores: Mapping[str, float], dropout: float, draws: Iterator[float]
) -> list[str]:
    """The characters of a word, joined pair by pair while a merge is left that does not drop.

    Provilkov et al. 2020, algorithm 1: in every step each possible merge drops with probability
    `dropout` anew, and the best of the others is made. `scores` says which pieces may arise and
    which come first (the highest, and on the left); `draws` are uniform on [0, 1).
    """
    symbols = list(word)
    while True:
        best, place = -np.inf, -1
        for index in range(len(symbols) - 1):
            score = scores.get(symbols[index] + symbols[index + 1])
            # A merge that would lose anyway needs no draw: whether it drops makes no difference.
            if score is not None and score > best and next(draws) >= dropout:
                best, place = score, index
        if place < 0:
            return symbols
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def uniform_draws(rng: np.random.Generator) -> Iterator[float]:
    """Endless uniform numbers on [0, 1), fetched by the block because single calls are slow."""
    while True:
        yield from rng.random(64).tolist()
