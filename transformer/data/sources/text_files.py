"""Reads lines of text, and pairs of them, from files. Lines that cannot be read are counted, then refused
together or left out."""

import bz2
import contextlib
import glob
import gzip
import hashlib
import itertools
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import IO, NamedTuple

from transformer.config.corpus import text_suffix
from transformer.config.records import SOUND
from transformer.data.remote import fetched
from transformer.data.store import DirectedPair, Pair
from transformer.runtime.errors import UserError, counted, first_line
from transformer.runtime.files import (
    MiB,
    address,
    atomic_open,
    brief,
    cache_root,
    failing,
    open_regular,
    read_text,
    write_whole,
)
from transformer.runtime.text import without_invisible

# Lines of corpus files that cannot be read: all are counted, then refused together or left out.


FEW = 20  # kinds, and ranges of line numbers of each, that a message has


class BadLines:
    """Lines that cannot be read, by file and by what is wrong with them.

    Args:
      drops: whether they are left out rather than refused.
    """

    def __init__(self, drops: bool) -> None:
        self.drops = drops
        self._lines: dict[tuple[str, str], dict[int, str]] = {}
        """The numbers of wrong lines, with what is wrong there, by file and kind of error."""

    def add(self, path: Path | str, number: int, problem: str, message: str) -> None:
        """Counts a line, once however often it is read."""
        self._lines.setdefault((str(path), problem), {}).setdefault(number, message)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def described(self, few: int = FEW) -> list[str]:
        """A sentence for each file and kind, with the numbers of the lines.

        Args:
          few: the most kinds, and the most numbers of each, that are named.
        """
        named = [
            f"{path}, {named_ranges(unit_of(path), sorted(lines), few)}: "
            f"{_wrong(unit_of(path), problem, lines)}"
            for (path, problem), lines in itertools.islice(self._lines.items(), few)
        ]
        others = list(itertools.islice(self._lines.values(), few, None))
        return [*named, f"{counted(sum(map(len, others)), 'line')} of other kinds"] if others else named

    def refuse(self) -> None:
        """Raises UserError if there are lines that are not left out."""
        if not self._lines or self.drops:
            return
        described = self.described()
        if len(self) > 1:
            described.append(f"{len(self):,} lines cannot be read: --data.drop-bad leaves them out")
        raise UserError("\n".join(described))


_current: ContextVar[BadLines | None] = ContextVar("bad lines", default=None)


@contextlib.contextmanager
def reading(drops: bool) -> Iterator[BadLines]:
    """Counts the lines that cannot be read in what is done inside.

    Raises:
      UserError: there are any, and they are not left out.
    """
    bad = BadLines(drops)
    token = _current.set(bad)
    try:
        yield bad
    except UserError:
        bad.refuse()  # the other error may be of the lines that are missing
        raise
    finally:
        _current.reset(token)
    bad.refuse()


def bad_line(path: Path | str, number: int, problem: str, detail: str = "", subject: str = "") -> None:
    """Says that a line of a corpus cannot be read. The reader leaves it out and reads on.

    Args:
      path: of the file.
      number: of the line, from 1.
      problem: what is wrong, in words that other such lines share.
      detail: what follows in a message about this line.
      subject: what precedes in it.

    Raises:
      UserError: nobody counts such lines.
    """
    bad, message = _current.get(), f"{subject}{problem}{detail}"
    if bad is None:
        raise UserError(f"{path}, {unit_of(path)} {number}: {message}")
    bad.add(path, number, problem, message)


def bad_line_of(path: Path, number: int, error: UserError) -> None:
    """As `bad_line`, of an error whose message ends with the kind, after a colon, and may begin with the
    line."""
    subject, colon, problem = str(error).removeprefix(f"{path}, line {number}: ").rpartition(": ")
    bad_line(path, number, problem, subject=subject + colon)


