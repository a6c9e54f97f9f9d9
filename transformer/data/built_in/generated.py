"""What built-in corpora of text tasks share: tables of words and sentences in text files, fixed splits, and
names that no other split has."""

import hashlib
import importlib.resources
import random
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from transformer.runtime.errors import UserError

Pair = tuple[str, str]
T = TypeVar("T")
SHARES = {"validation": 1, "test": 1, "train": 6}  # of eight names

_STARTS = [*"BDFGHKLMNPRSTVW", "Br", "Ch", "Dr", "Gr", "Sh", "St", "Th", "Tr"]
_VOWELS = [*"aeiou", "ai", "ea", "ie", "oa"]
_MIDDLES = [*"bdfgklmnprstvz", "ld", "nd", "rt", "st"]
_PERSONS = ["a", "an", "el", "en", "ia", "in", "o", "or", "us", "y"]
_TOWNS = ["bury", "by", "dale", "ford", "ham", "ley", "mouth", "port", "stead", "ton", "wick", "worth"]

_BETWEEN = re.compile(r" \|(?= |$)")


def tables(name: str) -> dict[str, list[list[str]]]:
    """The tables of a file of this folder: the rows of each `[section]`, whose cells " | " separates. Lines
    that begin with # are comments."""
    by_section, rows = dict[str, list[list[str]]](), list[list[str]]()
    for line in (importlib.resources.files(__package__) / name).read_text("utf-8").splitlines():
        if line.startswith("["):
            rows = by_section[line[1:-1]] = []
        elif line and not line.startswith("#"):
            rows.append([cell.strip() for cell in _BETWEEN.split(line)])
    return by_section


SENTENCES = tables("sentences.txt")


def pairs_of(rows: list[list[str]]) -> tuple[Pair, ...]:
    """The rows of a table of two columns."""
    return tuple((first, second) for first, second in rows)


def grouped(rows: list[list[str]]) -> dict[str, list[str]]:
    """The second column of a table, by the first."""
    groups: dict[str, list[str]] = {}
    for name, sentence in rows:
        groups.setdefault(name, []).append(sentence)
    return groups


def split_of(name: str) -> str:
    """The split of an English name, or of a character in Chinese names."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    share = int.from_bytes(digest, "big") % sum(SHARES.values())
    for split, many in SHARES.items():
        share -= many
        if share < 0:
            return split
    raise AssertionError("shares add up")


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
