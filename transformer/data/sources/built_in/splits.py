"""An infinite stream of sentence pairs, and a fixed split into training, validation and test."""

import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal

from transformer.data.sources.built_in.inflection import Pair
from transformer.data.sources.built_in.sentences import sentence_pair
from transformer.runtime.errors import UserError

HELD_OUT_PERCENT = 4


def _fingerprint(english: str) -> int:
    return int.from_bytes(blake2b(english.encode(), digest_size=8).digest(), "big")


def _split(fingerprint: int) -> Literal["train", "validation", "test"]:
    part = fingerprint % 100 // HELD_OUT_PERCENT
    return "test" if part == 0 else "validation" if part == 1 else "train"


def split_of(english: str) -> Literal["train", "validation", "test"]:
    """The split of a sentence. It depends only on a hash of the text, so it never changes.

    `HELD_OUT_PERCENT` percent of all sentences are for validation, and as many for the test.
    """
    return _split(_fingerprint(english))


def pairs(seed: int, split: str) -> Iterator[Pair]:
    """An infinite stream of distinct (English, German) pairs of a split, determined by `seed` and `split`.

    Raises:
        UserError: `split` is not "train", "validation" or "test".
    """
    if split not in ("train", "validation", "test"):
        raise UserError(f'no split "{split}": use "train", "validation" or "test"')
    rng = random.Random(f"{split}/{seed}")
    seen: set[int] = set()
    while True:
        pair = sentence_pair(rng)
        fingerprint = _fingerprint(pair[0])
        if _split(fingerprint) == split and fingerprint not in seen:
            seen.add(fingerprint)
            yield pair
