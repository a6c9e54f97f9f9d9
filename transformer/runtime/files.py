"""Reads untrusted files within bounds, and writes files atomically.

A run directory, a model to import or a corpus may come from a stranger, or be in a folder that others can
write to. So only regular files of bounded size are read, never a pipe or a device, and nothing is written
through a link.
"""

import contextlib
import errno
import fcntl
import glob
import io
import json
import math
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

from transformer.runtime.errors import UserError, abbreviated, first_line

MiB = 2**20
T = TypeVar("T")
Json = dict[str, Any]
"""A JSON object."""
LARGEST_FILE = 256 * MiB  # limit for files that are read at once
LONGEST_LINE = 4 * MiB  # in a log
MOST_VALUES = 2**22  # of the object of one line
DEEPEST = 32  # nested folders
_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(?:/+(.*))?")  # pathlib drops slashes
_HOST = re.compile(r"\[[0-9a-fA-F]*:[0-9a-fA-F:.]*(%\w+)?\]|[\w.-]+", re.ASCII)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # part of a surrogate pair, or a lone surrogate


class NotRegular(OSError):
    """The path is a pipe, a device or a folder, or the file is too large."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EINVAL, reason, os.fspath(path))


# Names


def address(path: Path | str) -> str | None:
    """The address that a path was before it was a `Path`; None for a path of this machine."""
    match = _ADDRESS.fullmatch(os.fspath(path))
    if not match:
        return None
    scheme, rest = match[1].lower(), (match[2] or "").rstrip("/")
    return f"{scheme}://{'/' * (scheme == 'file')}{rest}"


def ascii_host(name: str) -> str:
    """The name of a host as programs send it, in ASCII, or its address, of IPv6 in brackets; empty if it is
    neither, such as a name with an empty part."""
    try:
        sent = name.encode("idna").decode()
    except UnicodeError:
        return ""
    return sent if _HOST.fullmatch(sent) else ""


def brief(text: str) -> str:
    """A text in quotes for messages, shortened to 60 characters."""
    return repr(abbreviated(text))


def brief_json(value: object) -> str:
    """A value of a JSON file for messages, as JSON writes it, shortened to 60 characters."""
    return abbreviated(json.dumps(value, ensure_ascii=False, default=repr))


def display_path(path: Path | str) -> str:
    """A path or an address as text."""
    return address(path) or os.fspath(path)


def is_name(path: Path | str) -> bool:
    """Whether a file can have this name: one with a null character or half of a surrogate pair has none."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def readable(name: str) -> str:
    """A file name as text that can be written: what is not UTF-8 is replaced."""
    return name.encode(errors="replace").decode()


def cache_root(folder: Path | None) -> Path:
    """The folder of prepared corpora: as given, or $TRANSFORMER_CACHE, or ~/.cache/transformer-jax.

    Raises:
      UserError: none is given, and this user has no home directory.
    """
    default = os.environ.get("TRANSFORMER_CACHE") or Path("~/.cache/transformer-jax")
    try:
        return Path(folder or default).expanduser()
    except RuntimeError as error:  # a user id that the system has no entry for, as in some containers
        raise UserError(
            f"{folder or default}: this user has no home directory; set TRANSFORMER_CACHE to a folder for "
            "prepared text and compiled programs"
        ) from error


def module_path() -> str:
    """PYTHONPATH for another process, so that it finds the modules that this one has."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


def check_local(path: Path | str, option: str) -> None:
    """Raises UserError if a path is a remote address."""
    if where := address(path):
        raise UserError(f"{option} {where}: must be on this machine, not at a remote address")


def check_writable(run_dir: Path) -> None:
    """Raises UserError if nothing can be written to a run directory, before the work for it begins."""
    if run_dir.is_dir() and not os.access(run_dir, os.W_OK):
        raise UserError(f"{run_dir} is read-only, and the result is written there: copy it to another folder")


# Reading


def unreadable(error: Exception) -> str:
    """Why a file that `open_regular` was to open cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "is a folder; name a file"
    return getattr(error, "strerror", None) or str(error)  # a ValueError: of a name with a null character


