"""Reads the folder of a model: its JSON files, its tensors, its search options."""

import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from transformer.config import DecodingConfig
from transformer.interop.search import search_from_hub
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, open_regular, parse_object, read_text

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
_NO_LIMIT = re.compile(r"(?<=[:\s])\d{20,}(?=\s*[,}])")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of a file to errors, except to those that name another one of its folder."""
    folder = path if path.is_dir() else path.parent
    try:
        yield
    except UserError as error:
        if str(error).startswith(f"{folder}/"):
            raise
        raise UserError(f"{path}: {error}") from error
    except KeyError as error:
        raise UserError(
            f"{path}: not the config of a model that is known here: {error} is missing or unknown"
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: not the config of a model that is known here ({error})") from error


def read_json(path: Path) -> Json:
    try:
        return parse_object(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the folder of a model has one") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def tokenizer_options(folder: Path) -> Json:
    """The content of tokenizer_config.json; empty if there is none. What stands for "no limit" in it, 10^30,
    is left out."""
    path = folder / TOKENIZER
    if not path.exists():
        return {}
    try:
        return parse_object(_NO_LIMIT.sub("null", read_text(path)))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def tensors(folder: Path) -> "Shards":
    """The tensors in the model.safetensors of a folder, or in the several files that
    model.safetensors.index.json names.

    Raises:
      UserError: there is no such file, or one is damaged.
    """
    path = folder / WEIGHTS
    index = folder / INDEX
    if path.exists() or not index.exists():
        return Shards({None: path})
    with naming(index):
        return Shards(_shards(folder, read_json(index)))


def _shards(folder: Path, index: Json) -> dict[str | None, Path]:
    """The file of each tensor, by the content of an index."""
    files: dict[str | None, Path] = {}
    for name, file in index["weight_map"].items():
        if not isinstance(file, str) or Path(file).name != file:
            raise UserError(f"{name} is in {file!r}, which is not a file of this folder")
        files[name] = folder / file
    return files


class Shards:
    """Tensors in one or several files of safetensors. A file is open only while one of its tensors is read,
    so memory holds one tensor at a time.

    Args:
      files: the file of each tensor; of None: a file whose tensors all count.

    Raises:
      UserError: a file is missing or damaged, or lacks a tensor.
    """

    def __init__(self, files: dict[str | None, Path]) -> None:
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in dict.fromkeys(files.values()):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118  # it is no dictionary
                    if files.get(name, files.get(None)) == path:
                        self._files[name] = path
                        self._shapes[name] = tuple(file.get_slice(name).get_shape())
        if missing := [name for name in files if name is not None and name not in self._files]:
            raise UserError(f"{files[missing[0]]} has no tensor {missing[0]}, which {INDEX} says is there")

    @property
    def names(self) -> Set[str]:
        """The names of all tensors."""
        return self._files.keys()

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, or None if there is none."""
        return self._shapes.get(name)

    def __call__(self, name: str) -> np.ndarray | None:
        """A tensor in float32, or None if there is none.

        Raises:
          UserError: the file is damaged.
        """
        path = self._files.get(name)
        if path is None:
            return None
        with _opened(path) as file:
            return np.asarray(file.get_tensor(name), np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of safetensors."""
    if not path.exists():
        pickled = path.with_name("pytorch_model.bin").exists()
        reason = (
            ": pytorch_model.bin is a pickle, which could execute anything when read. If you trust it, "
            "load it with the from_pretrained of transformers and save it again with save_pretrained"
        )
        raise UserError(f"{path}: no such file{reason if pickled else '; the folder of a model has one'}")
    try:
        with open_regular(path), safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def search_options(folder: Path) -> Json:
    """The search options, which older models have in config.json. As in `transformers`, that counts only if
    there is no other file."""
    return read_json(searched_file(folder))


def searched_file(folder: Path) -> Path:
    """The file that has the search options."""
    return folder / (GENERATION if (folder / GENERATION).exists() else CONFIG)


def search_of(folder: Path, meant: Json, vocab_size: int) -> DecodingConfig:
    """The model's own search options."""
    with naming(searched_file(folder)):
        return search_from_hub(meant, vocab_size)
