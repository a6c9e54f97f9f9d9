"""Where a run directory is: a folder of this machine, or in an object store with a copy here.

`store_type` alone tells one from the other; everything else uses a `RunStore`. An object store has no locks,
no links and no renaming, so these are the promises:

- A file is complete or absent, and so is a checkpoint: its manifest is sent last and deleted first.
- What is copied is bounded before and while it is copied, as what is read of a local run is.
- Who writes to a folder leaves a mark in it. Whoever starts last takes the folder over; the one before
  notices at its next save and ends, and changes nothing.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jax

from transformer.data.remote import (
    WRITER,
    Allowance,
    announce,
    check_new,
    copy,
    hashed,
    listed,
    opened,
    reaching,
    version,
)
from transformer.runs.sealed import MANIFEST
from transformer.runtime.errors import UserError
from transformer.runtime.files import (
    LARGEST_FILE,
    MiB,
    address,
    append_flags,
    atomic_open,
    cache_root,
    failing,
    folder_whole,
    write_whole,
)
from transformer.runtime.hosts import barrier, is_main_process
from transformer.runtime.machine import unwritable

LONGEST = 200  # bytes of a name that are shown


def lock(file: int, where: str) -> None:
    """Locks an open file, and writes into it which process has it.

    Args:
      file: its descriptor, to read and write. The lock ends when it is closed, or with the process.
      where: the run directory, for the message.

    Raises:
      UserError: another process has the lock.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = os.pread(file, LONGEST, 0).decode(errors="replace").strip()
        holder = f" ({who})" if who.isprintable() and who else ""
        raise UserError(
            f"{where}: another process trains there{holder}; wait for it, or choose another --run-dir"
        ) from error
    with contextlib.suppress(OSError):  # a full disk is reported when it matters
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())


class RunStore:
    """What a run needs to reach its directory: a folder of this machine, or one that all processes share.

    Args:
      path: of the folder; of a `RemoteStore` the address.
      writes: whether this process will write there.

    Attributes:
      folder: the run directory on this machine, or the copy of a remote one.
      name: the run, as the user names it.
      location: its absolute path, or its address.
      savers: the processes that save checkpoints. None: all, each its part.
    """

    savers: set[int] | None = None

    def __init__(self, path: Path | str, writes: bool = False) -> None:
        self.folder = Path(path)
        self.name = str(path)
        self.location = str(self.folder.absolute())
        self._background = ThreadPoolExecutor(1)

    @staticmethod
    def check_free(path: Path | str) -> None:
        """Raises UserError if a run directory cannot be created there."""
        path = Path(path)
        with failing(f"cannot create {path}"):  # such as a name that is too long
            is_taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        if is_taken:
            raise UserError(f"{path} exists already: name a new directory")
        above = next(folder for folder in path.absolute().parents if folder.exists())
        if reason := unwritable(above):
            raise UserError(f"cannot create {path}: {above} is not a writable folder ({reason})")

    def created(self) -> contextlib.AbstractContextManager[Path]:
        """The folder to write a new run into, which exists completely after the block, or not at all."""
        return folder_whole(self.folder, tidy=True)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Claims the run for this process alone. The claim ends with the process, however that ends.

        Raises:
          UserError: another process trains there; it cannot be written to.
        """
        with contextlib.ExitStack() as held:
            if is_main_process():
                with failing(f"cannot write to {self.name}"):
                    file = held.enter_context(open(self.folder / "lock", "a+", opener=append_flags))
                    lock(file.fileno(), self.name)
            yield

    def pull(self, prefix: str, largest: int) -> None:
        """Makes the files whose names begin so readable in `folder`.

        Raises:
          UserError: they must be copied, and have more than `largest` bytes.
        """

    def push(self, written: str = "") -> None:
        """Publishes what was changed in `folder`. Only the main process does.

        Args:
          written: a folder in it that was written anew: it is published as it is here. Empty: none.

        Raises:
          UserError: it cannot be written to; another process has taken the run over.
        """

    def completing(self, complete: Callable[[], None]) -> Callable[[], None]:
        """Has a checkpoint completed and published in the background, since hashing its files takes seconds;
        returns the function that waits for this."""

        def completed() -> None:
            complete()
            self.push()

        return self._background.submit(completed).result

    def meet(self, what: str) -> None:
        """Waits for the other processes. Then all see the same checkpoints."""
        barrier(what)

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Errors raised in the block name the run as the user does."""
        return contextlib.nullcontext()


# Which files of a run directory are sent to a remote one and copied from it, by their names.


