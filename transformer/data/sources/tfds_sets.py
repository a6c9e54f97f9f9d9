"""Datasets of TensorFlow Datasets (TFDS), by name: those included in TFDS, and those prepared by another
program. Code that is named in a dataset's files is never imported."""

import contextlib
import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from transformer.config.corpus import DataConfig
from transformer.config.records import RecordingsConfig, TextsConfig
from transformer.data import store
from transformer.data.signals.waveforms import is_sound, mono, scaled
from transformer.data.sources.tables import TARGET_LENGTH, record_of
from transformer.data.store import PairSource, Stored, TextRecord, TextSource
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import MiB, parse_object, read_text

_DATASET = re.compile(r"(?P<base>\w+)(/(?P<config>[\w.+-]*\w))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
_VERSION = re.compile(r"\d+\.\d+\.\d+", re.ASCII)
S = TypeVar("S")
_CLASSES = "tensorflow_datasets.core.features."
_FEATURES = {"pythonClassName", "description", "valueRange"}


@dataclass(frozen=True)
class _Kind:
    """What is read of a dataset."""

    features: str
    """The class of its features."""
    content: str
    """What they are described by."""
    inner: tuple[str, ...]
    """The classes that may be named there."""
    holds: str
    topics: tuple[str, ...]
    """Where TFDS has such datasets."""
    remedy: str


_TRANSLATION = _Kind(
    features=f"{_CLASSES}translation_feature.Translation",
    content="translation",
    inner=(),
    holds="translation",
    topics=("translate",),
    remedy="--data.train-source and --data.train-target",
)
_TEXT = _Kind(
    features=f"{_CLASSES}features_dict.FeaturesDict",
    content="featuresDict",
    inner=(f"{_CLASSES}text_feature.Text",),
    holds="text",
    topics=("text", "question_answering", "summarization"),
    remedy="--data.train",
)
_TABLE = replace(
    _TEXT,
    inner=(
        *_TEXT.inner,
        *(
            f"{_CLASSES}{name}"
            for name in (
                *("class_label_feature.ClassLabel", "features_dict.FeaturesDict", "scalar.Scalar"),
                *("sequence_feature.Sequence", "tensor_feature.Tensor"),
            )
        ),
    ),
    holds="table",
    topics=(*_TEXT.topics, "text_simplification"),
)
_SPEECH = _Kind(
    features=f"{_CLASSES}features_dict.FeaturesDict",
    content="featuresDict",
    inner=tuple(
        f"{_CLASSES}{name}"
        for name in (
            *("audio_feature.Audio", "tensor_feature.Tensor", "scalar.Scalar"),
            *("text_feature.Text", "class_label_feature.ClassLabel"),
        )
    ),
    holds="speech",
    topics=("audio", "datasets"),
    remedy="--data.train",
)


def tfds_splits(data: DataConfig, splits: Sequence[str]) -> tuple[dict[str, PairSource], object]:
    """The splits of the config's dataset, prepared on first use, and a value that identifies it.

    Raises:
      UserError: it is unknown, has other languages or splits, or cannot be downloaded.
    """
    builder = _prepared_builder(data.dataset, data.cache_dir, _TRANSLATION)
    languages = (data.source_language or "", data.target_language or "")
    offered = list(builder.info.features)
    for option, language in zip(("source", "target"), languages, strict=True):
        if language not in offered:
            missing = f"has no language {language!r}, only" if language else "has the languages"
            raise UserError(
                f"{data.dataset} {missing} {', '.join(sorted(offered))}: "
                f"choose one with --data.{option}-language"
            )
    _check_splits(builder, data.dataset, "train", "validation")
    return _opened(builder, PairSource, languages, splits)


def tfds_rows(data: DataConfig, splits: Sequence[str]) -> tuple[dict[str, Stored], object]:
    """As `tfds_splits`, of a dataset whose features have the columns that the config names: texts and labels.

    Raises:
      UserError: it is unknown, lacks a column or a split, or cannot be downloaded.
    """
    builder = _prepared_builder(data.dataset, data.cache_dir, _TABLE)
    columns = dict(_columns(builder.info.features))
    names = tuple(filter(None, (data.group, *data.inputs, *data.target)))
    stored_names = tuple(name for name in names if name != TARGET_LENGTH)
    for name in stored_names:
        if name not in columns:
            offered = ", ".join(sorted(columns)) or "none"
            raise UserError(f"{data.dataset} has no text or label named {name!r}; it has {offered}")
    _check_splits(builder, data.dataset, "train", "validation")

    class Rows(Stored):
        """Rows of the dataset."""

        @staticmethod
        def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> TextRecord:
            return record_of({name: columns[name](stored[name]) for name in keys}, data)

        @staticmethod
        def features() -> Any:
            return builder.info.features

    opened, identity = _opened(builder, Rows, stored_names, splits)
    return dict(opened), (identity, data.task, data.inputs, data.target, data.group)


def _columns(features: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Any], str | list[str]]]]:
    """The names of texts and labels, with functions that read their stored values. Names within others have
    slashes, such as answers/text of SQuAD; of a sequence there is a list."""
    of = store.tfds().features
    for name, kind in features.items():
        is_list = isinstance(kind, of.Sequence)
        inner = kind.feature if is_list else kind
        if isinstance(inner, of.FeaturesDict):
            parts = {part: of.Sequence(kind) for part, kind in inner.items()} if is_list else inner
            yield from ((f"{name}/{part}", read) for part, read in _columns(parts))
        elif isinstance(inner, of.Text | of.ClassLabel):
            yield name, partial(_texts, inner, is_list)


