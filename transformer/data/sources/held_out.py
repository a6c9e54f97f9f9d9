"""What is held out of a training text if there is no validation text; and corpora in memory."""

import hashlib
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.data.store import Corpus, DirectedPair, Pair, Record
from transformer.runtime.errors import UserError
from transformer.runtime.files import cache_root

# Corpora in memory, for tasks whose records fit there.


class InMemory(list[Record]):
    """Records in memory."""

    def __getitems__(self, indices: Sequence[int]) -> list[Record]:
        """Several records at once."""
        return [self[int(index)] for index in indices]


def in_memory(name: str, splits: Mapping[str, Sequence[Record]], cache_dir: Path | None = None) -> Corpus:
    """A corpus of records in memory.

    Args:
      name: for people.
      splits: train and validation, and test if there is one.
      cache_dir: `config.data.cache_dir`.
    """
    # only hashed: nothing is ever read from it
    digest = hashlib.blake2b(pickle.dumps({split: list(x) for split, x in splits.items()}), digest_size=16)
    records = {split: InMemory(split_records) for split, split_records in splits.items()}
    return Corpus(name, records, cache_root(cache_dir) / f"{name}-{digest.hexdigest()}")


HELD_OUT = 1000  # sentences in built-in validation and test sets; most that is held out of a training text
SHARE = 0.05  # of a training text that is held out


def held_out(
    pairs: Callable[[], Iterator[Any]], path: Path, key: Callable[[str], str] = str
) -> dict[str, Callable[[], Iterator[Any]]]:
    """Splits a training text into training and validation. Held out are the sources with the smallest
    hashes, so that no sentence is in both; with several directions it is no target of training either.

    Args:
      pairs: reads the training text.
      path: its file, for messages.
      key: what no two splits share of a source.

    Raises:
      UserError: there are too few different sentences.
    """

    def hash_of(text: str) -> bytes:
        return hashlib.blake2b(key(text).encode(), digest_size=8).digest()

    hashes = sorted(hash_of(pair[0]) for pair in pairs())
    count = min(HELD_OUT, math.ceil(SHARE * len(hashes)))
    last = hashes[count - 1]
    if last == hashes[-1]:
        raise UserError(
            f"{path} has too few different sentences to hold some out for validation: give "
            "--data.validation-source and --data.validation-target, --data.validation-tsv, or "
            "--data.validation"
        )
    return {
        "train": lambda: (pair for pair in pairs() if all(hash_of(text) > last for text in _texts(pair))),
        "validation": lambda: (pair for pair in pairs() if hash_of(pair[0]) <= last),
    }


def _texts(pair: Pair | DirectedPair) -> tuple[str, ...]:
    """The texts that are not in the validation if the pair is in the training."""
    return pair[:2] if isinstance(pair, DirectedPair) else pair[:1]
