"""Files and folders in object stores, such as gs://bucket/text.en. Files are copied here to be read.

fsspec reaches them: gs:// with the package gcsfs, s3:// with s3fs, and whatever else it knows.
"""

import contextlib
import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import MiB, address, atomic_open, cache_root, folder_whole

log = logging.getLogger("transformer")
PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs"}
ANNOUNCED = 50 * MiB
WRITER = "writer"  # the mark of who writes to a folder


@functools.cache
def fetched(path: Path, largest: int | None = None) -> Path:
    """A file that can be opened: the path itself, or a cached copy of the remote file.

    Args:
      path: the file.
      largest: maximum size in bytes of a file that is copied. None: no limit.

    Raises:
      UserError: it cannot be read, or is larger.
    """
    where = address(path)
    if where is None:
        return path
    with reaching(where):
        store, name = opened(where)
        info = store.info(name)
        if info.get("type") == "other":
            raise UserError(f"{where}: not a regular file")
        Allowance(where, largest).take(info.get("size") or 0)
        local_copy = cache_root(None) / "remote" / "files" / hashed(where, version(info)) / path.name
        if not local_copy.exists():
            announce(info.get("size") or 0, where)
            local_copy.parent.mkdir(parents=True, exist_ok=True)
            with atomic_open(local_copy) as here:
                copy(store, name, here, Allowance(where, largest))
    return local_copy


class Allowance:
    """How much may be copied.

    Args:
      what: is copied, for the message.
      largest: its maximum size in bytes. None: no limit.
    """

    def __init__(self, what: str, largest: int | None) -> None:
        self.what, self.largest, self.taken = what, largest, 0

    def take(self, size: int) -> None:
        """Counts bytes. Raises UserError if there are too many."""
        self.taken += size
        if self.largest is not None and self.taken > self.largest:
            raise UserError(f"{self.what}: larger than {self.largest // MiB:,} MiB, so it is not copied")


def copy(store: Any, name: str, here: IO[bytes], allowance: Allowance) -> None:
    """Copies a file of a store into an open one. Raises UserError if it is larger than allowed, even if the
    store listed a smaller size."""
    with store.open(name, "rb") as source:
        while block := source.read(MiB):
            allowance.take(len(block))
            here.write(block)


def has(folder: Path | str, name: str) -> bool:
    """Whether a folder, here or at an address, has a file. Raises UserError if it cannot be reached."""
    where = address(folder)
    if where is None:
        return os.path.exists(os.path.join(folder, name))  # False for what cannot be a name
    with reaching(where):
        store, root = opened(where)
        return bool(store.exists(f"{root}/{name}"))


def send(folder: Path, where: str, last: str) -> None:
    """Copies the files of a folder to an address, unless they are there.

    Args:
      folder: on this machine.
      where: the address.
      last: the file that is copied last: whoever sees it sees all.

    Raises:
      UserError: it cannot be written to.
    """
    if has(where, last):
        return
    with reaching(where):
        store, root = opened(where)
        store.makedirs(root, exist_ok=True)
        for file in sorted(folder.iterdir(), key=lambda file: file.name == last):
            store.put_file(os.fspath(file), f"{root}/{file.name}")


def receive(where: str, folder: Path, last: str) -> bool:
    """Copies what `send` has copied to an address into a new folder. Returns whether it is there.

    Raises:
      UserError: it cannot be reached.
      OSError: the folder cannot be written.
    """
    with reaching(where):
        store, root = opened(where)
        files = listed(store, root)
    if last not in files:
        return False
    with folder_whole(folder) as partial:
        for name in files:
            with reaching(where), open(partial / Path(name).name, "wb") as here:
                copy(store, f"{root}/{name}", here, Allowance(where, None))
    return True


def matching_addresses(where: str) -> list[Path]:
    """The files at an address, which may be a pattern, by name. Raises UserError if it cannot be reached."""
    with reaching(where):
        store, name = opened(where)
        return [Path(store.unstrip_protocol(file)) for file in sorted(store.glob(name))]


def check_new(where: str) -> None:
    """Raises UserError if there is something at an address, or if nothing can be written there."""
    with reaching(where):
        store, root = opened(where)
        if listed(store, root):
            raise UserError(f"{where} exists already: name a new directory")
    try:
        store.makedirs(root, exist_ok=True)
        store.pipe_file(f"{root}/{WRITER}", b"")
        store.rm_file(f"{root}/{WRITER}")
    except Exception as error:
        raise UserError(f"{where} cannot be written to: {first_line(error)}") from error


def listed(store: Any, root: str) -> dict[str, dict[str, Any]]:
    """A store's description of each file of a folder, by name.

    Raises:
      UserError: one is a link, a pipe or a device, as file:// and sftp:// may have.
    """
    store.invalidate_cache()
    try:
        files = store.find(root, detail=True)
    except FileNotFoundError:
        return {}
    for path, info in files.items():
        if info.get("islink") or info.get("type") in ("link", "other"):
            raise UserError(
                f"{path} is a link, a pipe or a device: a run directory may contain only regular files and "
                "folders, since it could lead to files outside. Put the file itself in its place"
            )
    start = len(store._strip_protocol(root).rstrip("/")) + 1
    return {path[start:]: info for path, info in files.items() if path[start:] != WRITER}


def opened(where: str) -> tuple[Any, str]:
    """fsspec's file system, and the path in it."""
    import fsspec

    scheme, _, rest = where.partition("://")
    if not rest.strip("/"):
        raise UserError(f"{where} names no bucket and no folder")
    if "::" in rest:
        raise UserError(f"{where}: an address must not contain ::")
    try:
        store, name = fsspec.core.url_to_fs(where)
    except ValueError as error:
        raise UserError(f"{where}: {scheme}:// is unknown; there are gs://, s3://, file://, ...") from error
    except ImportError as error:
        package = PACKAGES.get(scheme)
        needs = f"pip install {package}" if package else str(error).partition("\n")[0]
        raise UserError(f"{where}: a package is missing for {scheme}://: {needs}") from error
    return store, name


@contextlib.contextmanager
def reaching(where: str) -> Iterator[None]:
    """Whatever a store raises, as one message."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{where}: no such file or folder") from error
    except IsADirectoryError as error:
        raise UserError(f"{where} is a folder: name a file") from error
    except Exception as error:  # each store raises its own errors
        raise UserError(f"{where}: cannot be reached: {first_line(error)}") from error


def version(info: dict[str, Any]) -> str:
    """What changes when a remote file does."""
    return hashed(*(f"{key} {value}" for key, value in sorted(info.items())))


def hashed(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()


def announce(size: int, where: str) -> None:
    if size > ANNOUNCED:
        log.warning("Copying %.1f GB from %s ...", size / 1e9, where)