def _texts(kind: Any, is_list: bool, stored: Any) -> str | list[str]:
    """What is stored of texts or labels: a list, or the only one."""
    if isinstance(kind, store.tfds().features.Text):
        texts = [text.decode() for text in stored.bytes_list.value]
    else:
        texts = [kind.int2str(number) for number in stored.int64_list.value]
    return texts if is_list else texts[0]


def _check_splits(builder: Any, dataset: str, *splits: str) -> None:
    """Raises UserError if a split is missing."""
    for split in splits:
        if split not in builder.info.splits:
            raise UserError(f"{dataset} has no split named {split!r}, only {list(builder.info.splits)}")


def _check_feature(dataset: str, kind: str, feature: str, offered: Sequence[str]) -> None:
    """Raises UserError if a dataset does not have the text or audio of an option."""
    if feature not in offered:
        named = ", ".join(offered) or "none"
        raise UserError(
            f"{dataset} has no {kind} named {feature!r}: choose one with --data.{kind}-feature; it has "
            f"{named}"
        )


def tfds_texts(data: TextsConfig, splits: Sequence[str]) -> tuple[dict[str, TextSource], object]:
    """The splits of the config's dataset, prepared on first use, and a value that identifies it.

    Raises:
      UserError: it is unknown, has no such text or no training split, or cannot be downloaded.
    """
    builder = _prepared_builder(data.dataset, data.cache_dir, _TEXT)
    offered = sorted(
        name for name, kind in builder.info.features.items() if isinstance(kind, store.tfds().features.Text)
    )
    _check_feature(data.dataset, "text", data.text_feature, offered)
    _check_splits(builder, data.dataset, "train")
    return _opened(builder, TextSource, (data.text_feature,), splits)


