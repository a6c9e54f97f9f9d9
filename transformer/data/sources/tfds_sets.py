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
from typing import Any, NamedTuple

import numpy as np

from transformer.config.corpus import DataConfig
from transformer.config.records import RecordingsConfig, TextsConfig
from transformer.data import store
from transformer.data.signals.waveforms import is_sound, mono, scaled
from transformer.data.sources.source import corpus_folder
from transformer.data.sources.tables import TARGET_LENGTH, record_of
from transformer.data.store import DOCUMENTS, PAIRS, TEXT, Form, Records, Stored, TextRecord
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import MiB, failing, parse_object, read_text, write_whole

_DATASET = re.compile(r"(?P<base>\w+)(/(?P<config>[\w.+-]*\w))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
_VERSION = re.compile(r"\d+\.\d+\.\d+", re.ASCII)
_CLASSES = "tensorflow_datasets.core.features."
_FEATURES = {"pythonClassName", "description", "valueRange"}


class _Kind(NamedTuple):
    """What is read of a dataset."""

    holds: str
    topics: tuple[str, ...]
    """Where TFDS has such datasets."""
    inner: tuple[str, ...]
    """The classes that may be named in the description of its features, without `_CLASSES`."""
    features: str = "features_dict.FeaturesDict"
    """The class of its features."""
    content: str = "featuresDict"
    """What they are described by."""
    remedy: str = "--data.train"


_TEXTS = ("text", "question_answering", "summarization")
_LABELLED = ("text_feature.Text", "class_label_feature.ClassLabel", "scalar.Scalar", "tensor_feature.Tensor")
_NESTED = ("features_dict.FeaturesDict", "sequence_feature.Sequence")
_TEXT = _Kind("text", _TEXTS, ("text_feature.Text",))
_TABLE = _Kind("table", (*_TEXTS, "text_simplification"), _LABELLED + _NESTED)
_SPEECH = _Kind("speech", ("audio", "datasets"), (*_LABELLED, "audio_feature.Audio"))
_TRANSLATION = _Kind(
    "translation",
    ("translate",),
    (),
    features="translation_feature.Translation",
    content="translation",
    remedy="--data.train-source and --data.train-target",
)


def tfds_splits(data: DataConfig, splits: Sequence[str]) -> tuple[dict[str, Stored], object]:
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
    columns = dict.fromkeys(languages, TEXT)  # one, if both languages are the same
    form = replace(PAIRS, columns=columns, record=lambda *texts: (texts[0], texts[-1]))
    return _stored(builder, form, languages, splits)


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

    stored_columns = {name: replace(TEXT, decode=columns[name]) for name in stored_names}

    def record(*values: Any) -> TextRecord:
        return record_of(dict(zip(stored_columns, values, strict=True)), data)

    stored, identity = _stored(builder, Form("", stored_columns, record), stored_names, splits)
    return stored, (identity, data.task, data.inputs, data.target, data.group)


def _columns(features: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Any, str], str | list[str]]]]:
    """The names of texts and labels, with functions that read them of a stored record. Names within others
    have slashes, such as answers/text of SQuAD; of a sequence there is a list."""
    of = store.tfds().features
    for name, feature in features.items():
        is_list = isinstance(feature, of.Sequence)
        inner = feature.feature if is_list else feature
        if isinstance(inner, of.FeaturesDict):
            parts = {part: of.Sequence(feature) for part, feature in inner.items()} if is_list else inner
            yield from ((f"{name}/{part}", read) for part, read in _columns(parts))
        elif isinstance(inner, of.Text | of.ClassLabel):
            yield name, partial(_texts, inner, is_list)


def _texts(feature: Any, is_list: bool, stored: Any, name: str) -> str | list[str]:
    """What is stored of texts or labels: a list, or the only one."""
    if isinstance(feature, store.tfds().features.Text):
        texts = [text.decode() for text in stored[name].bytes_list.value]
    else:
        texts = [feature.int2str(number) for number in stored[name].int64_list.value]
    return texts if is_list else texts[0]


def _check_splits(builder: Any, dataset: str, *splits: str) -> None:
    """Raises UserError if a split is missing."""
    for split in splits:
        if split not in builder.info.splits:
            raise UserError(f"{dataset} has no split named {split!r}, only {list(builder.info.splits)}")


def _check_feature(dataset: str, media: str, feature: str, offered: Sequence[str]) -> None:
    """Raises UserError if a dataset does not have the text or audio of an option."""
    if feature not in offered:
        named = ", ".join(offered) or "none"
        raise UserError(
            f"{dataset} has no {media} named {feature!r}: choose one with --data.{media}-feature; it has "
            f"{named}"
        )


