"""What a corpus is, whatever its records are."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")

Record = Any
"""What a corpus holds, such as a pair of sentences."""
Progress = Callable[[str, Iterable[Any], int | None], Iterable[Any]]
"""(label, items, total) -> the same items, with progress shown."""


def silent(what: str, items: Iterable[T], total: int | None) -> Iterable[T]:
    """No progress shown."""
    return items


@runtime_checkable
class Records(Protocol):
    """Any number of records, by index."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int]) -> list[Record]:
        """Several records at once."""
        ...

    def __iter__(self) -> Iterator[Record]: ...


@dataclass(frozen=True)
class Corpus:
    """Records in splits, and a folder that caches what is computed from them."""

    name: str
    """For people."""
    splits: Mapping[str, Records]
    """train and validation, and test if there is one."""
    folder: Path
    """Its name changes with the content, so that a run is not resumed on another corpus."""
    note: str = ""
    """What people should know about it, such as that a part is held out."""
