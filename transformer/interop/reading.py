"""Reads the folder of a model: its JSON files, its tensors, its search options."""

import logging
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from transformer.config import DecodingConfig
from transformer.interop.fields import check_fields
from transformer.interop.hub import FILES
from transformer.interop.search import search_from_hub
from transformer.interop.unused import observed, without_limits
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, open_regular, parse_object, read_text

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
log = logging.getLogger("transformer")
_REAL = ("F64", "F32", "F16", "BF16")
"""The types of safetensors that weights have."""
_METHODS = {"gptq": "GPTQ", "awq": "AWQ", "fp8": "float8", "fbgemm_fp8": "float8"}
"""The names of methods of quantisation, by that in config.json."""
_SIGNS = {
    ".SCB": "bitsandbytes, 8 bits",
    ".absmax": "bitsandbytes, 4 bits",
    ".g_idx": "GPTQ",
    ".qzeros": "AWQ",
    ".weight_packed": "compressed-tensors",
    ".weight._data": "quanto",
    ".weight_scales": "EETQ",
    ".weight_scale": "float8",
    ".weight_scale_inv": "float8",
}
"""How the names of tensors end that methods of quantisation store. The first one counts."""
_DEQUANTISED = ", or load this one with transformers, call its dequantize(), and save it with save_pretrained"
_POINTER = b"version https://git-lfs"
_READ = (*FILES, "*.bin", "*.npz", "*.yml", "*vocabulary*")
_OTHERS = ("pytorch_model", "tf_model", "flax_model", "rust_model", "training_args", "optimizer")
"""How the names of files begin that other programs read."""


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
        content = parse_object(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the folder of a model has one") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    check_fields(path, content)
    return observed(path, content)


def tokenizer_options(folder: Path) -> Json:
    """The content of tokenizer_config.json; empty if there is none. As `without_limits`."""
    path = folder / TOKENIZER
    if not path.exists():
        return {}
    try:
        content = parse_object(without_limits(read_text(path)))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    check_fields(path, content)
    return observed(path, content)


def tensors(folder: Path) -> "Shards":
    """The tensors in the model.safetensors of a folder, or in the several files that
    model.safetensors.index.json names.

    Raises:
      UserError: there is no such file; one is damaged; the index says something else than the files; the
        weights are quantised.
    """
    path = folder / WEIGHTS
    index = folder / INDEX
    files: dict[str | None, Path] = {}
    if index.exists():
        with naming(index):
            files = _shards(folder, read_json(index))
    if not files or (path.exists() and path not in files.values()):
        files = {None: path}
    more = [*folder.glob("model-*.safetensors"), *[index] * (None in files and index.exists())]
    if more := sorted({*more}.difference(files.values())):
        counting = WEIGHTS if None in files else f"{INDEX}, which does not name it,"
        log.warning("Not imported: %s: %s counts", more[0], counting)
    shards = Shards(files)
    if method := _quantisation(folder, shards):
        raise UserError(
            f"{folder}: its weights are quantised ({method}), and only those in float16, bfloat16, float32 "
            "and float64 are read. Import the model that they were made from"
            + _DEQUANTISED
            * ("bitsandbytes" in method)
        )
    return shards


def _quantisation(folder: Path, shards: "Shards") -> str | None:
    """The method by which the weights of a folder are quantised, if they are."""
    about = read_json(folder / CONFIG).get("quantization_config") if (folder / CONFIG).exists() else None
    if isinstance(about, dict):
        method = str(about.get("quant_method", "bitsandbytes"))
        bits = f", {4 if about.get('load_in_4bit') else 8} bits" if method == "bitsandbytes" else ""
        return _METHODS.get(method, method) + bits
    for ending, method in _SIGNS.items():
        if any(name.endswith(ending) for name in shards.names):
            return method
    return next(("float8" for kind in shards.types if kind.startswith("F8")), None)


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
      UserError: a file is missing or damaged, lacks a tensor, or has one that `files` does not expect in it.
    """

    def __init__(self, files: dict[str | None, Path]) -> None:
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, str] = {}
        for path in dict.fromkeys(files.values()):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118  # it is no dictionary
                    if (said := files.get(name, files.get(None))) != path:
                        where = f"says is in {said.name}" if said else "does not name"
                        raise UserError(f"{path} has the tensor {name}, which {INDEX} {where}")
                    about = file.get_slice(name)
                    self._files[name] = path
                    self._shapes[name] = tuple(about.get_shape())
                    self._types[name] = about.get_dtype()
        if missing := [name for name in files if name is not None and name not in self._files]:
            raise UserError(f"{files[missing[0]]} has no tensor {missing[0]}, which {INDEX} says is there")

    @property
    def names(self) -> Set[str]:
        """The names of all tensors."""
        return self._files.keys()

    @property
    def types(self) -> Set[str]:
        """The types of tensors, as safetensors names them."""
        return {*self._types.values()}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, or None if there is none."""
        return self._shapes.get(name)

    def __call__(self, name: str) -> np.ndarray | None:
        """A tensor in float32, or None if there is none.

        Raises:
          UserError: the file is damaged; the tensor is not one of real numbers.
        """
        path = self._files.get(name)
        if path is None:
            return None
        if (kind := self._types[name]) not in _REAL:
            raise UserError(
                f"{path}: tensor {name} is of type {kind}, and weights are read in {', '.join(_REAL)}. "
                "Convert it with the program that wrote it: here such numbers have no meaning"
            )
        with _opened(path) as file, np.errstate(over="ignore"):  # too large: not finite, which is refused
            return np.asarray(file.get_tensor(name), np.float32)


def check_no_pointers(folder: Path) -> None:
    """Raises UserError if a file that an import may read is not the file, but what Git LFS has in place of
    it."""
    for path in sorted(folder.iterdir()):
        if not any(fnmatch(path.name, pattern) for pattern in _READ) or path.name.startswith(_OTHERS):
            continue
        with suppress(OSError), open_regular(path) as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise UserError(
                    f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull` in {folder}"
                )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of safetensors."""
    if not path.exists():
        pickles = sorted(path.parent.glob("pytorch_model*.bin"))
        reason = "; the folder of a model has one"
        if pickles:
            reason = (
                f": {pickles[0].name} is a pickle, which could execute anything when read. If you trust it, "
                "load it with the from_pretrained of transformers and save it again with save_pretrained"
            )
        raise UserError(f"{path}: no such file{reason}")
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