T = TypeVar("T")
_HEAVY = re.compile(
    r"checkpoints/[^/]+/(?!metrics/|manifest)|(average|damaged|tensorboard|profile)/|report\.html|memory\.prof"
)
"""What is not copied at once: all but what is small and always read."""


def checkpoint_of(name: str) -> str:
    """The checkpoint that a file belongs to, or the average; empty for others."""
    levels = name.split("/")
    if levels[0] == "checkpoints" and len(levels) > 1:
        return f"checkpoints/{levels[1]}"
    return levels[0] if levels[0] == "average" else ""


def whole(files: Mapping[str, T]) -> dict[str, T]:
    """The files, by name, that are part of a run and complete: nothing hidden, temporary or local, and no
    checkpoint without its manifest."""
    return {name: info for name, info in files.items() if _is_whole(name, files)}


def _is_whole(name: str, files: Mapping[str, T]) -> bool:
    levels = name.split("/")
    if any(level.startswith(".") or ".orbax-checkpoint-tmp" in level for level in levels) or "" in levels:
        return False  # among them names that would lead out of the folder
    checkpoint = checkpoint_of(name)
    return name != "lock" and (checkpoint in ("", "average") or f"{checkpoint}/{MANIFEST}" in files)


MOST = 4 * LARGEST_FILE  # of what is copied at once, in bytes
LARGE = 64 * MiB  # smaller files are sent as they are now, since they may grow meanwhile


class TakenOver(UserError):
    """Another process writes to the folder."""