@contextlib.contextmanager
def open_regular(path: Path, largest: int | None = None) -> Iterator[io.BufferedReader]:
    """Opens a regular file (or a link to one) for reading.

    Args:
      path: the file.
      largest: maximum size in bytes. None: no limit.

    Raises:
      OSError: it cannot be opened; `NotRegular` for a pipe, a device, a folder, a larger file, or a name
        that no file can have.
    """
    if not is_name(path):
        raise NotRegular(path, "not the name of a file")
    # without O_NONBLOCK, opening a pipe would wait for a writer
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotRegular(path, "not a regular file")
        if largest is not None and status.st_size > largest:
            raise NotRegular(path, f"larger than {largest // MiB:,} MiB")
        yield file


def read_bytes(path: Path, largest: int = LARGEST_FILE) -> bytes:
    """The content of a file. Raises OSError as `open_regular`."""
    with open_regular(path, largest) as file:
        return file.read(largest)  # no more, even if it grows meanwhile


def read_text(path: Path, largest: int = LARGEST_FILE) -> str:
    """The content of a UTF-8 file, without a byte order mark. Raises OSError as `open_regular`, and
    UnicodeDecodeError."""
    return read_bytes(path, largest).decode("utf-8-sig")


def read_log(path: Path) -> Iterator[Json]:
    """Yields the JSON objects of a log, one per line. Other lines, such as one that a kill truncated, are
    skipped. Raises OSError as `open_regular`."""
    with open_regular(path, LARGEST_FILE) as file:
        while line := file.readline(LONGEST_LINE):
            with contextlib.suppress(ValueError):
                yield parse_object(line.decode(errors="replace"))


def parse_json(text: str) -> Any:
    """Parses JSON without NaN, infinities, integers beyond 64 bits, and objects that have a name twice.

    Raises:
      ValueError: it is not JSON, is nested too deeply, or has such numbers or names, or a lone surrogate.
    """
    try:
        value = json.loads(
            text,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_no_number,
            object_pairs_hook=_named_once,
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("a lone surrogate (half of a character)") from error
    return value


def _named_once(pairs: list[tuple[str, Any]]) -> Json:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"{next(name for name in counts if counts[name] > 1)}: it is given twice")
    return values


def parse_object(text: str) -> Json:
    """`parse_json` for a JSON object."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def parse_row(line: str) -> Json:
    """`parse_object` for one line of a table: one with millions of values, each of which takes 20 times as
    much memory as it is long, is refused."""
    if len(line) > MOST_VALUES and sum(map(line.count, ",[{")) > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    return parse_object(line)


def read_stored(
    path: Path,
    parse: Callable[[Json], T],
    remedy: str = "copy it from where the run was made",
    largest: int = LARGEST_FILE,
) -> T | None:
    """What a JSON file of a run directory says. None: there is no such file.

    Args:
      path: the file.
      parse: its JSON object as what it stands for; raises ValueError or TypeError if it is none.
      remedy: what to do if it is damaged, for the message.
      largest: maximum size in bytes.

    Raises:
      UserError: it is damaged.
    """
    if not os.path.lexists(path):
        return None
    try:
        return parse(parse_object(read_text(path, largest)))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}; {remedy}") from error


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


def temp_sibling(path: Path) -> Path:
    """A hidden, unpredictable name in the same folder."""
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}")


@contextlib.contextmanager
def atomic_open(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing that appears under its name only when it is complete.

    Raises:
      OSError: it cannot be written, or is a device, which is never replaced.
    """
    if not path.is_symlink() and (path.is_char_device() or path.is_block_device()):
        raise FileExistsError(errno.EEXIST, "a device, which no file may replace", str(path))
    partial = temp_sibling(path)
    try:
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file atomically. Raises OSError if it cannot be written."""
    with atomic_open(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def is_device(path: Path) -> bool:
    """Whether it is a device or a pipe: something to write to, but never to replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_output(path: Path, content: str) -> None:
    """Writes a file that a command line names: atomically, a device or a pipe directly, of a link its target.
    Raises OSError if it cannot be written."""
    if is_device(path):
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
    else:
        write_whole(Path(os.path.realpath(path)), content)


