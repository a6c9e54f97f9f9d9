"""Where a run directory is: a folder of this machine. One at a remote address has a copy here
(`transformer.runs.mirror`). Everything else uses either as a `RunStore`."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformer.runtime.errors import UserError
from transformer.runtime.files import append_flags, folder_whole
from transformer.runtime.hosts import barrier, is_main_process
from transformer.runtime.machine import unwritable

# The lock of a run directory: one training at a time.


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
        try:
            is_taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        except OSError as error:  # such as a name that is too long
            raise UserError(f"cannot create {path}: {error.strerror}") from None
        if is_taken:
            raise UserError(f"{path} exists already: name a new directory")
        above = next(folder for folder in path.absolute().parents if folder.exists())
        if reason := unwritable(above):
            raise UserError(f"cannot create {path}: {above} is not a writable folder ({reason})")

    def created(self) -> contextlib.AbstractContextManager[Path]:
        """The folder to write a new run into, which exists completely after the block, or not at all."""
        return folder_whole(self.folder)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Claims the run for this process alone. The claim ends with the process, however that ends.

        Raises:
          UserError: another process trains there; it cannot be written to.
        """
        with contextlib.ExitStack() as held:
            if is_main_process():
                try:
                    file = held.enter_context(open(self.folder / "lock", "a+", opener=append_flags))
                    lock(file.fileno(), self.name)
                except OSError as error:
                    raise UserError(f"cannot write to {self.name}: {error.strerror}") from error
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
