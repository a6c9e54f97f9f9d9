"""What a benchmark takes from a run directory: its test set, and its translation of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import save
from transformer import Run, Translator
from transformer.config.options import text_data
from transformer.data.sources.corpora import open_corpus
from transformer.runtime.errors import UserError


def test_set(path: Path) -> list[tuple[str, str]]:
    """The sources and references of a run's test set.

    Raises:
      UserError: it is no run of sentence pairs, it has no test set, or its files are not there.
    """
    data = text_data(Run(path).config)
    try:
        splits = open_corpus(data).splits
    except UserError as error:
        raise UserError(f"{path}: {error}. Its files are found from where it was trained") from error
    if "test" not in splits:
        raise UserError(f"{path} was trained without a test set: give one in training (--data.test-source)")
    return list(splits["test"])


def sentences(path: Path, count: int) -> list[str]:
    """Test sentences of mixed lengths, at equal distances in the run's test set."""
    pairs = test_set(path)
    return [source for source, _ in pairs[:: max(1, len(pairs) // count)]][:count]


def translated(path: Path, checkpoint: str) -> list[str]:
    """The test set in the translation of a run."""
    return Translator.load(path, checkpoint).translate([record[0] for record in test_set(path)])


def text_files(folder: Path, languages: tuple[str, str] = ("en", "de")) -> dict[str, Path]:
    """The options of data for a folder with `train`, `validation` and `test`, each in two languages."""
    return {
        f"{split}_{side}": folder / f"{split}.{language}"
        for split in ("train", "validation", "test")
        for side, language in zip(("source", "target"), languages, strict=True)
    }


def once(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The results in a JSON file, which are made if it is not there."""
    if not path.exists():
        save(str(path), make())
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
