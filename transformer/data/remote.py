"""Folders and files in object stores, such as gs://bucket/run: copied here to be read, and back when written.

fsspec reaches them: gs:// with the package gcsfs, s3:// with s3fs, and whatever else it knows. A store has no
locks, no links and no renaming, so these are the promises:

- A file is complete or not there, and so is a checkpoint: its manifest is sent last and deleted first.
- Who writes to a folder leaves a mark in it. Whoever starts last takes the folder over; the one before
  notices at its next save and ends, and changes nothing.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformer.data.store import cache_root
from transformer.errors import UserError
from transformer.files import MiB, address, append_flags, open_whole, write_whole

log = logging.getLogger("transformer")
PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs"}
LARGE = 64 * MiB  # smaller files are sent as they are now, since they may grow meanwhile
ANNOUNCED = 50 * MiB
WRITER = "writer"  # the mark of who writes to a folder
MANIFEST = "manifest.json"  # the file that completes a checkpoint (`transformer.runs.sealed`)
Wanted = Callable[[str], bool]
"""Whether a file, by its name in a folder, is to be copied."""


@functools.cache
def fetched(path: Path) -> Path:
    """A file that can be opened: the path itself, or a copy of the remote file, which is kept.

    Raises:
      UserError: it cannot be read.
    """
    where = address(path)
    if where is None:
        return path
    with _reaching(where):
        store, name = _opened(where)
        about = store.info(name)
        kept = cache_root(None) / "remote" / "files" / _hashed(where, _version(about)) / path.name
        if not kept.exists():
            _announce(about.get("size") or 0, where)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with store.open(name, "rb") as there, open_whole(kept) as here:
                shutil.copyfileobj(there, here, MiB)
    return kept


class Mirror:
    """A remote folder, and its copy here.

    Args:
      where: its address.
      writer: the index of the process that will work in the copy, which no other may use until `close`. None:
        it is read, and programs share the copy.

    Raises:
      UserError: the store cannot be reached; another process of this machine writes there.
    """

    def __init__(self, where: str, writer: int | None = None) -> None:
        self.where = where
        name = f"{_hashed(where)}{'' if writer is None else f'-{writer}'}"
        self.folder = cache_root(None) / "remote" / "folders" / name / where.rsplit("/", 1)[-1]
        self._index = self.folder.parent / "index.json"
        self._mark: bytes | None = None
        self._turn = threading.Lock()
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of the files that are the same there
        with _reaching(where):
            self._store, self._root = _opened(where)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._shared = writer is None
        self._kept = self.folder.parent / WRITER  # this writer's mark, until all is sent
        lock = append_flags(str(self.folder.parent / "lock"), os.O_CREAT | os.O_WRONLY)
        self._lock, self._unlock = lock, weakref.finalize(self, os.close, lock)
        if not self._shared:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"{where}: another process trains there; wait for it, or choose another --run-dir"
                ) from error
            self._send_the_rest()

    def _send_the_rest(self) -> None:
        """Sends what an earlier process of this machine could not, unless another one has written since."""
        if not self._kept.exists():
            return
        self._mark = self._kept.read_bytes()
        try:
            self.push()
        except TakenOver:
            self._kept.unlink()
        self._mark = None

    def refresh(self, wanted: Wanted) -> None:
        """Copies the files that are wanted, and deletes here what is gone there, and checkpoints without a
        manifest."""
        with self._turn, self._alone(), _reaching(self.where):
            there = _whole(self._listing())
            for path in [path for path in self.folder.rglob("*") if path.is_file()]:
                if self._name(path) not in there:
                    path.unlink()
            for folder in sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):  # not empty
                    folder.rmdir()
            self._copy(there, wanted)

    def pull(self, prefix: str) -> None:
        """Copies the files whose names begin so."""
        with self._turn, self._alone(), _reaching(self.where):
            self._copy(_whole(self._listing()), lambda name: name.startswith(prefix))

    def _copy(self, there: dict[str, Any], wanted: Wanted) -> None:
        known, names = _read(self._index), list(filter(wanted, there))
        old = [
            name
            for name in names
            if known.get(name) != _version(there[name]) or not (self.folder / name).is_file()
        ]
        _announce(sum(there[name].get("size") or 0 for name in old), self.where)
        for name in old:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (
                self._store.open(f"{self._root}/{name}", "rb") as sent,
                open_whole(self.folder / name) as file,
            ):
                shutil.copyfileobj(sent, file, MiB)
            known[name] = _version(there[name])
        self._sent |= {name: _size_and_time(self.folder / name) for name in names}
        self._remember({name: known[name] for name in there if name in known})

    def claim(self) -> None:
        """Marks the folder as written to by this process, which ends the claim of any other."""
        about = f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(8)}"
        self._mark = about.encode()
        with _reaching(self.where):
            self._store.pipe_file(f"{self._root}/{WRITER}", self._mark)
        write_whole(self._kept, self._mark)

    def push(self) -> None:
        """Makes the folder equal to the copy, for all files that were changed, added or deleted here.

        Raises:
          UserError: another process has taken the folder over; the store cannot be written to.
        """
        with self._turn, self._alone(), _reaching(self.where):
            self._check_claim()
            here = {self._name(path): path for path in self.folder.rglob("*") if path.is_file()}
            here = {name: path for name, path in here.items() if _is_whole(name, here)}
            gone = {name for name in self._sent if name not in here}
            if self._mark:  # checkpoints are deleted here of which only a part was copied
                kept = {_checkpoint(name) for name in here}
                gone |= {name for name in self._listing() if _checkpoint(name) not in kept | {""}}
            for name in sorted(gone, key=lambda name: not name.endswith(MANIFEST)):
                with contextlib.suppress(FileNotFoundError):
                    self._store.rm_file(f"{self._root}/{name}")
                self._sent.pop(name, None)
            for name in sorted(here, key=lambda name: name.endswith(MANIFEST)):
                now = _size_and_time(here[name])
                if self._sent.get(name) == now:
                    continue
                if now[0] > LARGE:
                    self._store.put_file(str(here[name]), f"{self._root}/{name}")
                else:
                    self._store.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
                    self._store.pipe_file(f"{self._root}/{name}", here[name].read_bytes())
                self._sent[name] = now
            there = _whole(self._listing())
            self._remember({name: _version(there[name]) for name in self._sent if name in there})

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Messages of errors name the address in place of the copy."""
        try:
            yield
        except UserError as error:
            raise type(error)(str(error).replace(str(self.folder), self.where)) from error

    def close(self, keep: bool = False) -> None:
        """Lets others use the copy, and removes a writer's unless it is to be kept."""
        if not self._shared and not keep:
            shutil.rmtree(self.folder.parent, ignore_errors=True)
        self._unlock()

    def _check_claim(self) -> None:
        if self._mark is None:
            return
        try:
            mark = self._store.cat_file(f"{self._root}/{WRITER}")
        except FileNotFoundError:
            mark = b"somebody who deleted it"
        if mark != self._mark:
            who = mark.decode(errors="replace").rpartition(",")[0] or "another process"
            raise TakenOver(f"{self.where}: {who} has taken this run over; this process ends")

    def _listing(self) -> dict[str, dict[str, Any]]:
        return _listed(self._store, self._root)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _remember(self, versions: dict[str, str]) -> None:
        write_whole(self._index, json.dumps(versions))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While programs share the copy, only one changes it."""
        if not self._shared:
            yield
            return
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


class TakenOver(UserError):
    """Another process writes to the folder."""


def has(folder: Path | str, name: str) -> bool:
    """Whether a folder, here or at an address, has a file. Raises UserError if it cannot be reached."""
    where = address(folder)
    if where is None:
        return Path(folder, name).exists()
    with _reaching(where):
        store, root = _opened(where)
        return bool(store.exists(f"{root}/{name}"))


def check_new(where: str) -> None:
    """Raises UserError if there is something at an address, or if nothing can be written there."""
    with _reaching(where):
        store, root = _opened(where)
        if _listed(store, root):
            raise UserError(f"{where} exists already: name a new directory")
    try:
        store.makedirs(root, exist_ok=True)
        store.pipe_file(f"{root}/{WRITER}", b"")
        store.rm_file(f"{root}/{WRITER}")
    except Exception as error:
        raise UserError(f"{where} cannot be written to: {_first_line(error)}") from error


def _listed(store: Any, root: str) -> dict[str, dict[str, Any]]:
    """What a store says about each file of a folder, by name."""
    store.invalidate_cache()
    try:
        found = store.find(root, detail=True)
    except FileNotFoundError:
        return {}
    start = len(store._strip_protocol(root).rstrip("/")) + 1
    return {path[start:]: about for path, about in found.items() if path[start:] != WRITER}


def _opened(where: str) -> tuple[Any, str]:
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
def _reaching(where: str) -> Iterator[None]:
    """Whatever a store raises, as one message."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{where}: no such file or folder") from error
    except IsADirectoryError as error:
        raise UserError(f"{where} is a folder: name a file") from error
    except Exception as error:  # each store raises errors of its own
        raise UserError(f"{where}: cannot be reached: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _checkpoint(name: str) -> str:
    """The checkpoint that a file belongs to, or the average; empty for others."""
    parts = name.split("/")
    if parts[0] == "checkpoints" and len(parts) > 1:
        return f"checkpoints/{parts[1]}"
    return parts[0] if parts[0] == "average" else ""


def _whole(names: dict[str, Any]) -> dict[str, Any]:
    return {name: about for name, about in names.items() if _is_whole(name, names)}


def _is_whole(name: str, names: dict[str, Any]) -> bool:
    """Whether a file is part of a run and complete: nothing hidden, temporary or local, and no checkpoint
    without its manifest."""
    parts = name.split("/")
    if any(part.startswith(".") or ".orbax-checkpoint-tmp" in part for part in parts) or "" in parts:
        return False  # among them names that would lead out of the folder
    checkpoint = _checkpoint(name)
    return name != "lock" and (checkpoint in ("", "average") or f"{checkpoint}/{MANIFEST}" in names)


def _version(about: dict[str, Any]) -> str:
    """What changes when a remote file does."""
    return _hashed(*(f"{key} {value}" for key, value in sorted(about.items())))


def _size_and_time(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _hashed(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()


def _read(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, str] = json.loads(path.read_text())
        return found
    return {}


def _announce(size: int, where: str) -> None:
    if size > ANNOUNCED:
        log.warning("Copying %.1f GB from %s ...", size / 1e9, where)
