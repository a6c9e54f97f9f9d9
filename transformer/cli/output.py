"""Where a command writes to: never half of a file, never over one that is still wanted."""

import os
import sys
from pathlib import Path
from typing import Any, TextIO

from transformer.errors import UserError


def is_device(path: Path) -> bool:
    """Whether it is a device or a pipe: something to write to, but never to replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


class Output:
    """Standard output, a device or a pipe; or a file that appears when it is complete."""

    def __init__(self, path: Path | None, option: str = "--output") -> None:
        self._option = option
        device = path is not None and is_device(path)
        self._path = path if path is None or device else path.resolve()  # of a link, what it leads to
        self._partial = None
        if self._path and not device:
            self._partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")

    def __enter__(self) -> TextIO:
        if self._path and self._partial is None:
            self._file: TextIO = open(self._path, "w", encoding="utf-8", newline="\n")
            return self._file
        if self._partial is None:
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
            self._file = sys.stdout
            return self._file
        try:
            self._file = open(self._partial, "w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UserError(f"cannot write {self._option} {self._path}: {error.strerror}") from error
        return self._file

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._file.flush()
        if self._path:
            self._file.close()
        if self._partial and self._path:
            if kind is None:
                os.replace(self._partial, self._path)
            else:
                self._partial.unlink(missing_ok=True)