class Damaged:
    """Files of a list that cannot be read. A corpus that is prepared without them has a note of them, so that
    it is refused where they are not left out, and they are named whenever it is opened."""

    NOTE = "left_out.json"

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], list[str]] = {}

    def __contains__(self, line: tuple[Path, int]) -> bool:
        return (str(line[0]), line[1]) in self._lines

    def add(self, path: Path, number: int, error: UserError) -> None:
        """Says `bad_line` of a file.

        Args:
          path: of the list.
          number: of its line, from 1.
          error: its message is the name of the file, a colon and what is wrong, perhaps after the line.
        """
        file, _, wrong = str(error).removeprefix(f"{path}, line {number}: ").partition(": ")
        problem, colon, detail = wrong.partition(": ")
        words = [problem, colon + detail, f"{file}: "] if wrong else [file, "", ""]
        bad_line(path, number, *words)
        self._lines[str(path), number] = words

    def note(self, folder: Path) -> None:
        """Writes the note of a corpus that has just been prepared; of another one, says `bad_line` of what is
        noted."""
        path = folder / self.NOTE
        if self._lines:
            write_whole(path, json.dumps([[*line, *words] for line, words in self._lines.items()]))
        elif path.exists():
            for listed, number, *words in json.loads(read_text(path)):
                bad_line(listed, number, *words)


def refuse_bad_lines() -> None:
    """To be called when all files are read, before anything is made of them. Raises UserError if lines cannot
    be read and are not left out."""
    if bad := _current.get():
        bad.refuse()


def unit_of(path: Path | str) -> str:
    """What the records of a file are numbered by."""
    return "row" if text_suffix(path).lower() in (".parquet", ".arrow") else "line"


def _wrong(unit: str, problem: str, lines: dict[int, str]) -> str:
    """What is wrong with lines of a kind; with an example if they differ."""
    first = min(lines)
    if len(lines) == 1 or lines[first] == problem:
        return lines[first]
    return f"{problem}; {unit} {first}: {lines[first]}"


def named_ranges(unit: str, numbers: list[int], few: int = FEW) -> str:
    """Numbers as "line 3", or as "5 lines (3, 7-9, 12)", of which at most `few` ranges are named."""
    if len(numbers) == 1:
        return f"{unit} {numbers[0]}"
    ranges = list[str]()
    for _, group in itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0]):
        (_, first), *others = group
        ranges.append(f"{first}-{others[-1][1]}" if others else str(first))
    shown = ranges[:few]
    more = f" and {len(ranges) - len(shown):,} more" * (len(shown) < len(ranges))
    return f"{counted(len(numbers), unit)} ({', '.join(shown)}{more})"


NO_TEXT = {
    b"PK\3\4": "it is compressed, and text is read: unpack it, with unzip",
    **dict.fromkeys((b"PAR1", b"ARROW1"), "it is a table, and text is read: name it with --data.train"),
}
"""How files begin that are no text, and what to do."""
LONGEST_LINE = 64 * MiB
NOT_UTF8, CONVERT = "not UTF-8", "convert the file, e.g. with iconv -t UTF-8"
Direction = tuple[str, str]
"""The languages of source and target."""


class Unreadable(NamedTuple):
    """Why a line cannot be read, as `bad_line` says it."""

    kind: str
    detail: str = ""


def read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without line ends (\\n or \\r\\n only) and byte order mark.

    Raises:
      UserError: there is no such file; it is a pipe or a device, which cannot be read twice; or a line is too
        long or not UTF-8 (the message names it).
    """
    for number, line in _lines(path):
        if isinstance(line, Unreadable):
            raise UserError(f"{path}, line {number}: {line.kind}{line.detail}")
        yield line


def numbered_lines(path: Path) -> Iterator[tuple[int, str | None]]:
    """Yields the lines of a corpus as `read_lines`, with their numbers. One that cannot be read is None, if
    `bad_line` does not refuse it."""
    for number, line in _lines(path):
        if isinstance(line, Unreadable):
            bad_line(path, number, line.kind, line.detail)
            yield number, None
        else:
            yield number, line


def readable_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a corpus that can be read, with their numbers."""
    return ((number, line) for number, line in numbered_lines(path) if line is not None)


