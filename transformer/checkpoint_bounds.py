"""What a checkpoint would take to read, told by its headers before it is read.

Orbax stores an array in chunks (Zarr, version 2), each compressed by zstd, all of them in one database
(OCDBT). A chunk that claims to be larger than its array, or compressed bytes that become a thousand times as
many, would take gigabytes of memory out of a few megabytes of disk.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tensorstore

from transformer.files import MiB, parse_object, read_text

LARGEST_HEADER = 64 * MiB  # of the files that hold no arrays
_KEY = re.compile(r"(?P<array>.*?)/?(?P<part>\.zarray|\d+(\.\d+)*)")
_BLOCK = 128 * 1024  # what one block of zstd becomes at most (RFC 8878, section 3.1.1.2.3)
_WIDEST = 16  # bytes in a number


def check_sizes(folder: Path, like: Any) -> None:
    """Refuses an item of a checkpoint whose files are larger than the arrays it should hold.

    Args:
      folder: the item, with nothing in it but regular files and folders.
      like: the arrays, or their shapes.

    Raises:
      ValueError: they are.
    """
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if sum(sizes.values()) > _allowed(like):
        raise ValueError(f"its files have {sum(sizes.values()):,} bytes, more than its arrays need")
    for path, size in sizes.items():
        if path.parent.name != "d" and size > LARGEST_HEADER:
            raise ValueError(f"{path.relative_to(folder)} is larger than {LARGEST_HEADER // MiB} MiB")


def check_arrays(folder: Path, like: Any) -> None:
    """Refuses an item of a checkpoint that would take more memory than the arrays it should hold.

    Args:
      folder: the item.
      like: the arrays, or their shapes.

    Raises:
      ValueError: it would, or it is stored otherwise than Orbax does.
    """
    if not (folder / "manifest.ocdbt").is_file():
        raise ValueError("manifest.ocdbt is missing")
    for path in (folder / "_METADATA", folder / "_sharding", *(folder / "array_metadatas").glob("*")):
        if path.exists():
            parse_object(read_text(path))
    chunk_sizes = dict(_chunk_sizes(folder, _allowed(like)))
    for array, part, read in _entries(folder):
        if part != ".zarray" and _decoded_size(read()) > 4 * chunk_sizes.get(array, 0) + MiB:
            raise ValueError(f"a chunk of {array} is larger than it should be")


def _allowed(like: Any) -> int:
    """Bytes on disk or in memory: twice what the arrays have, and room for headers."""
    return 2 * sum(x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(like)) + LARGEST_HEADER


def _entries(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """The array's name, the part of it, and a function that reads the part's bytes, for each key."""
    spec = {"driver": "ocdbt", "base": folder.absolute().as_uri() + "/"}
    database = tensorstore.KvStore.open(spec).result()
    for key in database.list().result():
        if not (parts := _KEY.fullmatch(key.decode(errors="replace"))):
            raise ValueError(f"{key!r} is no part of an array")
        yield parts["array"], parts["part"], lambda key=key: database.read(key).result().value


def _chunk_sizes(folder: Path, allowed: int) -> Iterator[tuple[str, int]]:
    """The bytes of a chunk of each array."""
    total = 0
    for array, part, read in _entries(folder):
        if part != ".zarray":
            continue
        about = parse_object(read().decode())
        shape, chunks, width = about["shape"], about["chunks"], jnp.dtype(about["dtype"]).itemsize
        if not all(isinstance(size, int) and size >= 0 for size in [*shape, *chunks]) or width > _WIDEST:
            raise ValueError(f"{array} has no sensible shape or type")
        if len(shape) != len(chunks) or any(map(lambda c, s: c > max(s, 1), chunks, shape)):
            raise ValueError(f"{array} has chunks of {chunks} and a shape of {shape}")
        if (about.get("compressor") or {}).get("id") not in (None, "zstd") or about.get("filters"):
            raise ValueError(f"{array} is compressed otherwise than here")
        if (total := total + math.prod(shape) * width) > allowed:
            raise ValueError(f"its arrays have more than {allowed:,} bytes")
        yield array, math.prod(chunks) * width


def _decoded_size(data: bytes) -> int:
    """How many bytes compressed ones become at most, by the headers of their blocks (RFC 8878, section
    3.1.1). Of what is not zstd, its own size."""
    size, at = 0, 0
    while data[at : at + 4] == b"\x28\xb5\x2f\xfd":
        about = data[at + 4 : at + 5] or b"\0"
        single, checksum = about[0] >> 5 & 1, about[0] >> 2 & 1
        at += 5 + (1 - single) + (0, 1, 2, 4)[about[0] & 3] + (single, 2, 4, 8)[about[0] >> 6]
        last = 0
        while not last:
            header = data[at : at + 3]
            if len(header) < 3:  # cut off: it will not be read
                return size
            block = int.from_bytes(header, "little")
            last, kind, length = block & 1, block >> 1 & 3, block >> 3
            size += _BLOCK if kind == 2 else length
            at += 3 + (1 if kind == 1 else length)
        at += 4 * checksum
    return size + len(data) - min(at, len(data))
