"""Reads and writes Marian's model files: named arrays, and a description of the network in YAML.

A `.npz` file has float32 arrays as NumPy stores them. A `.bin` file has a header of 64-bit numbers (version,
number of items, then the length of its name, type, rank and size of each), names, shapes, and the items at
multiples of 256 bytes. An item of type intgemm8 or intgemm16 is a matrix of integers, followed by the number
that real values were multiplied with. Nothing in a file is executed, and no size is believed before it is
compared with the file's.
"""

import math
import re
import struct
import tokenize
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO

import numpy as np
import yaml

from transformer.runtime.errors import UserError, abbreviated
from transformer.runtime.files import MiB, brief, open_regular

DESCRIPTION = "special:model.yml"
_VERSION = 1
_MOST_ITEMS = 1 << 16
_LONGEST_NAME = 4096
_HIGHEST_RANK = 8
_FLOATS = {0x402: np.float16, 0x404: np.float32, 0x408: np.float64}
_INTEGERS = {0x4101: np.int8, 0x4102: np.int16}
_TEXT = 0x101
_OF_PROCESSORS = 0x3000 | 0x800  # matrices in the order of one kind of processor

Yaml = dict[str, str | list[str]]
"""Scalars and lists of scalars, all as text."""


def marian_file(path: Path) -> "MarianFile":
    """A `.npz` or `.bin` file.

    Raises:
      UserError: it cannot be read, is damaged, or has no model.yml.
    """
    return _Archive(path) if path.suffix == ".npz" or ".npz." in path.name else _Binary(path)


