"""What a corpus is, and corpora as TFDS datasets in array_record files: random access, never entirely in
memory, prepared and read without TensorFlow.

Records are written and read as `tf.train.Example` messages, without the feature codec of TFDS, which takes
several times as long. TFDS reads the same files.
"""

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from google.protobuf.message import DecodeError

from transformer.runtime.errors import UserError
from transformer.runtime.files import folder_whole

# What a corpus is, whatever its records are.


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
        """The records with these numbers."""
        ...

    def __iter__(self) -> Iterator[Record]: ...


@dataclass(frozen=True)
class Chosen:
    """Some of the records of others, by their numbers."""

    records: Records
    numbers: Sequence[int] | np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, indices: Sequence[int]) -> list[Record]:
        """The records with these numbers."""
        return self.records.__getitems__([int(self.numbers[index]) for index in indices])

    def __iter__(self) -> Iterator[Record]:
        return iter(self.__getitems__(range(len(self))))


@dataclass(frozen=True)
class Corpus:
    """Records in splits, and a folder that caches what is computed from them."""

    name: str
    """The name of the corpus for people."""
    splits: Mapping[str, Records]
    """train and validation, and test if there is one."""
    folder: Path
    """Its name changes with the content, so that a run is not resumed on another corpus."""
    note: str = ""
    """What people should know about it, such as that a part is held out."""
    sample: Records | None = None
    """Training records from everywhere, of which vocabularies are learned and remarks made. None: all of them
    are read for that."""


Pair = tuple[str, str]
"""A sentence and its translation."""

_DAMAGED = RuntimeError, ValueError, IndexError, DecodeError
"""What reading a damaged record raises."""


@functools.cache
def tfds() -> ModuleType:
    """tensorflow_datasets, imported on first use (it takes a second), without progress bars."""
    import tensorflow_datasets

    tensorflow_datasets.disable_progress_bar()
    return tensorflow_datasets


@functools.cache
def _messages() -> ModuleType:
    """The protocol buffers of TFDS's records."""
    tfds()
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2


@dataclass(frozen=True)
class Column:
    """How a value of a record is stored."""

    decode: Callable[[Mapping[str, Any], str], Any]
    """The value of what is stored under a name. Raises what `_DAMAGED` has if that is damaged."""
    encode: Callable[[Any], dict[str, bytes | Sequence[int]]]
    """What is stored: bytes or integers, by what follows the name of the column."""
    feature: Callable[[], Any]
    """What TFDS needs to know."""


def text_of(stored: Mapping[str, Any], key: str) -> str:
    """A text of a stored record. Raises IndexError or UnicodeDecodeError if it is damaged."""
    text: bytes = stored[key].bytes_list.value[0]
    return text.decode()


def spelled(to_text: Callable[[Any], str], of_text: Callable[[str], Any]) -> Column:
    """A column whose values are stored as texts."""
    return Column(
        lambda stored, key: of_text(text_of(stored, key)),
        lambda value: {"": to_text(value).encode()},
        lambda: tfds().features.Text(),
    )


def array(stored_dtype: Any, *shape: int | None, dtype: Any = None) -> Column:
    """A column of arrays.

    Args:
      stored_dtype: the type of the stored numbers.
      shape: sizes of the axes. None: any.
      dtype: the type of the numbers in a record, if it is another.
    """

    def decode(stored: Mapping[str, Any], key: str) -> np.ndarray:
        values = np.frombuffer(stored[f"{key}/value"].bytes_list.value[0], stored_dtype)
        values = values.reshape(stored[f"{key}/shape"].int64_list.value)
        return values.astype(dtype) if dtype else values

    def encode(values: np.ndarray) -> dict[str, bytes | Sequence[int]]:
        return {"/shape": values.shape, "/value": values.astype(stored_dtype).tobytes()}

    return Column(
        decode, encode, lambda: tfds().features.Tensor(shape=shape, dtype=stored_dtype, encoding="bytes")
    )


def integers(count: int) -> Column:
    """A column of so many integers."""
    return Column(
        lambda stored, key: stored[key].int64_list.value,
        lambda values: {"": values},
        lambda: tfds().features.Tensor(shape=(count,), dtype=np.int64),
    )


TEXT = Column(text_of, lambda text: {"": text.encode()}, lambda: tfds().features.Text())
LINES = spelled("\n".join, lambda text: tuple(text.split("\n")) if text else ())
"""Texts without line breaks."""
LIST = spelled(json.dumps, lambda text: tuple(json.loads(text)))
"""Texts that may have line breaks."""


def tfds_features(columns: Mapping[str, Column]) -> Any:
    """The features by which TFDS stores columns."""
    return tfds().features.FeaturesDict({name: column.feature() for name, column in columns.items()})


@dataclass(frozen=True, eq=False)
class Form:
    """How records are stored."""

    dataset: str
    """The name of the dataset, with which its files begin."""
    columns: Mapping[str, Column]
    record: Callable[..., Record]
    """Makes a record of the values of its columns."""
    values: Callable[[Record], Iterable[Any]] = iter
    """The values of a record, in the order of the columns."""
    features: Callable[[Mapping[str, Column]], Any] = tfds_features
    """What TFDS needs to know of the columns."""

    def encoded(self, record: Record) -> dict[str, bytes | Sequence[int]]:
        """What is stored of a record: bytes or integers by name."""
        values = zip(self.columns.items(), self.values(record), strict=True)
        return {
            f"{name}{ending}": stored
            for (name, column), value in values
            for ending, stored in column.encode(value).items()
        }

    def decoded(self, stored: Mapping[str, Any]) -> Record:
        """The record of what is stored."""
        return self.record(*[column.decode(stored, name) for name, column in self.columns.items()])