def tfds_texts(data: TextsConfig, splits: Sequence[str]) -> tuple[dict[str, Stored], object]:
    """The splits of the config's dataset, prepared on first use, and a value that identifies it.

    Raises:
      UserError: it is unknown, has no such text or no training split, or cannot be downloaded.
    """
    builder = _prepared_builder(data.dataset, data.cache_dir, _TEXT)
    offered = sorted(
        name
        for name, feature in builder.info.features.items()
        if isinstance(feature, store.tfds().features.Text)
    )
    _check_feature(data.dataset, "text", data.text_feature, offered)
    _check_splits(builder, data.dataset, "train")
    form = replace(DOCUMENTS, columns={data.text_feature: TEXT})
    return _stored(builder, form, (data.text_feature,), splits)


def tfds_folder(
    data: DataConfig | TextsConfig,
    prefix: str,
    identity: object,
    splits: Mapping[str, Records],
    is_invisible: Callable[[Any], bool],
) -> Path:
    """The folder of a TFDS corpus, which is not hashed as text files are. Records with a line that is not
    empty, but is read as if it were, are counted once: with some it is another folder than without, so that
    no run that was trained on them is resumed.

    Raises:
      UserError: the count cannot be stored.
    """
    folder = corpus_folder(data.cache_dir, prefix, identity)
    count_file = folder / "invisible"
    try:
        count = int(read_text(count_file))
    except (OSError, ValueError):
        count = sum(map(is_invisible, itertools.chain.from_iterable(splits.values())))
        with failing(f"cannot write {count_file}", "; see --data.cache-dir"):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(count_file, f"{count}\n")
    return corpus_folder(data.cache_dir, prefix, identity, "invisible") if count else folder


@dataclass(frozen=True)
class Waves:
    """The recordings of a split, as TFDS stores them."""

    source: Any
    name: str
    """Name of the split, for messages."""
    audio: str
    """The name of the waveform."""
    text: str
    """The name of what is said: a text, or a label."""
    rate: int
    """Sampling rate, in Hz."""
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
    audio = [
        name
        for name, feature in features.items()
        if isinstance(feature, of.Tensor) and len(feature.shape) >= 1
    ]
    texts = [name for name, feature in features.items() if isinstance(feature, of.Text | of.ClassLabel)]
    _check_feature(data.dataset, "audio", data.audio_feature, sorted(set(audio) - set(texts)))
    _check_feature(data.dataset, "text", data.text_feature, sorted(texts))
    _check_splits(builder, data.dataset, "train")
    label = features[data.text_feature]
    columns = (
        data.audio_feature,
        data.text_feature,
        getattr(features[data.audio_feature], "sample_rate", None) or data.sample_rate,
        label if isinstance(label, of.ClassLabel) else None,
    )
    opened, identity = _opened(builder, columns[:2], splits, "DESERIALIZE_AND_DECODE")
    waves = {split: Waves(source, name, *columns) for split, (source, name) in opened.items()}
    return waves, (identity, columns[2])


def _stored(
    builder: Any, form: Form, keys: tuple[str, ...], splits: Sequence[str]
) -> tuple[dict[str, Stored], object]:
    """As `_opened`, with records as they are stored."""
    opened, identity = _opened(builder, keys, splits, "RAW_BYTES")
    return {split: Stored(source, form, name) for split, (source, name) in opened.items()}, identity


def _opened(
    builder: Any, keys: tuple[str, ...], splits: Sequence[str], method: str
) -> tuple[dict[str, tuple[Any, str]], object]:
    """The splits of a dataset that are there: their records, and a name for messages; and a value that
    identifies them.

    Args:
      builder: of the dataset.
      keys: of the features to read.
      splits: the names of those to open.
      method: what TFDS does with records, one of its `DeserializeMethod`s.
    """
    info, how = builder.info, store.tfds().decode.DeserializeMethod[method]
    opened = {}
    for split in filter(info.splits.__contains__, splits):
        try:
            source = builder.as_data_source(split=split, deserialize_method=how)
        except NotImplementedError as error:
            raise UserError(
                f"{info.full_name} was prepared as {info.file_format}, which has no random access: prepare "
                "it with file_format='array_record'"
            ) from error
        opened[split] = source, f"{builder.data_dir}, {split}"
    sizes = [(name, subset.num_bytes, subset.shard_lengths) for name, subset in info.splits.items()]
    return opened, (info.full_name, sizes, keys)


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
        dataset_info = parse_object(read_text(folder / "dataset_info.json", MiB))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not a TFDS dataset that can be read: {error}") from error
    # TFDS imports whatever classes these files name
    inner = features.get(kind.content, {})
    if (
        features.get("pythonClassName") != _CLASSES + kind.features
        or not features.keys() <= _FEATURES | {kind.content}
        or not _classes(inner) <= {_CLASSES + name for name in kind.inner}
        or "features" in dataset_info
    ):
        described = f"a {kind.holds} dataset ({_CLASSES}{kind.features})"
        raise UserError(f"{folder / 'features.json'} is not that of {described}")
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