def _lines(path: Path) -> Iterator[tuple[int, str | Unreadable]]:
    with failing(f"cannot read {path}"), open_regular(plain(Path(path))) as file:
        lines = iter(lambda: file.readline(LONGEST_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST_LINE:
                yield number, Unreadable(f"longer than {LONGEST_LINE // MiB} MiB")
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE)
                continue
            try:
                text = text_of(line, number)
            except UnicodeDecodeError as error:
                if number == 1 and (problem := _kind_of(line)):
                    raise UserError(f"{path}: {problem}") from error
                yield number, Unreadable(NOT_UTF8, f" (byte {error.start + 1} of the line); {CONVERT}")
            else:
                yield number, text


def text_of(line: bytes, number: int) -> str:
    """The text of a line, without its end, nor a byte order mark in line 1. Raises UnicodeDecodeError."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.decode("utf-8-sig" if number == 1 else "utf-8")


def whole_text(content: bytes, name: str) -> str:
    """The text of a file, without a byte order mark, and without lines that cannot be read.

    Args:
      content: of the file.
      name: of the file, for messages.

    Raises:
      UserError: a line is not UTF-8, and `bad_line` refuses it.
    """
    with contextlib.suppress(UnicodeDecodeError):
        return content.decode("utf-8-sig")
    lines = list[str]()
    for number, line in enumerate(content.split(b"\n"), start=1):
        try:
            lines.append(text_of(line, number))
        except UnicodeDecodeError:
            bad_line(name, number, NOT_UTF8, f"; {CONVERT}")
    refuse_bad_lines()
    return "\n".join(lines)


def matching(path: Path, option: str) -> list[Path]:
    """The files that an option names: one, or those whose names a pattern with * ? or [...] matches, in the
    order of their names. Raises UserError if there are none."""
    name = os.fspath(path)
    if address(path) or not glob.has_magic(name) or path.exists():
        return [path]
    # the name of a folder that is there is no pattern
    pattern = os.path.join(glob.escape(str(path.parent)), path.name) if path.parent.is_dir() else name
    names = (os.path.abspath(file) if address(file) else file for file in glob.glob(pattern, recursive=True))
    if files := sorted(map(Path, names)):  # a folder of this machine may have the name of an address
        return files
    raise UserError(f"{option} {name}: no file has such a name")


def _gunzipped(file: IO[bytes]) -> Iterator[bytes]:
    packed = gzip.GzipFile(fileobj=file)
    return iter(lambda: packed.read(MiB), b"")


def _unzstd(file: IO[bytes]) -> Iterator[bytes]:
    import pyarrow  # slow to import, and rarely needed

    try:
        with pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd") as packed:
            yield from iter(lambda: packed.read(MiB), b"")
    except OSError as error:
        if error.strerror:  # not of the content
            raise
        raise EOFError(first_line(error)) from error


def _streams(
    file: IO[bytes], new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
) -> Iterator[bytes]:
    """Yields what streams unpack to, a part at a time. `bz2.open` and `lzma.open` would leave out what
    follows a stream and is none."""
    packed: bytes | None = b""
    while packed is not None:
        stream = new()
        while not stream.eof:
            if stream.needs_input and not (packed := packed or file.read(_PACKED)):
                raise EOFError("it ended before the end of a stream")
            part, packed = stream.decompress(packed, MiB), b""
            yield part
        packed = _after_zeros(file, stream.unused_data)


def _after_zeros(file: IO[bytes], packed: bytes) -> bytes | None:
    """What follows the padding of a stream; None at the end of the file."""
    while not (packed := packed.lstrip(b"\0")):
        if not (packed := file.read(_PACKED)):
            return None
    return packed


_OPENERS: dict[bytes, Callable[[IO[bytes]], Iterator[bytes]]] = {
    b"\x1f\x8b": _gunzipped,
    b"BZh": lambda file: _streams(file, bz2.BZ2Decompressor),
    **dict.fromkeys((b"(\xb5/\xfd", b"P*M\x18"), _unzstd),  # the second as pzstd begins
    b"\xfd7zXZ": lambda file: _streams(file, lambda: lzma.LZMADecompressor(memlimit=1024 * MiB)),
}
_PACKED = 8 * 1024  # bytes that are unpacked at a time; what is left of them is copied once a stream
_MOST_GROWTH = 200  # times its size: text has 2 to 20


def plain(path: Path) -> Path:
    """A text file that can be opened: the path itself, a cached copy of a remote file, or a cached copy of
    what a file has that gzip, bzip2, xz or Zstandard compressed.

    Raises:
      UserError: it cannot be copied, is damaged, or unpacks to more than 200 times its size.
    """
    file = fetched(path)
    with contextlib.ExitStack() as stack:
        try:
            content = stack.enter_context(open_regular(file))
        except OSError:
            return file  # whose reader says what is wrong
        beginning = content.peek(8)
        opener = next((x for start, x in _OPENERS.items() if beginning.startswith(start)), None)
        if opener is None:
            return file
        status = os.fstat(content.fileno())
        key = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}".encode()
        folder = cache_root(None) / "unpacked" / hashlib.blake2b(key, digest_size=8).hexdigest()
        if not (unpacked := folder / file.stem).exists():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_open(unpacked) as copy, _reading_packed(path):
                    _unpack(opener(content), copy, path, status.st_size)
            except OSError as error:
                raise UserError(f"cannot unpack {path} into {folder}: {error.strerror or error}") from error
        return unpacked


def _unpack(parts: Iterator[bytes], copy: IO[bytes], path: Path, size: int) -> None:
    left = _MOST_GROWTH * size + MiB
    for part in parts:
        left -= len(part)
        if left < 0:
            raise UserError(
                f"{path}: it unpacks to more than {_MOST_GROWTH} times its size; unpack it, if you trust it"
            )
        copy.write(part)


@contextlib.contextmanager
def _reading_packed(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: the compressed file is damaged ({error})") from error


def _kind_of(beginning: bytes) -> str:
    """What a file is that is no text, and what to do, by how it begins; empty if that is unknown."""
    for signature, what in NO_TEXT.items():
        if beginning.startswith(signature):
            return what
    return "it is a recording, and text is read: name another file" if SOUND.match(beginning) else ""


def one_line(text: str) -> str:
    """A sentence with its line breaks replaced by spaces, and removed at both ends."""
    return " ".join(re.split(r"[\r\n]+", text.strip("\r\n")))


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yields line i of one file with line i of the other, if both can be read.

    Raises:
      UserError: as `numbered_lines`, or one file is longer than the other.
    """
    lines = itertools.zip_longest(numbered_lines(source), numbered_lines(target))
    for number, (first, second) in enumerate(lines, start=1):
        if first is None or second is None:
            counts = [sum(1 for _ in numbered_lines(path)) for path in (source, target)]
            raise UserError(
                f"{source} has {counted(counts[0], 'line')} and {target} has {counts[1]:,}: line i of one "
                f"must translate line i of the other (line {number} has no partner)"
            )
        (_, source_text), (_, target_text) = first, second
        if source_text is not None and target_text is not None:
            yield source_text, target_text


def read_tsv(path: Path) -> Iterator[Pair]:
    """Yields source and target of lines with one tab.

    Raises:
      UserError: as `read_lines`, or a line does not have exactly one tab (the message names it).
    """
    for _, (source, target) in _columns(path, 2, OF_PAIRS):
        yield source, target


def read_directed(path: Path, directions: Sequence[Direction]) -> Iterator[DirectedPair]:
    """Yields the pairs of a file with four columns: source, target, and their languages.

    Raises:
      UserError: as `read_tsv`, or a line is of another direction than these.
    """
    for number, (source, target, *languages) in _columns(path, 4, "source, target and their languages"):
        if tuple(languages) in directions:
            yield DirectedPair(*visible((source, target)), *languages)
        else:
            bad_line(path, number, f"{brief(':'.join(languages))} is not one of --data.directions")


OF_PAIRS = "source, tab, target"
"""What a line of a file of pairs must be."""


def other_columns(count: int, what: str) -> str:
    """What is wrong with a line of so many columns, which must be something else."""
    return f"{counted(count, 'column')}; each line must be {what}"


def _columns(path: Path, count: int, what: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the columns of each line that has this number of them."""
    for number, line in readable_lines(path):
        columns = line.split("\t")
        if len(columns) == count:
            yield number, columns
        else:
            bad_line(path, number, other_columns(len(columns), what))


def visible(pair: Pair) -> Pair:
    """A pair as it is hashed and stored: lines of invisible characters are empty."""
    return without_invisible(pair[0]), without_invisible(pair[1])
