"""What a corpus is, and corpora as TFDS datasets in array_record files: random access, never entirely in
memory, prepared and read without TensorFlow.

Records are written and read as `tf.train.Example` messages, without the feature codec of TFDS, which takes
several times as long. TFDS reads the same files.
"""

import functools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

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


Pair = tuple[str, str]
"""A sentence and its translation."""

SOURCE, TARGET = "source", "target"
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


class Stored(ABC):
    """The records of one split, by index.

    Args:
      source: serialized `tf.train.Example` messages, by index.
      keys: of the strings that make a record.
      name: its location, for messages.
    """

    keys: ClassVar[tuple[str, ...]]
    """Those with which a corpus is prepared here."""
    dataset: ClassVar[str]
    """The name of the dataset, with which its files begin."""

    def __init__(self, source: Any, keys: tuple[str, ...], name: str) -> None:
        self._source, self._keys, self._name = source, keys, name

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
        return [self.decoded(parse(record).features.feature, self._keys) for record in records]

    @classmethod
    def encoded(cls, *values: Any) -> dict[str, bytes | Sequence[int]]:
        """What is stored of a record: bytes or integers by name."""
        return {key: text.encode() for key, text in zip(cls.keys, values, strict=True)}

    @staticmethod
    @abstractmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
        """The record of what is stored."""

    @staticmethod
    @abstractmethod
    def features() -> Any:
        """What TFDS needs to know of records that are prepared here."""

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), 4096):
            yield from self.__getitems__(range(start, min(start + 4096, len(self))))


def text_of(stored: Mapping[str, Any], key: str) -> str:
    """A text of a stored record. Raises IndexError or UnicodeDecodeError if it is damaged."""
    text: bytes = stored[key].bytes_list.value[0]
    return text.decode()


class PairSource(Stored):
    """Sentence pairs."""

    keys = (SOURCE, TARGET)
    dataset = "sentence_pairs"

    @staticmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> Pair:
        return text_of(stored, keys[0]), text_of(stored, keys[1])

    @staticmethod
    def features() -> Any:
        return tfds().features.Translation(languages=PairSource.keys)


class DirectedPair(NamedTuple):
    """A sentence and its translation, with the languages of both."""

    source: str
    target: str
    source_language: str
    target_language: str


class DirectedSource(Stored):
    """Sentence pairs of several directions."""

    keys = DirectedPair._fields
    dataset = "directed_pairs"

    @staticmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> DirectedPair:
        return DirectedPair(*(text_of(stored, key) for key in keys))

    @staticmethod
    def features() -> Any:
        features = tfds().features
        return features.FeaturesDict({key: features.Text() for key in DirectedSource.keys})


class TextRecord(NamedTuple):
    """A text that is read and one that is written, of a table with named columns."""

    source: str
    target: str
    references: tuple[str, ...] = ()
    """Further texts that would be right."""
    group: str = ""
    """Those of a group are scored alone. Empty: there are no groups."""


class TextRecordSource(Stored):
    """Rows of a table with named columns."""

    keys = TextRecord._fields
    dataset = "text_records"

    @classmethod
    def encoded(cls, *values: Any) -> dict[str, bytes | Sequence[int]]:
        source, target, references, group = values
        return super().encoded(source, target, json.dumps(references), group)

    @staticmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> TextRecord:
        source, target, references, group = (text_of(stored, key) for key in keys)
        return TextRecord(source, target, tuple(json.loads(references)), group)

    @staticmethod
    def features() -> Any:
        features = tfds().features
        return features.FeaturesDict({key: features.Text() for key in TextRecordSource.keys})


class TextSource(Stored):
    """Documents."""

    keys = ("text",)
    dataset = "documents"

    @staticmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> str:
        return text_of(stored, keys[0])

    @staticmethod
    def features() -> Any:
        return tfds().features.FeaturesDict({"text": tfds().features.Text()})


S = TypeVar("S", bound=Stored)
Splits = Mapping[str, Callable[[], Iterator[tuple[Any, ...]]]]
"""The values of each record, by split."""
_VERSION = "1.0.0"
_INFO = "dataset_info.json"


def prepare(root: Path, splits: Splits, kind: type[S], progress: Progress = silent) -> dict[str, S]:
    """The splits stored in the folder `root`, written on first use.

    They are written to another folder, which is moved to `root` when complete, so that an interrupted
    preparation cannot be mistaken for a corpus.

    Raises:
      UserError: `root` cannot be written.
    """
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    folder = root / kind.dataset / _VERSION
    try:
        if not (folder / _INFO).exists():
            try:
                with folder_whole(folder) as partial:
                    _write(partial, splits, kind, progress)
            except OSError:
                if not (folder / _INFO).exists():  # else another process stored it meanwhile
                    raise
        return {
            name: kind(ArrayRecordDataSource(_shards(folder, name)), kind.keys, f"{root}, {name}")
            for name in splits
        }
    except UserError:
        raise
    except Exception as error:  # array_record has its own error types
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        raise UserError(
            f"cannot store the corpus in {root}: {reason}; choose another folder with --data.cache-dir"
        ) from error


def _shards(folder: Path, split: str) -> list[str]:
    return sorted(os.fspath(path) for path in folder.glob(f"*-{split}.array_record-*"))


def _write(folder: Path, splits: Splits, kind: type[Stored], progress: Progress) -> None:
    """Writes the records in their order, one file a split, and what TFDS needs to know of them."""
    core = tfds().core
    split_infos = []
    for split, records in splits.items():
        path = folder / f"{kind.dataset}-{split}.array_record-00000-of-00001"
        count, size = _write_file(path, progress(f"storing, {split}", records(), None), kind)
        if not count:
            raise UserError(f"the {split} split has no records")
        split_infos.append(core.SplitInfo(name=split, shard_lengths=[count], num_bytes=size))
    tfds().folder_dataset.write_metadata(
        data_dir=folder,
        features=kind.features(),
        split_infos=split_infos,
        version=_VERSION,
        check_data=False,  # TFDS would do so with TensorFlow
        disable_shuffling=True,
    )


def _write_file(path: Path, records: Any, kind: type[Stored]) -> tuple[int, int]:
    """The number of the records, and of their bytes."""
    from array_record.python.array_record_module import ArrayRecordWriter

    message = _messages().Example
    count = 0
    size = 0
    writer = ArrayRecordWriter(os.fspath(path), "group_size:1")
    try:
        for values in records:
            example = message()
            for key, value in kind.encoded(*values).items():
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
