"""Corpora in memory, for tasks whose records fit there."""

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.data.corpus import Corpus, Record
from transformer.runtime.files import cache_root


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
