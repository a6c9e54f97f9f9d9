"""Files that anyone may have written: read within bounds, and written whole or not at all.

A run directory, a model to import or a corpus may come from a stranger, or be in a folder where others write
too. So only regular files of a bounded size are read, never a pipe or a device, and nothing is written
through a link.
"""

import contextlib
import errno
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from transformer.errors import UserError

MiB = 2**20
LARGEST_FILE = 256 * MiB  # of those that are read whole
LONGEST_LINE = 4 * MiB  # of a log
DEEPEST = 32  # folders in each other
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a character, where the other half is missing


class NotRegular(OSError):
    """It is a pipe, a device or a folder, or too large to be what it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EINVAL, reason, os.fspath(path))


# Reading


@contextlib.contextmanager
def open_regular(path: Path, largest: int | None = None) -> Iterator[io.BufferedReader]:
    """A file to read, where it is a regular one (or a link to one).

    Args:
      path: the file.
      largest: its greatest size in bytes. None: any.

    Raises:
      OSError: it cannot be opened; `NotRegular` for a pipe, a device, a folder, or a larger file.
    """
    # without O_NONBLOCK, opening a pipe would wait for somebody who writes into it
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise NotRegular(path, "not a regular file")
        if largest is not None and about.st_size > largest:
            raise NotRegular(path, f"larger than {largest // MiB:,} MiB")
        yield file


def read_bytes(path: Path, largest: int = LARGEST_FILE) -> bytes:
    """The content of a file. Raises OSError as `open_regular`."""
    with open_regular(path, largest) as file:
        return file.read(largest)  # no more, should it grow meanwhile


def read_text(path: Path, largest: int = LARGEST_FILE) -> str:
    """The content of a UTF-8 file. Raises OSError as `open_regular`, and UnicodeDecodeError."""
    return read_bytes(path, largest).decode()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a log, one a line. Lines that are something else, such as one that a kill cut off,
    are left out. Raises OSError as `open_regular`."""
    with open_regular(path, LARGEST_FILE) as file:
        while line := file.readline(LONGEST_LINE):
            with contextlib.suppress(ValueError):
                yield parse_object(line.decode(errors="replace"))


def parse_json(text: str) -> Any:
    """JSON with numbers that are numbers: no NaN, no infinity, no integer beyond 64 bits.

    Raises:
      ValueError: it is not JSON, is nested too deeply, or has other numbers or half a character.
    """
    try:
        found = json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_no_number)
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("half a character (a lone surrogate)") from error
    return found


def parse_object(text: str) -> dict[str, Any]:
    """As `parse_json`, of a JSON object."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > 19 or abs(int(digits)) >= 2**63:
        _no_number(digits)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _no_number(digits)
    return number


def _no_number(digits: str) -> NoReturn:
    raise ValueError(f"a number of {len(digits)} digits" if len(digits) > 19 else f"{digits} as a number")


# Writing


def beside(path: Path) -> Path:
    """A hidden name in the same folder, which nobody can know before."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}")


@contextlib.contextmanager
def open_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which appears under its name when it is complete, and otherwise not at all.

    Raises:
      OSError: it cannot be written.
    """
    partial = beside(path)
    try:
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file whole or not at all. Raises OSError where it cannot be written."""
    with open_whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def folder_whole(path: Path) -> Iterator[Path]:
    """A folder to fill, which appears under its name when it is complete, and otherwise not at all.

    Raises:
      OSError: it cannot be made, or there is one already that is not empty.
    """
    partial = beside(path)
    partial.mkdir(parents=True)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_name(path: Path) -> None:
    """Raises UserError where a path is not UTF-8, which TensorStore's have to be."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{os.fsencode(path)!r}: the name is not UTF-8; choose another") from error


def append_flags(name: str, flags: int) -> int:
    """An opener for a file to add to: never through a link, never into a pipe or a device."""
    number = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise NotRegular(Path(name), "not a regular file")
    return number


def discard_further(stream: IO[Any]) -> None:
    """Lets what is still written to a stream go nowhere, the rest in its buffer too: its reader has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def check_plain(folder: Path, what: str) -> None:
    """Raises UserError where anything in a folder, at any depth, is neither a regular file nor a folder.

    Args:
      folder: no link itself, unless the user has named it.
      what: what the folder is to be used for, for the message.
    """
    _check_plain(folder, what, DEEPEST)


def _check_plain(folder: Path, what: str, depth: int) -> None:
    if not depth:
        raise UserError(f"{folder}: more than {DEEPEST} folders in each other; remove what is not of a run")
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _check_plain(Path(entry.path), what, depth - 1)
                elif not entry.is_file(follow_symlinks=False):
                    kind = "a link" if entry.is_symlink() else "a pipe or a device"
                    raise UserError(
                        f"{entry.path} is {kind}: {what} only where there are nothing but files and folders, "
                        "since it could lead to files outside. Put the file itself in its place"
                    )
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from error
