"""Reads lines of text, and pairs of them, from files."""

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.config.recordings import SOUND
from transformer.data.remote import fetched
from transformer.data.sources.bad_lines import bad_line, refuse_bad_lines
from transformer.data.store import DirectedPair, Pair
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import MiB, brief, open_regular
from transformer.runtime.text import without_invisible

COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"(\xb5/\xfd": "unzstd",
    b"PK\3\4": "unzip",
}
"""How compressed files begin, and what unpacks them."""
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
    try:
        with open_regular(fetched(Path(path))) as file:
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
                    if number == 1 and (kind := _kind_of(line)):
                        raise UserError(f"{path}: {kind}") from error
                    yield number, Unreadable(NOT_UTF8, f" (byte {error.start + 1} of the line); {CONVERT}")
                else:
                    yield number, text
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


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


def _kind_of(beginning: bytes) -> str:
    """What a file is that is no text, and what to do, by how it begins; empty if that is unknown."""
    for signature, program in COMPRESSED.items():
        if beginning.startswith(signature):
            return f"it is compressed, and text is read: unpack it, with {program}"
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
    for _, (source, target) in _columns(path, 2, "source, tab, target"):
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


def _columns(path: Path, count: int, what: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the columns of each line that has this number of them."""
    for number, line in readable_lines(path):
        columns = line.split("\t")
        if len(columns) == count:
            yield number, columns
        else:
            bad_line(path, number, f"{counted(len(columns), 'column')}; each line must be {what}")


def visible(pair: Pair) -> Pair:
    """A pair as it is hashed and stored: lines of invisible characters are empty."""
    return without_invisible(pair[0]), without_invisible(pair[1])
