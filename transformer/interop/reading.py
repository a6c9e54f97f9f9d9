"""Reads the folder of a model: its JSON files, its tensors, its search options."""

import re
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from transformer.config import DecodingConfig
from transformer.interop.search import search_from_marian
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
    """Adds the name of a file to errors."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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
    with naming(path):
        return parse_object(_NO_LIMIT.sub("null", read_text(path)))


@contextmanager
def tensors(folder: Path) -> Iterator["Shards"]:
    """A function from a tensor's name to the tensor, or None, for the model.safetensors of a folder or the
    several files that model.safetensors.index.json names, of which one at a time is open. Its attribute
    `names` has all names.

    Raises:
      UserError: there is no such file, or one is damaged.
    """
    path = folder / WEIGHTS
    index = folder / INDEX
    try:
        if index.exists() and not path.exists():
            with naming(index):
                shards = _shards(folder, read_json(index))
        else:
            shards = _whole(path)
        with Shards(shards) as read:
            yield read
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _whole(path: Path) -> dict[str, Path]:
    """The tensors of one file."""
    if not path.exists():
        pickled = path.with_name("pytorch_model.bin").exists()
        reason = (
            ": pytorch_model.bin is a pickle, which could execute anything when read. If you trust it, "
            "load it with the from_pretrained of transformers and save it again with save_pretrained"
        )
        raise UserError(f"{path}: no such file{reason if pickled else '; the folder of a model has one'}")
    with open_regular(path), safe_open(path, framework="numpy") as file:
        return dict.fromkeys(file.keys(), path)


def _shards(folder: Path, index: Json) -> dict[str, Path]:
    """The file of each tensor, by the content of an index."""
    files = {}
    for name, file in index["weight_map"].items():
        if not isinstance(file, str) or Path(file).name != file:
            raise UserError(f"{name} is in {file!r}, which is not a file of this folder")
        files[name] = folder / file
    return files


class Shards:
    """Tensors in several files, of which one at a time is open."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files
        self._open = ExitStack()
        self._path: Path | None = None
        self._file: Any = None

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def names(self) -> Set[str]:
        """The names of all tensors."""
        return self._files.keys()

    def __call__(self, name: str) -> np.ndarray | None:
        """The tensor of a name in float32, or None."""
        path = self._files.get(name)
        if path is None:
            return None
        if path != self._path:
            self._open.close()
            self._open.enter_context(open_regular(path))
            self._file = self._open.enter_context(safe_open(path, framework="flax"))
            self._path = path
        return np.asarray(self._file.get_tensor(name), np.float32)


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
        return search_from_marian(meant, vocab_size)
