"""Seals checkpoints with the hashes of their files, detects damage when reading them, and bounds the memory
that reading takes."""

import asyncio
import gc
import hashlib
import json
import math
import mmap
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import tensorstore
from flax.traverse_util import flatten_dict

from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import MiB, forbid_links, parse_object, read_text, write_whole
from transformer.runtime.machine import LARGE, release_memory

# Bounds the memory that reading a checkpoint takes, by its headers, before it is read.


LARGEST_HEADER = 64 * MiB  # largest file without arrays
_PART = re.compile(r"\.zarray|\d+(\.\d+)*")
_FRAME = b"\x28\xb5\x2f\xfd"  # magic number of a zstd frame
_BLOCK = 128 * 1024  # largest decompressed block (RFC 8878, section 3.1.1.2.4)
_SMALLEST = 1024  # smallest expected block, except for the last one of an array
_WIDEST = 16  # largest number of bytes per element


def check_sizes(folder: Path, like: Variables) -> None:
    """Refuses an item of a checkpoint whose files are larger than the arrays it should hold.

    Args:
      folder: the item, which contains only regular files and folders.
      like: the arrays, or their shapes.

    Raises:
      ValueError: the files are too large.
    """
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if sum(sizes.values()) > allowed(like):
        raise ValueError(f"its files have {sum(sizes.values()):,} bytes, more than its arrays need")
    for path, size in sizes.items():
        if path.parent.name != "d" and size > LARGEST_HEADER:
            raise ValueError(f"{path.relative_to(folder)} is larger than {LARGEST_HEADER // MiB} MiB")


def check_arrays(folder: Path, like: Variables) -> None:
    """Refuses an item of a checkpoint that would take more memory than the arrays it should hold.

    Args:
      folder: the item.
      like: the arrays, or their shapes.

    Raises:
      ValueError: it takes too much memory, or is not in Orbax's format.
    """
    if not (folder / "manifest.ocdbt").is_file():
        raise ValueError("manifest.ocdbt is missing")
    for path in (folder / "_METADATA", folder / "_sharding", *(folder / "array_metadatas").glob("*")):
        if path.exists():
            parse_object(read_text(path))
    decoded = blocks = 0
    limit = allowed(like)
    for path in folder.rglob("*"):
        for size in _decoded_sizes(path) if path.is_file() else ():
            decoded += size
            blocks += 1
            if decoded > limit or blocks > limit // _SMALLEST:
                raise ValueError(f"its files decompress to more than {limit:,} bytes")
    if (total := sum(_array_sizes(folder))) > limit:
        raise ValueError(f"its arrays have {total:,} bytes, more than they should")


def allowed(like: Variables) -> int:
    """The bytes an item may have on disk or in memory: twice those of the arrays, and room for headers."""
    return 2 * sum(x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(like)) + LARGEST_HEADER


def _array_sizes(folder: Path) -> Iterator[int]:
    """Yields the size of each array in bytes, which none of its chunks exceeds."""
    spec = {"driver": "ocdbt", "base": folder.absolute().as_uri() + "/"}
    database = tensorstore.KvStore.open(spec).result()
    for key in database.list().result():
        array, _, part = key.decode(errors="replace").rpartition("/")
        if not _PART.fullmatch(part):
            raise ValueError(f"{key!r} is not part of an array")
        if part != ".zarray":
            continue
        metadata = parse_object(database.read(key).result().value.decode())
        shape = metadata["shape"]
        chunks = metadata["chunks"]
        width = jnp.dtype(metadata["dtype"]).itemsize
        if not all(type(size) is int and size >= 0 for size in [*shape, *chunks]) or width > _WIDEST:
            raise ValueError(f"{array} has no sensible shape or type")
        if len(shape) != len(chunks) or any(map(lambda c, s: c > max(s, 1), chunks, shape)):
            raise ValueError(f"{array} has chunks of {chunks} and a shape of {shape}")
        if (metadata.get("compressor") or {}).get("id") not in (None, "zstd") or metadata.get("filters"):
            raise ValueError(f"{array} has an unsupported compressor or filter")
        size = width
        for length in shape:
            size *= length
        yield size


