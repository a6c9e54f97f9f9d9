"""Corpora as TFDS datasets in array_record files: random access, never entirely in memory, prepared and read
without TensorFlow."""

import contextlib
import functools
import io
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from transformer.errors import UserError

Pair = tuple[str, str]
"""A sentence and its translation."""

SOURCE, TARGET = "source", "target"


def cache_root(given: Path | None) -> Path:
    """The folder of prepared corpora: as given, or $TRANSFORMER_CACHE, or ~/.cache/transformer-jax.

    Raises:
      UserError: none is given, and this user has no home directory.
    """
    default = os.environ.get("TRANSFORMER_CACHE") or Path("~/.cache/transformer-jax")
    try:
        return Path(given or default).expanduser()
    except RuntimeError as error:  # a user id that the system has no entry for, as in some containers
        raise UserError(
            f"{given or default}: this user has no home directory; set TRANSFORMER_CACHE to a folder for "
            "prepared text and compiled programs"
        ) from error


@functools.cache
def tfds() -> ModuleType:
    """tensorflow_datasets, imported on first use (it takes a second), without progress bars."""
    import tensorflow_datasets

    tensorflow_datasets.disable_progress_bar()
    return tensorflow_datasets


class Stored(ABC):
    """The records of one split, by index.

    Args:
      source: what `builder.as_data_source` gives.
      keys: of the strings that make a record.
      name: its location, for messages.
    """

    keys: ClassVar[tuple[str, ...]]
    """Those with which a corpus is prepared here."""
    builder: ClassVar[str]
    """The name of what prepares it, after which TFDS names files."""

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
        except (RuntimeError, ValueError, KeyError) as error:
            for index in indices:  # find the damaged one
                try:
                    self._read([index])
                except (RuntimeError, ValueError, KeyError):
                    break
            raise UserError(
                f"{self._name}: record {index} is damaged ({str(error).splitlines()[0][:120]}); remove the "
                "folder to prepare the corpus again"
            ) from error

    def _read(self, indices: Sequence[int]) -> list[Any]:
        records = self._source.__getitems__([int(index) for index in indices])
        return [self.record(*(record[key].decode() for key in self._keys)) for record in records]

    @staticmethod
    @abstractmethod
    def record(*strings: str) -> Any:
        """The record of its strings."""

    @staticmethod
    @abstractmethod
    def features() -> Any:
        """What TFDS needs to know of records that are prepared here."""

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), 4096):
            yield from self.__getitems__(range(start, min(start + 4096, len(self))))


class PairSource(Stored):
    """Sentence pairs."""

    keys, builder = (SOURCE, TARGET), "SentencePairs"

    @staticmethod
    def record(*strings: str) -> Pair:
        source, target = strings
        return source, target

    @staticmethod
    def features() -> Any:
        return tfds().features.Translation(languages=PairSource.keys)


class TextSource(Stored):
    """Documents."""

    keys, builder = ("text",), "Documents"

    @staticmethod
    def record(*strings: str) -> str:
        return strings[0]

    @staticmethod
    def features() -> Any:
        return tfds().features.FeaturesDict({"text": tfds().features.Text()})


S = TypeVar("S", bound=Stored)


@functools.cache
def _builder_class(kind: type[Stored]) -> Any:
    class Prepared:
        """Records from iterators, in their original order."""

        VERSION = tfds().core.Version("1.0.0")
        splits: Mapping[str, Callable[[], Iterator[tuple[str, ...]]]]

        def _info(self) -> Any:
            features = kind.features()
            return tfds().core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager: Any) -> Any:
            return {name: self._generate_examples(records()) for name, records in self.splits.items()}

        def _generate_examples(self, records: Iterator[tuple[str, ...]]) -> Any:
            for index, strings in enumerate(records):
                yield index, dict(zip(kind.keys, strings, strict=True))

    # TFDS names files after the class
    return type(kind.builder, (Prepared, tfds().core.GeneratorBasedBuilder), {})


def prepare(
    place: Path, splits: Mapping[str, Callable[[], Iterator[tuple[str, ...]]]], kind: type[S]
) -> dict[str, S]:
    """The splits stored in `place`, written on first use.

    They are written to another folder, which is moved to `place` when complete, so that an interrupted
    preparation cannot be mistaken for a corpus.

    Raises:
      UserError: `place` cannot be written.
    """

    def opened() -> Any:
        logging.getLogger("absl").setLevel(logging.ERROR)  # TFDS warns of folders without a dataset
        builder = _builder_class(kind)(data_dir=os.fspath(place), file_format="array_record")
        builder.splits = splits
        return builder

    try:
        place.mkdir(parents=True, exist_ok=True)
        builder = opened()
        if not builder.is_prepared():
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints messages
                    builder.download_and_prepare()
            except Exception:  # array_record has its own error types
                builder = opened()
                if not builder.is_prepared():  # else another process did so meanwhile
                    raise
    except UserError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        raise UserError(
            f"cannot store the corpus in {place}: {reason}; choose another folder with --data.cache-dir"
        ) from error
    return {name: kind(builder.as_data_source(split=name), kind.keys, f"{place}, {name}") for name in splits}
