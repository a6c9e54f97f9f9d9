"""Distributions of sampled segmentations, by enumeration."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest


def assert_frequencies(counts: Counter, expected: dict, draws: int) -> None:
    """Within four standard deviations of the exact probabilities, and nothing else. Outcomes that are
    expected less than fifty times count as one."""
    assert sum(expected.values()) == pytest.approx(1)
    assert {*counts} <= {*expected}
    together = {outcome: outcome if draws * p >= 50 else "rare" for outcome, p in expected.items()}
    probabilities: Counter = Counter()
    pooled: Counter = Counter()
    for outcome, name in together.items():
        probabilities[name] += expected[outcome]
        pooled[name] += counts[outcome]
    for name, probability in probabilities.items():
        deviation = np.sqrt(draws * probability * max(0, 1 - probability))
        # a rare outcome may come once, whatever is expected
        assert abs(pooled[name] - draws * probability) <= 4 * deviation + (name == "rare") + 1e-6, name


def segmentations(word: str, scores: dict[str, float]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every way to cut a word into pieces, and the sum of their scores."""
    if not word:
        yield (), 0.0
    for end in range(1, len(word) + 1):
        if word[:end] in scores:
            for rest, score in segmentations(word[end:], scores):
                yield (word[:end], *rest), scores[word[:end]] + score


def dropout_distribution(symbols: tuple[str, ...], scores: dict[str, float], dropout: float) -> Counter:
    """Algorithm 1 of Provilkov et al. 2020 by enumeration: which merges of a step drop."""
    places = [i for i in range(len(symbols) - 1) if symbols[i] + symbols[i + 1] in scores]
    places.sort(key=lambda i: (-scores[symbols[i] + symbols[i + 1]], i))
    outcomes: Counter = Counter()
    outcomes[symbols] += dropout ** len(places)
    for rank, i in enumerate(places):
        chosen = dropout**rank * (1 - dropout)
        after = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
        for outcome, probability in dropout_distribution(after, scores, dropout).items():
            outcomes[outcome] += chosen * probability
    return outcomes