class Stored:
    """The records of one split, by index.

    Args:
      source: serialized `tf.train.Example` messages, by index.
      form: of the records.
      name: its location, for messages.
    """

    def __init__(self, source: Any, form: Form, name: str) -> None:
        self._source, self._form, self._name = source, form, name

    def __len__(self) -> int:
        return len(self._source)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several records at once, which is many times faster than one by one.

        Raises:
          UserError: a record is damaged.
        """
        try:
            return self._read(indices)
        except _DAMAGED as error:
            for index in indices:  # find the damaged one
                try:
                    self._read([index])
                except _DAMAGED:
                    break
            raise UserError(
                f"{self._name}: record {index} is damaged ({str(error).splitlines()[0][:120]}); remove the "
                "folder to prepare the corpus again"
            ) from error

    def _read(self, indices: Sequence[int]) -> list[Any]:
        if not len(indices):
            return []
        parse = _messages().Example.FromString
        records = self._source.__getitems__([int(index) for index in indices])
        return [self._form.decoded(parse(record).features.feature) for record in records]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), 4096):
            yield from self.__getitems__(range(start, min(start + 4096, len(self))))


class DirectedPair(NamedTuple):
    """A sentence and its translation, with the languages of both."""

    source: str
    target: str
    source_language: str
    target_language: str


class TextRecord(NamedTuple):
    """A text that is read and one that is written, of a table with named columns."""

    source: str
    target: str
    references: tuple[str, ...] = ()
    """Further texts that would be right."""
    group: str = ""
    """Name of the group whose records are scored alone. Empty: there are no groups."""


AnyPair = Pair | DirectedPair | TextRecord


PAIRS = Form(
    "sentence_pairs",
    {"source": TEXT, "target": TEXT},
    lambda *pair: pair,
    features=lambda columns: tfds().features.Translation(languages=tuple(columns)),
)
DIRECTED = Form("directed_pairs", dict.fromkeys(DirectedPair._fields, TEXT), DirectedPair)
TEXT_RECORDS = Form(
    "text_records", {"source": TEXT, "target": TEXT, "references": LIST, "group": TEXT}, TextRecord
)
DOCUMENTS = Form("documents", {"text": TEXT}, str, values=lambda text: (text,))


Splits = Mapping[str, Callable[[], Iterable[Record]]]
"""What reads the records of each split."""
_VERSION = "1.0.0"
_INFO = "dataset_info.json"


def prepare(root: Path, splits: Splits, form: Form, progress: Progress = silent) -> dict[str, Stored]:
    """The splits stored in the folder `root`, written on first use.

    They are written to another folder, which is moved to `root` when complete, so that an interrupted
    preparation cannot be mistaken for a corpus.

    Raises:
      UserError: `root` cannot be written, or what it has is damaged.
    """
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    folder = root / form.dataset / _VERSION
    is_stored = (folder / _INFO).exists()
    try:
        if not is_stored:
            try:
                with folder_whole(folder) as partial:
                    _write(partial, splits, form, progress)
            except OSError:
                if not (folder / _INFO).exists():  # else another process stored it meanwhile
                    raise
        return {
            name: Stored(ArrayRecordDataSource(_shards(folder, name)), form, f"{root}, {name}")
            for name in splits
        }
    except UserError:
        raise
    except Exception as error:  # array_record has its own error types
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        if is_stored:
            raise UserError(
                f"{folder} is damaged ({reason}); remove it to prepare the corpus again"
            ) from error
        raise UserError(
            f"cannot store the corpus in {root}: {reason}; choose another folder with --data.cache-dir"
        ) from error


def _shards(folder: Path, split: str) -> list[str]:
    return sorted(os.fspath(path) for path in folder.glob(f"*-{split}.array_record-*"))


class EmptySplit(UserError):
    """A split has no record."""


def _write(folder: Path, splits: Splits, form: Form, progress: Progress) -> None:
    """Writes the records in their order, one file a split, and what TFDS needs to know of them."""
    core = tfds().core
    split_infos = []
    for split, records in splits.items():
        path = folder / f"{form.dataset}-{split}.array_record-00000-of-00001"
        count, size = _write_file(path, progress(f"storing, {split}", records(), None), form)
        if not count:
            raise EmptySplit(f"the {split} split has no records")
        split_infos.append(core.SplitInfo(name=split, shard_lengths=[count], num_bytes=size))
    tfds().folder_dataset.write_metadata(
        data_dir=folder,
        features=form.features(form.columns),
        split_infos=split_infos,
        version=_VERSION,
        check_data=False,  # TFDS would do so with TensorFlow
        disable_shuffling=True,
    )


def _write_file(path: Path, records: Iterable[Record], form: Form) -> tuple[int, int]:
    """The number of the records, and of their bytes."""
    from array_record.python.array_record_module import ArrayRecordWriter

    message = _messages().Example
    count = 0
    size = 0
    writer = ArrayRecordWriter(os.fspath(path), "group_size:1")
    try:
        for record in records:
            example = message()
            for key, value in form.encoded(record).items():
                feature = example.features.feature[key]
                if isinstance(value, bytes):
                    feature.bytes_list.value.append(value)
                else:
                    feature.int64_list.value.extend(value)
            content = example.SerializeToString(deterministic=True)  # otherwise fields are in any order
            writer.write(content)
            count, size = count + 1, size + len(content)
    finally:
        writer.close()
    return count, size
