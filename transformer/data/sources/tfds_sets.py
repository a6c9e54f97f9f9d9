"""Translation datasets of TensorFlow Datasets (TFDS), by name: those included in TFDS, and those prepared by
another program. Code that is named in a dataset's files is never imported."""

import contextlib
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.config import DataConfig
from transformer.data import store
from transformer.data.store import PairSource
from transformer.errors import UserError
from transformer.files import MiB, parse_object, read_text

_DATASET = re.compile(r"(?P<base>\w+)(/(?P<config>[\w.+-]*\w))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
_VERSION = re.compile(r"\d+\.\d+\.\d+", re.ASCII)
_TRANSLATION = "tensorflow_datasets.core.features.translation_feature.Translation"
_FEATURES = {"pythonClassName", "translation", "description", "valueRange"}


def tfds_splits(data: DataConfig, splits: Sequence[str]) -> tuple[dict[str, PairSource], object]:
    """The splits of the config's dataset, prepared on first use, and a value that identifies it.

    Raises:
      UserError: it is unknown, has other languages or splits, or cannot be downloaded.
    """
    builder = _prepared_builder(data)
    languages = (data.source_language, data.target_language)
    offered = list(builder.info.features)
    for option, language in zip(("source", "target"), languages, strict=True):
        if language not in offered:
            raise UserError(
                f"{data.dataset} has no language {language!r}, only {', '.join(sorted(offered))}: "
                f"choose one with --data.{option}-language"
            )
    for split in ("train", "validation"):
        if split not in builder.info.splits:
            raise UserError(f"{data.dataset} has no split named {split!r}, only {list(builder.info.splits)}")
    try:
        found = {
            split: PairSource(builder.as_data_source(split=split), languages, f"{builder.data_dir}, {split}")
            for split in splits
            if split in builder.info.splits
        }
    except NotImplementedError as error:
        raise UserError(
            f"{data.dataset} was prepared as {builder.info.file_format}, which has no random "
            "access: prepare it with file_format='array_record'"
        ) from error
    sizes = [(name, about.num_bytes, about.shard_lengths) for name, about in builder.info.splits.items()]
    return found, (builder.info.full_name, sizes, languages)


def _prepared_builder(data: DataConfig) -> Any:
    name = _DATASET.fullmatch(data.dataset)
    data_dir = str(data.cache_dir / "tfds") if data.cache_dir else None  # None: TFDS's own default
    if not data_dir and "~" in store.tfds().core.constants.DATA_DIR:
        raise UserError("this user has no home directory: give --data.cache-dir, or set TFDS_DATA_DIR")
    builder = name and (_registered_builder(name, data_dir) or _stored_builder(name, data_dir))
    if not builder:
        raise UserError(
            f"--data.dataset {data.dataset}: no such TFDS dataset (written name/config, e.g. "
            "wmt14_translate/de-en); use built-in for the corpus that comes with this program, or "
            "give text files with --data.train-source and --data.train-target"
        )
    if not builder.is_prepared():
        _download(builder, data.dataset)
    return builder


def _registered_builder(name: re.Match[str], data_dir: str | None) -> Any:
    """The builder of a dataset included in TFDS, or None. (`tfds.builder` would first look for files, and
    import the code that they name.)"""
    tfds, base = store.tfds(), name["base"]
    for module in (base, base.removesuffix("_translate")):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tensorflow_datasets.translate.{module}")
            break
    try:
        return tfds.builder_cls(base)(data_dir=data_dir, config=name["config"], version=name["version"])
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError):
        return None


def _stored_builder(name: re.Match[str], data_dir: str | None) -> Any:
    """The builder of a dataset that another program prepared, or None.

    Raises:
      UserError: it does not hold sentence pairs, or names code to import.
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
    if (
        features.get("pythonClassName") != _TRANSLATION
        or not features.keys() <= _FEATURES
        or "features" in about
    ):
        raise UserError(f"{folder / 'features.json'} is not that of a translation dataset ({_TRANSLATION})")
    return tfds.builder_from_directory(folder)


def _download(builder: Any, name: str) -> None:
    try:
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # of network, disk or TensorFlow: the remedy is the same
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{name} is not in {builder.data_path} and could not be prepared there ({reason[0]}). "
            "It needs the network, and for this step an extra: pip install "
            "'.[tfds-prepare]'"
        ) from error
