"""Where the records of a corpus come from: the one function that stores them and names their folder, what is
held out if there are no files for validation, manifests, and corpora in memory."""

import functools
import hashlib
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from transformer.config.corpus import SPLITS, CorpusConfig
from transformer.config.records import AUDIO
from transformer.data import store
from transformer.data.remote import fetched
from transformer.data.sources.text_files import (
    Damaged,
    bad_line,
    bad_line_of,
    readable_lines,
    refuse_bad_lines,
)
from transformer.data.sources.unusual import Filter
from transformer.data.store import Corpus, Form, Progress, Record, silent
from transformer.runtime.errors import UserError
from transformer.runtime.files import address, cache_root, open_regular, unreadable

T = TypeVar("T")

HELD_OUT = 1000  # records of built-in validation and test sets; most that is held out of other corpora
LAST = 0.1  # of a training text that is held out at its end
SHARE = 0.1  # of the files of training that is held out, if there is no manifest for validation
HELD_OUT_NOTE = "no validation text was given: a part of the training text, always the same, is held out"


@dataclass(frozen=True)
class Source:
    """Where the records of a corpus come from."""

    name: str
    """The name of the corpus for people."""
    form: Form
    """How its records are stored."""
    kind: str
    """What the name of its folder begins with. That of a generator has its version: whoever changes what it
    generates raises it (`tests/test_versions.py` notices)."""
    key: Sequence[object]
    """What decides about its records. The name of the folder has a hash of it."""
    read: Callable[[str], Iterable[Record]]
    """Yields the records of a split. It is only called if they are not stored yet."""
    splits: Iterable[str] = SPLITS
    notes: Sequence[str] = ()
    """What people should know about it."""
    damaged: Damaged = field(default_factory=Damaged)
    """The files that `read` found to be damaged."""
    filter: Filter | None = None
    """What `read` leaves out."""

    def open(self, cache_dir: Path | None, progress: Progress = silent) -> Corpus:
        """The corpus, stored on first use.

        Raises:
          UserError: it cannot be stored; and those of `read`.
        """
        folder = corpus_folder(cache_dir, self.kind, *self.key)
        splits = {split: functools.partial(self.read, split) for split in self.splits}
        try:
            prepared = store.prepare(folder, splits, self.form, progress)
        except store.EmptySplit as error:
            left_out = self.filter.described() if self.filter else ""
            raise UserError(f"{self.name}: {error}\n{left_out}".rstrip()) from error
        self.damaged.note(folder)
        left_out = self.filter.note(folder) if self.filter else ""
        note = "\n  ".join(filter(None, ("; ".join(self.notes), left_out)))
        return Corpus(self.name, prepared, folder, note)


