"""Where a command writes to: never half of a file, never over one that is still wanted, and what a long
job has done already is not done again."""

import fcntl
import hashlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from transformer.errors import UserError


def is_device(path: Path) -> bool:
    """Whether it is a device or a pipe: something to write to, but never to replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


class Output:
    """Standard output, a device or a pipe; or a file that appears when it is complete.

    Args:
      path: where to; None: standard output.
      option: the command's name for it.
      job: what the lines are made from, and how. Given, what was written of a file stays when the work is
        cut off, beside it, and `resume` finds it; without, it goes.
      resume: go on with what the same job has left.
      each: how many lines belong together.

    Attributes:
      done: how many times `each` lines were there already.
      each: as given.
    """

    def __init__(
        self,
        path: Path | None,
        option: str = "--output",
        *,
        job: str | None = None,
        resume: bool = False,
        each: int = 1,
    ) -> None:
        self._option, self._job, self._resume, self.each = option, job, resume, each
        self.done = 0
        device = path is not None and is_device(path)
        self._path = path if path is None or device else path.resolve()  # of a link, what it leads to
        self._partial = None
        if self._path and not device:
            name = hashlib.blake2b(job.encode(), digest_size=6).hexdigest() if job else os.getpid()
            self._partial = self._path.with_name(f".{self._path.name}.{name}.partial")

    def __enter__(self) -> TextIO:
        if self._path and self._partial is None:
            self._file: TextIO = open(self._path, "w", encoding="utf-8", newline="\n")
        elif self._partial is None:
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
            self._file = sys.stdout
        else:
            try:
                # a line at a time, so that whatever ends the process leaves whole lines
                self._file = open(self._partial, "a", 1, encoding="utf-8", newline="\n")
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._file.close()
                raise UserError(f"{self._option} {self._path}: another process writes it just now") from error
            except OSError as error:
                raise UserError(f"cannot write {self._option} {self._path}: {error.strerror}") from error
            self._file.truncate(self._whole() if self._resume else 0)
        return self._file

    def lines(self) -> Iterator[str]:
        """What was written of the file so far."""
        assert self._partial
        with open(self._partial, encoding="utf-8", newline="\n") as file:
            yield from (line.removesuffix("\n") for line in file)

    def _whole(self) -> int:
        """The size of what is complete; sets `done`."""
        assert self._partial
        size = 0
        with open(self._partial, "rb") as file:
            while len(lines := list(itertools.islice(file, self.each))) == self.each:
                if not lines[-1].endswith(b"\n"):
                    break
                size += sum(map(len, lines))
                self.done += 1
        return size

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._file.flush()
        if self._path:
            self._file.close()
        if self._partial is None or self._path is None:
            return
        if kind is None:
            os.replace(self._partial, self._path)
        elif self._job and self._partial.stat().st_size:
            print("what was written is kept: the same command with --resume goes on", file=sys.stderr)
        else:
            self._partial.unlink(missing_ok=True)
