"""Noise in training text (`--data.noise`): a share of the pairs gets capitals, typing errors or no final
punctuation, so that a model reads what people type. Which ones, and how, depends on the seed and the pair
alone."""

import hashlib
import random
from collections.abc import Callable, Mapping

from transformer.data.store import AnyPair, DirectedPair, TextRecord

Change = Callable[[str, str, random.Random], tuple[str, str]]
FINAL = ".!?…。！？"
MISTYPED = 0.1  # of the words of a source with typing errors, and at least one
SHORTEST = 4  # letters of a word that is mistyped


def _titled(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


def _without_final(source: str, target: str, chance: random.Random) -> tuple[str, str]:
    """Without the punctuation at the end, if both sides have some."""
    both = source.rstrip(FINAL), target.rstrip(FINAL)
    if source == both[0] or target == both[1] or not all(map(str.strip, both)):
        return source, target
    return both[0].rstrip(), both[1].rstrip()


def _mistyped(source: str, target: str, chance: random.Random) -> tuple[str, str]:
    words = source.split(" ")
    long = [index for index, word in enumerate(words) if len(word) >= SHORTEST and word.isalpha()]
    for index in chance.sample(long, min(len(long), max(1, round(MISTYPED * len(words))))):
        word, where = words[index], chance.randrange(1, len(words[index]) - 1)
        left, letter, next_letter, right = word[:where], word[where], word[where + 1], word[where + 2 :]
        words[index] = left + chance.choice((next_letter + letter, letter, letter * 2 + next_letter)) + right
    return " ".join(words), target


CHANGES: dict[str, Change] = {
    "punctuation": _without_final,
    "typos": _mistyped,
    "title": lambda source, target, chance: (_titled(source), _titled(target)),
    "upper": lambda source, target, chance: (source.upper(), target.upper()),
}
"""In the order in which they are made. Typing errors are in the source alone: two letters in the wrong order,
one left out, one twice."""


class Noise:
    """Changes a share of pairs. A pair with an empty side stays.

    Args:
      shares: of each change, from 0 to 1 (`transformer.config.pairs.noise_of`).
      seed: of what is drawn.
    """

    def __init__(self, shares: Mapping[str, float], seed: int) -> None:
        self._shares = [shares.get(name, 0) * 2**32 for name in CHANGES]
        self._salt = seed.to_bytes(16, "little")

    def __call__(self, pair: AnyPair) -> AnyPair:
        """The pair, perhaps with changes."""
        source, target = pair[:2]
        if not (source and target):
            return pair
        digest = hashlib.blake2b(f"{source}\n{target}".encode(), salt=self._salt).digest()
        for number, (change, share) in enumerate(zip(CHANGES.values(), self._shares, strict=True)):
            if int.from_bytes(digest[4 * number : 4 * number + 4]) < share:
                source, target = change(source, target, random.Random(digest))
        if isinstance(pair, DirectedPair | TextRecord):
            return pair._replace(source=source, target=target)
        return source, target