def corpus_folder(cache_dir: Path | None, prefix: str, *key: object) -> Path:
    """The folder of a prepared corpus, named after what it is made from."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()
    return cache_root(cache_dir) / "corpora" / f"{prefix}-{digest}"


def files_of(data: CorpusConfig) -> dict[str, Path]:
    """The files of splits, one each, that options name."""
    return {split: path for split in SPLITS if (path := getattr(data, split))}


def read_files(data: CorpusConfig, unit: str, read: Callable[[Path], T]) -> dict[str, T]:
    """What is read of the file of each split.

    Args:
      data: names the files.
      unit: what they have, for messages.
      read: reads a file.

    Raises:
      UserError: as `read`; there are lines that cannot be read; there is no file for training.
    """
    contents = {split: read(path) for split, path in files_of(data).items()}
    refuse_bad_lines()
    if contents and "train" not in contents:
        raise UserError(f"no training {unit}: give --data.train")
    return contents


def all_but_last(size: int, refusal: str) -> int:
    """How many records of a training text are left if its last tenth is held out.

    Args:
      size: the number of its records.
      refusal: the message if it has too few.

    Raises:
      UserError: none are left.
    """
    rest = size - max(1, round(LAST * size))
    if rest < 1:
        raise UserError(refusal)
    return rest


# Manifests: files that list pictures or recordings.


@dataclass(frozen=True)
class Entry:
    """A line of a manifest."""

    path: Path
    """The file that it names."""
    manifest: Path
    number: int


E = TypeVar("E", bound=Entry)
L = TypeVar("L", bound=tuple[str, Any, Any])
Lists = dict[str, list[E]]
"""What the manifest of each split lists."""


def entries_of(path: Path, unit: str, parse: Callable[[str], L], must: str = "") -> Iterator[tuple[Entry, L]]:
    """Yields the lines of a manifest that can be read, and what they say: first the name of the file.

    Args:
      path: of the manifest.
      unit: what it lists: picture or recording.
      parse: reads a line. Raises ValueError, TypeError or KeyError if it is not as it must be.
      must: precedes what they say in messages.

    Raises:
      UserError: there are none.
    """
    is_empty = True
    for number, line in readable_lines(path):
        try:
            parsed = parse(line)
            file = listed(parsed[0], path, number, unit)
        except (ValueError, TypeError, KeyError) as error:
            bad_line(path, number, str(error), subject=must)
        except UserError as error:
            bad_line_of(path, number, error)
        else:
            is_empty = False
            yield Entry(file, path, number), parsed
    if is_empty:
        refuse_bad_lines()
        raise UserError(f"{path} is empty: it lists no {unit}s")


def joined_path(manifest: Path, name: str, where: str) -> Path:
    """A file that a line names: of this machine, or beneath the address that the manifest has.

    Args:
      manifest: that has the line.
      name: of the file, relative to the folder of the manifest.
      where: the line, for messages.

    Raises:
      UserError: it would be at an address that the command line does not name.
    """
    path, is_remote = manifest.parent / name, address(manifest) is not None
    if is_remote and (Path(name).is_absolute() or ".." in Path(name).parts):
        raise UserError(f"{where}: {name} must be a file within {address(manifest.parent)}")
    if address(name) or (address(path) and not is_remote):
        raise UserError(
            f"{where}: {name} is an address, and a list names files relative to its own folder: copy it there"
        )
    return path


def listed(name: str, manifest: Path, number: int, unit: str) -> Path:
    """A file that a line names, relative to the folder of the manifest.

    Args:
      name: of the file.
      manifest: that has the line.
      number: of the line, from 1.
      unit: what the file must be: picture or recording.

    Raises:
      UserError: it is not there.
    """
    where = f"{manifest}, line {number}"
    if not name.strip():
        raise UserError(f"{where}: must begin with the name of a {unit}")
    path = joined_path(manifest, name, where)
    try:
        with open_regular(fetched(path)):
            return path
    except (OSError, ValueError) as error:
        if unit == "recording" and " " in name and path.suffix.lower() not in AUDIO:  # a line of a text
            raise UserError(
                f"{where}: it names no recording: each line must be the name of one, which ends in "
                f"{' or '.join(AUDIO)}, and perhaps a tab and its text"
            ) from error
        raise UserError(f"{where}: {path}: {unreadable(error)}") from error


def digests_of(lists: Lists[E]) -> dict[Path, str]:
    """A hash of each file that is listed."""
    digests = {}
    for path in {entry.path for entries in lists.values() for entry in entries}:
        with open_regular(fetched(path)) as file:
            digests[path] = hashlib.file_digest(file, "blake2b").hexdigest()
    return digests


def held_out(lists: Lists[E], digests: Mapping[Path, str], key: Callable[[E], Any], unit: str) -> list[str]:
    """Parts what is listed for training, if nothing is for validation: no file is in both parts.

    Args:
      lists: of the manifests; gets the two parts.
      digests: hashes of the files.
      key: held out are the files with the smallest.
      unit: what is listed: picture or recording.

    Returns:
      A note that says so; nothing if there is a manifest for validation.

    Raises:
      UserError: there are too few.
    """
    if "validation" in lists:
        return []
    train = lists["train"]
    different = list(dict.fromkeys(digests[entry.path] for entry in sorted(train, key=key)))
    count = min(HELD_OUT, math.ceil(SHARE * len(different)))
    if count == len(different):
        manifest = train[0].manifest
        raise UserError(f"{manifest} lists too few {unit}s to hold some out: give --data.validation")
    first = set(different[:count])
    lists["train"] = [entry for entry in train if digests[entry.path] not in first]
    lists["validation"] = [entry for entry in train if digests[entry.path] in first]
    return [HELD_OUT_NOTE.replace("text", "manifest", 1).replace("text", f"{unit}s")]


def records_of(
    entries: Iterable[E], read: Callable[[E], Iterable[Record]], damaged: Damaged
) -> Iterator[Record]:
    """Yields the records of files that are listed.

    Args:
      entries: names the files.
      read: yields those of a file. Raises UserError if it is damaged.
      damaged: gets the files that are.

    Raises:
      UserError: some are, and are not left out.
    """
    for entry in entries:
        if (entry.manifest, entry.number) in damaged:
            continue
        try:
            records = list(read(entry))
        except UserError as error:
            damaged.add(entry.manifest, entry.number, error)
        else:
            yield from records
    refuse_bad_lines()


# Corpora in memory.


class InMemory(list[Record]):
    """Records in memory."""

    def __getitems__(self, indices: Sequence[int]) -> list[Record]:
        """The records with these numbers."""
        return [self[int(index)] for index in indices]


def in_memory(name: str, splits: Mapping[str, Sequence[Record]], cache_dir: Path | None = None) -> Corpus:
    """A corpus of records in memory, for tasks whose records fit there.

    Args:
      name: for people.
      splits: train and validation, and test if there is one.
      cache_dir: `config.data.cache_dir`.
    """
    # only hashed: nothing is ever read from it
    digest = hashlib.blake2b(pickle.dumps({split: list(x) for split, x in splits.items()}), digest_size=16)
    records = {split: InMemory(split_records) for split, split_records in splits.items()}
    return Corpus(name, records, cache_root(cache_dir) / f"{name}-{digest.hexdigest()}")