def _decoded_sizes(path: Path) -> Iterator[int]:
    """Yields the maximum decompressed size of each block in a file, from the headers."""
    if not path.stat().st_size:
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # other data that happens to contain the magic number adds next to nothing
        offset = data.find(_FRAME)
        while offset >= 0:
            yield from _block_sizes(data, offset + len(_FRAME))
            offset = data.find(_FRAME, offset + 1)


def _block_sizes(data: mmap.mmap, offset: int) -> Iterator[int]:
    """Yields the maximum decompressed size of each block of a zstd frame (RFC 8878, section 3.1.1).

    Args:
      data: the file that contains the frame.
      offset: the offset of the frame header, after the magic number.
    """
    descriptor = data[offset] if offset < len(data) else 0
    single = descriptor >> 5 & 1
    wide = (single, 2, 4, 8)[descriptor >> 6]
    offset += 1 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    block_size = _BLOCK
    if single:  # the header states the decompressed size, which no block exceeds
        block_size = min(
            _BLOCK, int.from_bytes(data[offset : offset + wide], "little") + (256 if wide == 2 else 0)
        )
    offset += wide
    last = 0
    while not last and len(header := data[offset : offset + 3]) == 3:
        block = int.from_bytes(header, "little")
        last, block_type, length = block & 1, block >> 1 & 3, block >> 3
        yield block_size if block_type == 2 else length
        offset += 3 + (1 if block_type == 1 else length)


class _LargestFirst(ocp.type_handlers.ArrayHandler):  # type: ignore[misc]  # Orbax is untyped
    """Reads a few arrays before it begins the next ones: of each that is being read there are up to four
    copies. Those of the largest are gone when there is most."""

    async def deserialize(self, infos: Sequence[Any], args: Sequence[Any] | None = None) -> Sequence[Any]:
        assert args is not None
        sizes = [math.prod(arg.global_shape) * jnp.dtype(arg.dtype).itemsize for arg in args]
        order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
        arrays = dict[int, Any]()
        for group in groups([sizes[index] for index in order], max(TOGETHER, sum(sizes) // 16)):
            indices = [order[number] for number in group]
            read = await super().deserialize([infos[i] for i in indices], [args[i] for i in indices])
            arrays.update(zip(indices, read, strict=True))
        return [arrays[index] for index in range(len(sizes))]


LARGEST_FIRST = ocp.type_handlers.create_type_handler_registry((jax.Array, _LargestFirst()))
TOGETHER = 2**24
"""Bytes of arrays that are read or written together; a larger array is alone."""


def groups(sizes: Sequence[int], together: int = TOGETHER) -> Iterator[Sequence[int]]:
    """Yields the numbers of neighbours that have at most so many bytes, and of each larger array."""
    group: list[int] = []
    for number, size in enumerate(sizes):
        if group and sum(sizes[i] for i in group) + size > together:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


MANIFEST = "manifest.json"  # the hashes of a checkpoint's files, written last


def _hashes(checkpoint: Path, item: str = "") -> dict[str, str]:
    """The hashes of the files of a checkpoint's item, or of all its files except the manifest."""

    def digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

    files = (path for path in (checkpoint / item).rglob("*") if path.is_file() and path.name != MANIFEST)
    paths = {str(path.relative_to(checkpoint)): path for path in sorted(files)}
    with ThreadPoolExecutor() as threads:
        return dict(zip(paths, threads.map(digest, paths.values()), strict=True))


def seal(checkpoint: Path) -> None:
    """Writes the hashes of a checkpoint's files, which marks it as complete."""
    write_whole(checkpoint / MANIFEST, json.dumps(_hashes(checkpoint), indent=0))


def _check(checkpoint: Path, item: str) -> None:
    """Raises UserError if an item's files are not those that were sealed. A checkpoint without a manifest
    passes: Orbax completed it, but its writer was killed before sealing it."""
    try:
        sealed = parse_object(read_text(checkpoint / MANIFEST))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise _damaged(checkpoint / MANIFEST, str(error)) from error
    hashes = _hashes(checkpoint, item)
    for name, digest in sealed.items():
        if name.startswith(item) and hashes.get(name) != digest:
            raise _damaged(checkpoint / name, "not the file that was saved" if name in hashes else "missing")


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} is damaged or belongs to another model ({reason[:200]}); use another checkpoint"
    )


