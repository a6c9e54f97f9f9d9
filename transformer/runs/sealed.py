"""Seals checkpoints with the hashes of their files, and detects damage when reading them."""

import asyncio
import gc
import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict

from transformer.model.parameters import Variables
from transformer.runs.bounds import check_arrays, check_sizes
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import forbid_links, parse_object, read_text, write_whole

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


def _compare(stored: Variables, like: Variables) -> None:
    """Raises ValueError if the stored variables have other names or shapes."""
    shapes, expected = (
        {"/".join(path): tuple(leaf.shape) for path, leaf in flatten_dict(tree).items()}
        for tree in (stored, like)
    )
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            raise ValueError(f"{name} is {shapes.get(name)} in the checkpoint, not {expected.get(name)}")


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
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or here)

    try:
        check_arrays(folder, like)
        with ocp.StandardCheckpointer() as checkpointer:
            if item != "training":  # detect another model here: Orbax's threads would print tracebacks
                _compare(checkpointer.metadata(folder.absolute()).item_metadata.tree, like)
            return checkpointer.restore(folder.absolute(), jax.tree.map(shape, like))
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