@dataclass(frozen=True)
class Waves:
    """The recordings of a split, as TFDS stores them."""

    source: Any
    name: str
    """Of the split, for messages."""
    audio: str
    """The name of the waveform."""
    text: str
    """The name of what is said: a text, or a label."""
    rate: int
    """Samples a second."""
    labels: Any
    """Names the labels; None: it is text."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[np.ndarray, str]:
        """A waveform, and the text.

        Raises:
          UserError: there are no samples, or they are not numbers from -1 to 1.
        """
        record = self.source[index]
        wave = np.asarray(record[self.audio])
        text_or_label = record[self.text]
        where = f"{self.name}, record {index}"
        if not len(wave):
            raise UserError(f"{where}: {self.audio} has no samples")
        wave = mono(scaled(wave).reshape(len(wave), -1), where).astype(np.float32)
        if not is_sound(wave).all():
            raise UserError(f"{where}: {self.audio} must have numbers from -1 to 1, or whole numbers")
        return wave, self.labels.int2str(int(text_or_label)) if self.labels else text_or_label.decode()


def tfds_speech(data: RecordingsConfig, splits: Sequence[str]) -> tuple[dict[str, Waves], object]:
    """The splits of the config's dataset, prepared on first use, and a value that identifies it.

    Raises:
      UserError: it is unknown, has no such features or no training split, or cannot be downloaded.
    """
    of = store.tfds().features
    try:
        builder = _prepared_builder(data.dataset, data.cache_dir, _SPEECH)
        features = dict(builder.info.features)
    except ImportError as error:
        raise UserError(
            f"{data.dataset}: TFDS reads audio with TensorFlow: pip install '.[tfds-prepare]'"
        ) from error
    audio = [name for name, kind in features.items() if isinstance(kind, of.Tensor) and len(kind.shape) >= 1]
    texts = [name for name, kind in features.items() if isinstance(kind, of.Text | of.ClassLabel)]
    _check_feature(data.dataset, "audio", data.audio_feature, sorted(set(audio) - set(texts)))
    _check_feature(data.dataset, "text", data.text_feature, sorted(texts))
    _check_splits(builder, data.dataset, "train")
    label = features[data.text_feature]
    about = (
        data.audio_feature,
        data.text_feature,
        getattr(features[data.audio_feature], "sample_rate", None) or data.sample_rate,
        label if isinstance(label, of.ClassLabel) else None,
    )

    def waves(source: Any, _: Any, name: str) -> Any:
        return Waves(source, name, *about)

    recordings, identity = _opened(builder, waves, about[:2], splits, decoded=True)
    return recordings, (identity, about[2])


def _opened(
    builder: Any,
    kind: Callable[[Any, tuple[str, ...], str], S],
    keys: tuple[str, ...],
    splits: Sequence[str],
    decoded: bool = False,
) -> tuple[dict[str, S], object]:
    """The splits of a dataset that are there, and a value that identifies them.

    Args:
      builder: of the dataset.
      kind: makes the records of what TFDS reads, the keys and a name for messages.
      keys: of the features to read.
      splits: the names of those to open.
      decoded: whether TFDS decodes the features; otherwise records are serialized, as `Stored` reads them.
    """
    method = store.tfds().decode.DeserializeMethod
    how = method.DESERIALIZE_AND_DECODE if decoded else method.RAW_BYTES
    try:
        opened = {
            split: kind(
                builder.as_data_source(split=split, deserialize_method=how),
                keys,
                f"{builder.data_dir}, {split}",
            )
            for split in splits
            if split in builder.info.splits
        }
    except NotImplementedError as error:
        raise UserError(
            f"{builder.info.full_name} was prepared as {builder.info.file_format}, which has no random "
            "access: prepare it with file_format='array_record'"
        ) from error
    sizes = [(name, about.num_bytes, about.shard_lengths) for name, about in builder.info.splits.items()]
    return opened, (builder.info.full_name, sizes, keys)


def _prepared_builder(dataset: str, cache_dir: Path | None, kind: _Kind) -> Any:
    name = _DATASET.fullmatch(dataset)
    data_dir = str(cache_dir / "tfds") if cache_dir else None  # None: TFDS's own default
    if not data_dir and "~" in store.tfds().core.constants.DATA_DIR:
        raise UserError("this user has no home directory: give --data.cache-dir, or set TFDS_DATA_DIR")
    builder = name and (_registered_builder(name, data_dir, kind) or _stored_builder(name, data_dir, kind))
    if not builder:
        raise UserError(
            f"--data.dataset {dataset}: no such TFDS dataset (written name/config, e.g. "
            "wmt14_translate/de-en); use built-in for the corpus that comes with this program, or "
            f"give text files with {kind.remedy}"
        )
    if not builder.is_prepared():
        _download(builder, dataset)
    return builder


def _registered_builder(name: re.Match[str], data_dir: str | None, kind: _Kind) -> Any:
    """The builder of a dataset included in TFDS, or None. (`tfds.builder` would first look for files, and
    import the code that they name.)"""
    tfds = store.tfds()
    base = name["base"]
    for topic, module in itertools.product(kind.topics, (base, base.removesuffix("_translate"))):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tensorflow_datasets.{topic}.{module}")
            break
    try:
        return tfds.builder_cls(base)(data_dir=data_dir, config=name["config"], version=name["version"])
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError):
        return None


def _stored_builder(name: re.Match[str], data_dir: str | None, kind: _Kind) -> Any:
    """The builder of a dataset that another program prepared, or None.

    Raises:
      UserError: it is of another kind, or names code to import.
    """
    tfds = store.tfds()
    folder = (
        Path(data_dir or tfds.core.constants.DATA_DIR).expanduser() / name["base"] / (name["config"] or "")
    )
    versions = (
        tuple(map(int, path.name.split("."))) for path in folder.glob("*") if _VERSION.match(path.name)
    )
    version = name["version"] or ".".join(map(str, max(versions, default=())))
    folder = folder / version
    if not version or not (folder / "features.json").exists():
        return None
    try:
        features = parse_object(read_text(folder / "features.json", MiB))
        about = parse_object(read_text(folder / "dataset_info.json", MiB))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not a TFDS dataset that can be read: {error}") from error
    # TFDS imports whatever classes these files name
    inner = features.get(kind.content, {})
    if (
        features.get("pythonClassName") != kind.features
        or not features.keys() <= _FEATURES | {kind.content}
        or not _classes(inner) <= set(kind.inner)
        or "features" in about
    ):
        raise UserError(f"{folder / 'features.json'} is not that of a {kind.holds} dataset ({kind.features})")
    return tfds.builder_from_directory(folder)


def _classes(description: Any) -> set[str]:
    """All classes that a description of features names."""
    if not isinstance(description, dict):
        return set()
    named = {str(name) for key, name in description.items() if key == "pythonClassName"}
    return named.union(*map(_classes, description.values()))


def _download(builder: Any, name: str) -> None:
    try:
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # of network, disk or TensorFlow: the remedy is the same
        raise UserError(
            f"{name} is not in {builder.data_path} and could not be prepared there ({first_line(error)}). "
            "It needs the network, and for this step an extra: pip install "
            "'.[tfds-prepare]'"
        ) from error
