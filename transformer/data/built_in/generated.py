"""What built-in corpora of text tasks share: fixed splits, and names that no other split has."""

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from transformer.data.built_in.copying import SHARES, split_of
from transformer.runtime.errors import UserError

Pair = tuple[str, str]
T = TypeVar("T")

_STARTS = [*"BDFGHKLMNPRSTVW", "Br", "Ch", "Dr", "Gr", "Sh", "St", "Th", "Tr"]
_VOWELS = [*"aeiou", "ai", "ea", "ie", "oa"]
_MIDDLES = [*"bdfgklmnprstvz", "ld", "nd", "rt", "st"]
_PERSONS = ["a", "an", "el", "en", "ia", "in", "o", "or", "us", "y"]
_TOWNS = ["bury", "by", "dale", "ford", "ham", "ley", "mouth", "port", "stead", "ton", "wick", "worth"]


def draw_split(
    corpus: str,
    split: str,
    seed: int,
    draw: Callable[[random.Random], T],
    key: Callable[[T], str],
) -> Iterator[T]:
    """Yields records of a split endlessly, the same for the same arguments, without repeating a key.

    Args:
      corpus: its name.
      split: "train", "validation" or "test". A hash of the key decides in which one a record is.
      seed: of the random numbers.
      draw: makes a record from random numbers.
      key: the text that no two records share, nor two splits.

    Raises:
      UserError: there is no such split.
    """
    if split not in SHARES:
        raise UserError(f"no {split} split of the corpus {corpus}: there are {', '.join(SHARES)}")
    chance, seen = random.Random(f"{corpus} {split} {seed}"), set[str]()
    while True:
        record = draw(chance)
        text = key(record)
        if text not in seen and split_of(text) == split:
            seen.add(text)
            yield record


def persons(chance: random.Random, split: str, count: int) -> list[str]:
    """Different names of persons that only this split has, such as Maldia; there are tens of thousands."""
    return _names(chance, split, count, _PERSONS)


def towns(chance: random.Random, split: str, count: int) -> list[str]:
    """Different names of towns that only this split has, such as Drelford."""
    return _names(chance, split, count, _TOWNS)


def _names(chance: random.Random, split: str, count: int, endings: list[str]) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        parts = (chance.choice(letters) for letters in (_STARTS, _VOWELS, _MIDDLES, endings))
        name = "".join(parts)
        if split_of(name) == split:
            names[name] = None
    return list(names)