def _is_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error: it cancels Orbax's reads, which report that as an error of theirs."""
    while error is not None:
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def compare(variables: Mapping[str, Any], like: Variables, where: str) -> None:
    """Raises ValueError if variables have other names or shapes, or integers in place of real numbers.
    `where` they are is part of the message."""
    leaves, expected = (
        {"/".join(map(str, path)): leaf for path, leaf in flatten_dict(tree).items()}
        for tree in (variables, like)
    )
    for name in sorted(leaves.keys() | expected.keys()):
        shape, expected_shape = (getattr(tree.get(name), "shape", None) for tree in (leaves, expected))
        if shape != expected_shape:
            raise ValueError(f"{name} is {shape} in {where}, not {expected_shape}")
        dtype, expected_dtype = (getattr(tree.get(name), "dtype", None) for tree in (leaves, expected))
        if dtype and expected_dtype and _is_real(dtype) != _is_real(expected_dtype):
            raise ValueError(f"{name} is of type {dtype} in {where}, not {expected_dtype}")


def _is_real(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def read(checkpoint: Path, like: Variables, item: str = "") -> Variables:
    """Reads an item of a checkpoint.

    Args:
      checkpoint: the checkpoint's folder.
      like: a pytree of arrays or shapes. Their shardings are those of the result.
      item: "model" or "training"; empty if the folder is the item.

    Raises:
      UserError: it is missing or damaged, or has other names or shapes.
    """
    folder = checkpoint / item
    if not folder.is_dir():
        raise UserError(f"{folder}: no such checkpoint")
    if checkpoint.is_symlink():
        raise UserError(f"{checkpoint} is a link: put the checkpoint itself in its place")
    forbid_links(checkpoint, "a checkpoint may contain")
    try:
        check_sizes(folder, like)
    except ValueError as error:
        raise _damaged(folder, first_line(error)) from error
    _check(checkpoint, item)

    def shape(x: Any) -> jax.ShapeDtypeStruct:
        local_sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or local_sharding)

    try:
        check_arrays(folder, like)
        with ocp.StandardCheckpointer() as checkpointer:
            if item != "training":  # detect another model here: Orbax's threads would print tracebacks
                described = checkpointer.metadata(folder.absolute()).item_metadata
                if described is None:
                    raise ValueError("its _METADATA and its arrays do not belong together")
                compare(described.tree, like, "the checkpoint")
        handler = ocp.PyTreeCheckpointHandler(type_handler_registry=LARGEST_FIRST)
        shapes = jax.tree.map(shape, like)
        how = ocp.args.PyTreeRestore(shapes, ocp.checkpoint_utils.construct_restore_args(shapes))
        with ocp.Checkpointer(handler) as checkpointer:
            restored = checkpointer.restore(folder.absolute(), args=how)
        if sum(leaf.nbytes for leaf in jax.tree.leaves(restored)) > LARGE:
            release_memory()  # Orbax's copies of arrays are in cycles
        return restored
    except Exception as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from None
        reason = first_line(error)
    # Orbax's unfinished reads end when they are garbage-collected, and would print a traceback per array
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
    raise _damaged(folder, reason)