@contextlib.contextmanager
def folder_whole(path: Path, tidy: bool = False) -> Iterator[Path]:
    """Creates a folder that appears under its name only when it is complete.

    Args:
      path: its name.
      tidy: removes what processes have left of this folder that were killed.

    Raises:
      OSError: it cannot be created, or exists and is not empty.
    """
    partial = temp_sibling(path)
    partial.mkdir(parents=True)
    held = os.open(partial, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX)
        if tidy:
            _remove_left(path)
        yield partial
        os.replace(partial, path)
    finally:
        import shutil  # slow to import, and rarely needed

        os.close(held)
        shutil.rmtree(partial, ignore_errors=True)


def _remove_left(path: Path) -> None:
    """Removes partial folders whose locks have ended with their processes. One that is empty may be without
    its lock yet."""
    import shutil

    for partial in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}"):
        with contextlib.suppress(OSError):
            held = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if any(partial.iterdir()):
                    shutil.rmtree(partial)
            finally:
                os.close(held)


def check_name(path: Path) -> None:
    """Raises UserError if a path is not UTF-8, as TensorStore requires."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{str(path)!r}: the name is not UTF-8; choose another") from error
    if not is_name(path):
        raise UserError(f"{str(path)!r}: the name has a null character; choose another")


def append_flags(name: str, flags: int) -> int:
    """An opener for appending to a regular file, never through a link."""
    number = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise NotRegular(Path(name), "not a regular file")
    return number


def discard_further(stream: IO[Any]) -> None:
    """Redirects a stream, and what is left in its buffer, to the null device: its reader has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def json_line(value: Any) -> str:
    """A value as a line of JSON, in which letters of all scripts stay as they are."""
    return json.dumps(value, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def prefixed_errors(prefix: str) -> Iterator[None]:
    """Puts this before the message of a `UserError`, such as the line that is wrong."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{prefix}{error}") from error


@contextlib.contextmanager
def failing(what: str, remedy: str = "") -> Iterator[None]:
    """Raises UserError with what fails, such as "cannot read text.en", if the system refuses it: why, and
    what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror}{remedy}") from error


def writing(name: object) -> contextlib.AbstractContextManager[None]:
    """Raises UserError with a name, such as that of a file, if it cannot be written."""
    return failing(f"cannot write {name}")


def forbid_links(folder: Path, what: str, depth: int = DEEPEST) -> None:
    """Raises UserError if anything in a folder, at any depth, is neither a regular file nor a folder.

    Args:
      folder: not a link itself, unless the user has named it.
      what: the subject of the message and "may contain", such as "a checkpoint may contain".
      depth: folders that may be in each other.
    """
    if not depth:
        raise UserError(f"{folder}: more than {DEEPEST} nested folders; remove what is not part of a run")
    with failing(f"cannot read {folder}"), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                forbid_links(Path(entry.path), what, depth - 1)
            elif not entry.is_file(follow_symlinks=False):
                file_type = "a link" if entry.is_symlink() else "a pipe or a device"
                raise UserError(
                    f"{entry.path} is {file_type}: {what} only regular files and folders, since it could "
                    "lead to files outside. Put the file itself in its place"
                )


def fault_of(error: Exception) -> str:
    """What is wrong with the content of a JSON file, given what Python says of it, in other words."""
    if isinstance(error, KeyError):
        return f"{error} is missing or unknown"
    of_python = "could not convert", "invalid literal", "too many values", "not enough values"
    if isinstance(error, TypeError | AttributeError | IndexError) or str(error).startswith(of_python):
        return "one of its values has a wrong type"
    return str(error)
