"""Corpora as TFDS datasets in array_record files: random access, never entirely in memory, prepared and read
without TensorFlow."""

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

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


class PairSource:
    """The pairs of one split, by index.

    Args:
      source: what `builder.as_data_source` gives.
      languages: the record's keys for source and target.
      name: its location, for messages.
    """

    def __init__(self, source: Any, languages: tuple[str, str], name: str) -> None:
        self._source, self._languages, self._name = source, languages, name

    def __len__(self) -> int:
        return len(self._source)

    def __getitems__(self, indices: Sequence[int]) -> list[Pair]:
        """Several pairs at once, which is many times faster than one by one.

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

    def _read(self, indices: Sequence[int]) -> list[Pair]:
        records = self._source.__getitems__([int(index) for index in indices])
        first, second = self._languages
        return [(record[first].decode(), record[second].decode()) for record in records]

    def __iter__(self) -> Iterator[Pair]:
        for start in range(0, len(self), 4096):
            yield from self.__getitems__(range(start, min(start + 4096, len(self))))


@functools.cache
def _builder_class() -> Any:
    class SentencePairs(tfds().core.GeneratorBasedBuilder):  # type: ignore[name-defined,misc]
        """Sentence pairs from iterators, in their original order."""

        VERSION = tfds().core.Version("1.0.0")
        splits: Mapping[str, Callable[[], Iterator[Pair]]]

        def _info(self) -> Any:
            features = tfds().features.Translation(languages=(SOURCE, TARGET))
            return tfds().core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager: Any) -> Any:
            return {name: self._generate_examples(pairs()) for name, pairs in self.splits.items()}

        def _generate_examples(self, pairs: Iterator[Pair]) -> Any:
            for index, (source, target) in enumerate(pairs):
                yield index, {SOURCE: source, TARGET: target}

    return SentencePairs


def prepare(place: Path, splits: Mapping[str, Callable[[], Iterator[Pair]]]) -> dict[str, PairSource]:
    """The splits stored in `place`, written on first use.

    They are written to another folder, which is moved to `place` when complete, so that an interrupted
    preparation cannot be mistaken for a corpus.

    Raises:
      UserError: `place` cannot be written.
    """

    def opened() -> Any:
        builder = _builder_class()(data_dir=os.fspath(place), file_format="array_record")
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
    languages = (SOURCE, TARGET)
    return {
        name: PairSource(builder.as_data_source(split=name), languages, f"{place}, {name}") for name in splits
    }
