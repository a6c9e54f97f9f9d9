"""A corpus for tests: invented words, the same every time."""

import numpy as np


def make_lines(count: int, seed: int) -> list[str]:
    """Sentences of invented words whose frequencies fall off as those of real words do."""
    rng = np.random.default_rng(seed)
    syllables = [c + v + e for c in "bdfgklmnrst" for v in "aeiouäé" for e in ("", "n", "s", "ch")]
    words = ["".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(800)]
    ranks = np.minimum(rng.zipf(1.3, (count, 12)), len(words)) - 1
    return [" ".join(words[rank] for rank in row).capitalize() + "." for row in ranks]


LINES = make_lines(1500, seed=0)
UNSEEN = [line.replace("a", "o").replace("ch", "x") for line in make_lines(1000, seed=1)]
