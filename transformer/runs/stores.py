"""Where a run directory is: on this machine, or at a remote address with a copy here.

`store_type` alone tells one from the other; everything else uses a `RunStore`.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from transformer.runs.mirror import RemoteStore, lock
from transformer.runtime.errors import UserError
from transformer.runtime.files import address, append_flags, folder_whole
from transformer.runtime.hosts import barrier, is_main_process
from transformer.runtime.machine import unwritable


class RunStore(Protocol):
    """What a run needs to reach its directory. A store is made of a path or an address, and of whether this
    process will write there.

    Attributes:
      folder: the run directory on this machine, or the copy of a remote one.
      name: the run, as the user names it.
      savers: the processes that save checkpoints. None: all, each its part.
    """

    folder: Path
    name: str
    savers: set[int] | None

    @property
    def location(self) -> str:
        """The absolute path of the run directory, or its address."""
        ...

    @staticmethod
    def check_free(path: Path | str) -> None:
        """Raises UserError if a run directory cannot be created there."""
        ...

    def created(self) -> contextlib.AbstractContextManager[Path]:
        """The folder to write a new run into, which exists completely after the block, or not at all."""
        ...

    def claimed(self) -> contextlib.AbstractContextManager[None]:
        """Claims the run for this process alone. The claim ends with the process, however that ends.

        Raises:
          UserError: another process trains there; it cannot be written to.
        """
        ...

    def pull(self, prefix: str, largest: int) -> None:
        """Makes the files whose names begin so readable in `folder`.

        Raises:
          UserError: they must be copied, and have more than `largest` bytes.
        """
        ...

    def push(self, written: str = "") -> None:
        """Publishes what was changed in `folder`. Only the main process does.

        Args:
          written: a folder in it that was written anew: it is published as it is here. Empty: none.

        Raises:
          UserError: it cannot be written to; another process has taken the run over.
        """
        ...

    def completing(self, complete: Callable[[], None]) -> Callable[[], None]:
        """Has a checkpoint completed and published in the background, since hashing its files takes seconds;
        returns the function that waits for this."""
        ...

    def meet(self, what: str) -> None:
        """Waits for the other processes. Then all see the same checkpoints."""
        ...

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Errors raised in the block name the run as the user does."""
        ...


class LocalStore:
    """A folder of this machine, or one that all processes share."""

    savers: set[int] | None = None

    def __init__(self, path: Path | str, writes: bool = False) -> None:
        self.folder = Path(path)
        self.name = str(path)
        self._completer = ThreadPoolExecutor(1)

    @property
    def location(self) -> str:
        return str(self.folder.absolute())

    @staticmethod
    def check_free(path: Path | str) -> None:
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
        return folder_whole(self.folder)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            if is_main_process():
                try:
                    file = held.enter_context(open(self.folder / "lock", "a+", opener=append_flags))
                    lock(file.fileno(), self.name)
                except OSError as error:
                    raise UserError(f"cannot write to {self.name}: {error.strerror}") from error
            yield

    def pull(self, prefix: str, largest: int) -> None:
        pass

    def push(self, written: str = "") -> None:
        pass

    def completing(self, complete: Callable[[], None]) -> Callable[[], None]:
        return self._completer.submit(complete).result

    def meet(self, what: str) -> None:
        barrier(what)

    def named(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def store_type(path: Path | str) -> type[LocalStore] | type[RemoteStore]:
    """The kind of store that a path or an address is in."""
    return RemoteStore if address(path) else LocalStore