class MarianFile(ABC):
    """The arrays of a model file, which is open only while one of them is read.

    Attributes:
      description: the content of its model.yml.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as file:
            self._shapes = self._read_shapes(file)
            if DESCRIPTION not in self._shapes:
                raise ValueError(f"it has no {DESCRIPTION}")
            self.description = parse_yaml(self._text(file).split(b"\0")[0].decode())

    @property
    def names(self) -> Set[str]:
        """The names of all arrays."""
        return self._shapes.keys() - {DESCRIPTION}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an array, or None if there is none."""
        return self._shapes.get(name)

    def __call__(self, name: str) -> np.ndarray | None:
        """An array in float32, or None if there is none.

        Raises:
          UserError: it is damaged, or of a type that is not supported.
        """
        if name not in self._shapes:
            return None
        with self._opened() as file, np.errstate(over="ignore"):  # too large: not finite, which is refused
            return self._array(file, name)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """The file. Names it in errors."""
        try:
            with open_regular(self._path) as file:
                yield file
        except UserError as error:
            raise UserError(f"{self._path}: {error}") from error
        except (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
            why = str(error) or type(error).__name__
            raise UserError(f"{self._path} is no Marian model, or is damaged: {why}") from error

    @abstractmethod
    def _read_shapes(self, file: IO[bytes]) -> dict[str, tuple[int, ...]]:
        """The shape of each array."""

    @abstractmethod
    def _text(self, file: IO[bytes]) -> bytes:
        """The description, which ends with a zero."""

    @abstractmethod
    def _array(self, file: IO[bytes], name: str) -> np.ndarray:
        """An array in float32."""


class _Archive(MarianFile):
    """A `.npz` file."""

    def _read_shapes(self, file: IO[bytes]) -> dict[str, tuple[int, ...]]:
        with zipfile.ZipFile(file) as archive:
            names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            _check_names(names)
            return {name: self._shape(archive, name) for name in names}

    @staticmethod
    def _shape(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
        with _member(archive, name) as (_, member):
            return _header(member)[0]

    def _text(self, file: IO[bytes]) -> bytes:
        return _stored(file, DESCRIPTION, np.dtype(np.int8)).tobytes()

    def _array(self, file: IO[bytes], name: str) -> np.ndarray:
        return _stored(file, name).astype(np.float32)


@contextmanager
def _member(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[zipfile.ZipInfo, IO[bytes]]]:
    """What the archive says of an array, and its bytes."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed; Marian's files are not")
    with archive.open(info) as member:
        yield info, member


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether by column, and type."""
    version = np.lib.format.read_magic(member)
    is_first = version == (1, 0)
    read_header = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
    try:
        return read_header(member)
    except (SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:  # it is parsed as Python
        raise ValueError("the header of an array is no description of it") from error


def _stored(file: IO[bytes], name: str, dtype: np.dtype | None = None) -> np.ndarray:
    """An array of an archive; of this type or, without one, of real numbers."""
    with zipfile.ZipFile(file) as archive, _member(archive, name) as (info, member):
        shape, by_column, stored_dtype = _header(member)
        if not (stored_dtype == dtype if dtype else stored_dtype.kind == "f"):
            raise ValueError(f"{name} is of type {stored_dtype}")
        size = math.prod(shape) * stored_dtype.itemsize
        if min(shape, default=0) < 0 or size > info.file_size or (dtype and size > MiB):
            raise ValueError(f"{name} is truncated, or too large")
        content = member.read(size)
    return np.frombuffer(content, stored_dtype).reshape(shape, order="F" if by_column else "C")


@dataclass(frozen=True)
class _Item:
    """Where an array is in a `.bin` file."""

    type: int
    shape: tuple[int, ...]
    start: int
    size: int


class _Binary(MarianFile):
    """A `.bin` file."""

    def _read_shapes(self, file: IO[bytes]) -> dict[str, tuple[int, ...]]:
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            self._items = _items(content)
        return {name: item.shape for name, item in self._items.items()}

    def _text(self, file: IO[bytes]) -> bytes:
        item = self._items[DESCRIPTION]
        if item.type != _TEXT or item.size > MiB:
            raise ValueError(f"{DESCRIPTION} is no text")
        return _content(file, item)

    def _array(self, file: IO[bytes], name: str) -> np.ndarray:
        item = self._items[name]
        dtype = _FLOATS.get(item.type) or _INTEGERS.get(item.type)
        if dtype is None:
            of_one = "; it is for one kind of processor" if item.type & _OF_PROCESSORS else ""
            raise UserError(
                f"{name} has type {item.type:#x}{of_one}. Supported are float32, float16, and intgemm8 and "
                "intgemm16 as marian-conv writes them"
            )
        count = math.prod(item.shape)
        is_integer = item.type in _INTEGERS
        if count * np.dtype(dtype).itemsize + 4 * is_integer > item.size:
            raise ValueError(f"{name} is shorter than its shape {list(item.shape)}")
        stored = _content(file, item)
        values = np.frombuffer(stored, dtype, count)
        if not is_integer:
            return values.reshape(item.shape).astype(np.float32)
        (multiplier,) = np.frombuffer(stored, np.float32, 1, count * np.dtype(dtype).itemsize)
        if not (np.isfinite(multiplier) and multiplier > 0):
            raise ValueError(f"{name} has the multiplier {multiplier}")
        matrix = values.astype(np.float32) / multiplier
        if "Wemb" in name or name.endswith("_Wt"):
            return matrix.reshape(item.shape)
        return matrix.reshape(item.shape[::-1]).T  # what is multiplied from the right is stored transposed


def _content(file: IO[bytes], item: _Item) -> bytes:
    file.seek(item.start)
    return file.read(item.size)


def _items(content: mmap) -> dict[str, _Item]:
    """Where each array is. Raises ValueError if it is not inside of the file."""
    try:
        version, count = struct.unpack_from("<QQ", content)
        if version != _VERSION or not count <= _MOST_ITEMS:
            raise ValueError(f"version {version} with {count} items")
        headers = [struct.unpack_from("<QQQQ", content, 16 + 32 * index) for index in range(count)]
        offset = 16 + 32 * count
        names = []
        for length, _, rank, _ in headers:
            if length > _LONGEST_NAME or rank > _HIGHEST_RANK:
                raise ValueError(f"a name of {length} bytes, or {rank} axes")
            names.append(content[offset : offset + length].rstrip(b"\0").decode())
            offset += length
        shapes = []
        for _, _, rank, _ in headers:
            shapes.append(struct.unpack_from(f"<{rank}i", content, offset))
            offset += 4 * rank
        offset += 8 + struct.unpack_from("<Q", content, offset)[0]
    except struct.error as error:
        raise ValueError("it ends too early") from error
    _check_names(names)
    items = {}
    for name, shape, (_, item_type, _, size) in zip(names, shapes, headers, strict=True):
        if min(shape, default=1) < 0 or offset + size > len(content):
            raise ValueError(f"{name} ends after the file")
        items[name] = _Item(item_type, shape, offset, size)
        offset += size
    return items


def _check_names(names: Sequence[str]) -> None:
    """Raises ValueError if two arrays have the same name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{brief(name)} names {count} arrays, and each must have its own name")


WHOLE = r"-?[0-9]{1,15}"
_DECIMAL = r"[+-]?([0-9]{1,15}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"


def parse_number(text: str, pattern: str = _DECIMAL) -> float:
    """A number as YAML writes it: not 4_0 nor with other digits, which Python reads. Raises ValueError for
    others."""
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{abbreviated(repr(text))} is no {'whole ' * (pattern == WHOLE)}number")
    return float(text)


def parse_yaml(text: str) -> Yaml:
    """A mapping to scalars and lists of scalars, which stay text.

    Events are read one by one, so nesting costs no memory, and nothing is constructed.

    Raises:
      ValueError: it is something else.
      UserError: a name is there twice.
    """
    content: Yaml = {}
    key: str | None = None
    depth = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            match event:
                case yaml.ScalarEvent() if depth == 1 and key is None:
                    key = event.value
                    if key in content:
                        raise UserError(f"line {event.start_mark.line + 1}: {brief(key)} is there twice")
                case yaml.ScalarEvent() if depth == 1 and key is not None:
                    content[key] = event.value
                    key = None
                case yaml.ScalarEvent() if depth == 2 and key is not None:
                    content[key].append(event.value)  # type: ignore[union-attr]  # begun below
                case yaml.MappingStartEvent() if depth == 0:
                    depth = 1
                case yaml.SequenceStartEvent() if depth == 1 and key is not None:
                    content[key] = []
                    depth = 2
                case yaml.SequenceEndEvent():
                    key = None
                    depth = 1
                case yaml.MappingEndEvent():
                    depth = 0
                case yaml.StreamStartEvent() | yaml.StreamEndEvent():
                    pass
                case yaml.DocumentStartEvent() | yaml.DocumentEndEvent():
                    pass
                case _:
                    raise ValueError(f"line {event.start_mark.line + 1}: expected `name: value` or a list")
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML ({error})") from error
    return content


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], description: Yaml) -> None:
    """Writes a `.npz` file as Marian does."""
    text = yaml.safe_dump(description, default_flow_style=False).encode() + b"\0"
    np.savez(path, **arrays, **{DESCRIPTION: np.frombuffer(text, np.int8)})  # type: ignore[arg-type]