class RemoteStore(RunStore):
    """The `RunStore` of a remote run: works in a copy of its folder.

    Args:
      path: its address.
      writes: whether this process will work in the copy, which no other may use then. Otherwise it is read,
        and programs share the copy.

    Raises:
      UserError: the store cannot be reached; another process of this machine writes there.
    """

    def __init__(self, path: Path | str, writes: bool = False) -> None:
        where = address(path)
        assert where
        if writes and where.startswith(("http:", "https:")):
            raise UserError(f"{where}: it cannot be written; train in a folder or a bucket (gs://, s3://)")
        self.name = self.location = where
        self.savers = {0}  # each process may have a disk of its own
        copy_name = f"{hashed(where)}-{jax.process_index()}" if writes else hashed(where)
        self.folder = cache_root(None) / "remote" / "folders" / copy_name / where.rsplit("/", 1)[-1]
        self._index = self.folder.parent / "index.json"
        self._mark: bytes | None = None
        self._turn = threading.Lock()
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of the files that the store has
        self._background = ThreadPoolExecutor(1)
        with reaching(where):
            self._store, self._root = opened(where)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._shared = not writes
        self._mark_file = self.folder.parent / WRITER  # this writer's mark, until all is sent
        self._lock = append_flags(str(self.folder.parent / "lock"), os.O_CREAT | os.O_RDWR | os.O_APPEND)
        self._unlock = weakref.finalize(self, os.close, self._lock)
        if writes:
            lock(self._lock, where)
            self._send_the_rest()
        self._refresh()

    @staticmethod
    def check_free(path: Path | str) -> None:
        where = address(path)
        assert where
        check_new(where)

    @contextlib.contextmanager
    def created(self) -> Iterator[Path]:
        try:
            yield self.folder
            self.push()
        finally:
            self._close()

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Marks the folder as written to by this job, which ends the claim of any other. At the end, sends
        what was not sent yet and removes the copy; if that fails, it is kept."""
        if is_main_process():
            self._claim()
        try:
            yield
        except BaseException as error:
            self._leave(error)
            raise
        self._leave()

    def _claim(self) -> None:
        owner = f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(8)}"
        self._mark = owner.encode()
        with reaching(self.name):
            self._store.pipe_file(f"{self._root}/{WRITER}", self._mark)
        write_whole(self._mark_file, self._mark)

    def _leave(self, error: BaseException | None = None) -> None:
        keep = True
        try:
            if not isinstance(error, TakenOver):
                self.push()
            keep = False
        except TakenOver:
            keep = False
            if error is None:
                raise
        except UserError as failed:
            raise UserError(
                f"{failed}. What was not sent is in {self.folder}: the same command with --run-dir "
                f"{self.name} sends it"
            ) from failed
        finally:
            self._close(keep)

    def _close(self, keep: bool = False) -> None:
        """Lets others use the copy, and removes a writer's unless it is to be kept."""
        if not self._shared and not keep:
            shutil.rmtree(self.folder.parent, ignore_errors=True)
        self._unlock()

    def _send_the_rest(self) -> None:
        """Sends what an earlier process of this machine could not, unless another one has written since."""
        if not self._mark_file.exists():
            return
        self._mark = self._mark_file.read_bytes()
        try:
            self.push()
        except TakenOver:
            self._mark_file.unlink()
        self._mark = None

    def _refresh(self) -> None:
        """Copies what is small and always read, and deletes files of the copy that the store no longer has,
        and checkpoints without a manifest."""
        with self._turn, self._alone(), reaching(self.name):
            remote = whole(self._listing())
            for path in [path for path in self.folder.rglob("*") if path.is_file()]:
                if self._relative(path) not in remote:
                    path.unlink()
            for folder in sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):  # not empty
                    folder.rmdir()
            self._copy(remote, lambda name: not _HEAVY.match(name), MOST)

    def pull(self, prefix: str, largest: int) -> None:
        with self._turn, self._alone(), reaching(self.name):
            self._copy(whole(self._listing()), lambda name: name.startswith(prefix), largest, f"/{prefix}")

    def _copy(
        self, remote: dict[str, Any], selects: Callable[[str], bool], largest: int, subfolder: str = ""
    ) -> None:
        """Copies the files whose names are selected."""
        copied_versions = _read(self._index)
        names = list(filter(selects, remote))
        outdated = [
            name
            for name in names
            if copied_versions.get(name) != version(remote[name]) or not (self.folder / name).is_file()
        ]
        sizes = {name: remote[name].get("size") or 0 for name in names}
        Allowance(f"{self.name}{subfolder}", largest).take(sum(sizes.values()))
        announce(sum(sizes[name] for name in outdated), self.name)
        allowance = Allowance(f"{self.name}{subfolder}", largest)
        allowance.take(sum(sizes[name] for name in set(names) - set(outdated)))
        for name in outdated:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            with atomic_open(self.folder / name) as file:
                copy(self._store, f"{self._root}/{name}", file, allowance)
            copied_versions[name] = version(remote[name])
        self._sent |= {name: _size_and_time(self.folder / name) for name in names}
        self._remember({name: copied_versions[name] for name in remote if name in copied_versions})

    def push(self, written: str = "") -> None:
        """Makes the folder equal to the copy, for all files that were changed, added or deleted here, and for
        a folder in it that was written anew, of which the copy need not have had the files before."""
        if not is_main_process():
            return
        with self._turn, self._alone(), reaching(self.name):
            self._check_claim()
            local = whole({self._relative(path): path for path in self.folder.rglob("*") if path.is_file()})
            deleted = {name for name in self._sent if name not in local}
            if self._mark:  # checkpoints are deleted here of which only a part was copied
                checkpoints = {"", "average", *map(checkpoint_of, local)}
                deleted |= {name for name in self._listing() if checkpoint_of(name) not in checkpoints}
            if written:
                deleted |= {name for name in self._listing() if name.startswith(f"{written}/")} - local.keys()
            for name in sorted(deleted, key=lambda name: not name.endswith(MANIFEST)):
                with contextlib.suppress(FileNotFoundError):
                    self._store.rm_file(f"{self._root}/{name}")
                self._sent.pop(name, None)
            for name in sorted(local, key=lambda name: name.endswith(MANIFEST)):
                size_and_time = _size_and_time(local[name])
                if self._sent.get(name) == size_and_time:
                    continue
                if size_and_time[0] > LARGE:
                    self._store.put_file(str(local[name]), f"{self._root}/{name}")
                else:
                    self._store.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
                    self._store.pipe_file(f"{self._root}/{name}", local[name].read_bytes())
                self._sent[name] = size_and_time
            remote = whole(self._listing())
            self._remember({name: version(remote[name]) for name in self._sent if name in remote})

    def meet(self, what: str) -> None:
        super().meet(what)
        if not is_main_process():
            self._refresh()

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            raise type(error)(str(error).replace(str(self.folder), self.name)) from error

    def _check_claim(self) -> None:
        if self._mark is None:
            return
        try:
            mark = self._store.cat_file(f"{self._root}/{WRITER}")
        except FileNotFoundError:
            mark = b"somebody who deleted it"
        if mark != self._mark:
            who = mark.decode(errors="replace").rpartition(",")[0] or "another process"
            raise TakenOver(f"{self.name}: {who} has taken this run over; this process ends")

    def _listing(self) -> dict[str, dict[str, Any]]:
        return listed(self._store, self._root)

    def _relative(self, path: Path) -> str:
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


def _size_and_time(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _read(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        versions: dict[str, str] = json.loads(path.read_text())
        return versions
    return {}


def store_type(path: Path | str) -> type[RunStore]:
    """The kind of store that a path or an address is in."""
    return RemoteStore if address(path) else RunStore
