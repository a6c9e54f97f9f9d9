"""A built-in corpus in which spelling and sound differ: numbers in digits, and how they are pronounced.

    407        fOr hAndr@d @nd sEv@n

The signs are the phonemes of the built-in synthesiser (`transformer.data.built_in.spoken`).
"""

import random
from collections.abc import Iterator

from transformer.data.built_in.dialogue import SHARES, split_of
from transformer.data.built_in.inflection import number
from transformer.data.built_in.spoken import phonemes
from transformer.runtime.errors import UserError

PRONUNCIATION_VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
Pair = tuple[str, str]
LARGEST_NUMBER = 9_999


def words_of(value: int) -> list[str]:
    """The English words of a number from 0 to 9,999."""
    return number(value)[0].replace("-", " ").split()


def drawn_number(split: str, chance: random.Random, digits: int = 4) -> int:
    """A number of a split, of 1 to `digits` digits. A hash of its digits decides in which split it is."""
    while True:
        value = chance.randrange(10 ** chance.randint(1, digits))
        if value < 10 or split_of(str(value)) == split:  # the digits are in all splits
            return value


def pronounced_pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields numbers and their phonemes endlessly, the same for the same arguments.

    Args:
      split: "train", "validation" or "test".
      seed: of the random numbers.

    Raises:
      UserError: there is no such split.
    """
    if split not in SHARES:
        raise UserError(f"no {split} split of the corpus pronunciation: there are {', '.join(SHARES)}")
    chance = random.Random(f"pronunciation {split} {seed}")
    while True:
        value = drawn_number(split, chance)
        yield str(value), phonemes(words_of(value))
