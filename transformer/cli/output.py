"""Where a command writes to: never half of a file, never over one that is still wanted, and what a long
job has done already is not done again."""

import contextlib
import fcntl
import hashlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from transformer.errors import UserError
from transformer.files import append_flags, beside


def is_device(path: Path) -> bool:
    """Whether it is a device or a pipe: something to write to, but never to replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


class Output:
    """Standard output, a device or a pipe; or a file that appears when it is complete.

    Args:
      path: where to; None: standard output.
      option: the command's name for it.

    Raises:
      UserError: on entering and leaving, where it cannot be written.
    """

    def __init__(self, path: Path | None, option: str = "--output") -> None:
        self._option = option
        self._direct = path is None or is_device(path)
        # of a link, the file it leads to
        self._path = path if path is None or self._direct else Path(os.path.realpath(path))

    def __enter__(self) -> TextIO:
        if self._path is None:
            if sys.stdout is None:
                raise UserError(f"standard output is closed: name a file with {self._option}")
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
            self._file: TextIO = sys.stdout
            return self._file
        try:
            if self._direct:
                self._file = open(self._path, "w", encoding="utf-8", newline="\n")
            else:
                self._file = self._open()
        except OSError as error:
            raise self._not_written(error) from error
        return self._file

    def _open(self) -> TextIO:
        assert self._path
        self._partial = beside(self._path)
        return open(self._partial, "x", encoding="utf-8", newline="\n")

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        try:
            self._file.flush()
        except OSError as trouble:
            error = error or trouble
        try:
            if not self._direct:
                self._settle(complete=error is None)
        except OSError as trouble:
            error = error or trouble
        if (
            self._path
        ):  # only now: closing releases the lock on a file that others could still take for theirs
            with contextlib.suppress(OSError):
                self._file.close()
        if isinstance(error, BrokenPipeError):
            raise error
        if isinstance(error, OSError):
            raise self._not_written(error) from error

    def _settle(self, complete: bool) -> None:
        if not complete:
            self._partial.unlink(missing_ok=True)
            return
        assert self._path
        with contextlib.suppress(OSError):  # who may read it is as it was
            self._partial.chmod(self._path.stat().st_mode)
        os.replace(self._partial, self._path)

    def _not_written(self, error: OSError) -> UserError:
        place = self._path or "standard output"
        return UserError(f"cannot write {self._option} {place}: {error.strerror}")


class LongOutput(Output):
    """A file whose lines stay beside it when the work is cut off, for the same job to go on with.

    Args:
      path: a file.
      job: what its lines are made from, and how.
      resume: go on; else begin anew.
      each: how many lines belong together.

    Attributes:
      done: how many times `each` lines were there already.
      kept: whether something stays, once it was left.
      dropped: whether something was there that is not gone on with.
    """

    def __init__(self, path: Path, job: str, *, resume: bool, each: int = 1) -> None:
        super().__init__(path)
        assert self._path
        name = hashlib.blake2b(job.encode(), digest_size=6).hexdigest()
        self._partial = self._path.with_name(f".{self._path.name}.{name}.partial")
        self._resume, self._each = resume, each
        self.done, self.kept, self.dropped = 0, False, False

    def _open(self) -> TextIO:
        file = self._locked()
        self.dropped = not self._resume and file.tell() > 0
        file.truncate(self._whole() if self._resume else 0)
        return file

    def _locked(self) -> TextIO:
        """The file so far, which no other process has open to write."""
        while True:
            # a line at a time, so that whatever ends the process leaves whole lines
            file = open(  # noqa: SIM115 (left in __exit__)
                self._partial, "a", 1, encoding="utf-8", newline="\n", opener=append_flags
            )
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.close()
                raise UserError(f"{self._option} {self._path}: another process writes it just now") from error
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.lstat(self._partial)):
                    return file
            file.close()  # another process has just completed it, and this is its finished output

    @property
    def path(self) -> Path:
        """The file with the lines so far."""
        return self._partial

    def lines(self) -> Iterator[str]:
        """The first of each that was written so far."""
        with open(self._partial, encoding="utf-8", newline="\n") as file:
            for line in itertools.islice(file, 0, None, self._each):
                yield line.removesuffix("\n")

    def _whole(self) -> int:
        """The size of what is complete; sets `done`."""
        size = 0
        with open(self._partial, "rb") as file:
            while len(lines := list(itertools.islice(file, self._each))) == self._each:
                if not lines[-1].endswith(b"\n"):
                    break
                size += sum(map(len, lines))
                self.done += 1
        return size

    def discard(self) -> None:
        """What was written is not worth keeping."""
        os.truncate(self._partial, 0)

    def _settle(self, complete: bool) -> None:
        self.kept = not complete and self._partial.stat().st_size > 0
        if not self.kept:
            super()._settle(complete)
