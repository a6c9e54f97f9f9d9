"""Lines of corpus files that cannot be read: all are counted, then refused together or left out.

Readers say `bad_line` and read on. What becomes of it is decided by `reading`, which is around all that opens
a corpus, since whole corpora are read by functions that know nothing of the option.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import read_text, write_whole

FEW = 20  # kinds, and ranges of line numbers of each, that a message has


class BadLines:
    """Lines that cannot be read, by file and by what is wrong with them.

    Args:
      drops: whether they are left out rather than refused.
    """

    def __init__(self, drops: bool) -> None:
        self.drops = drops
        self._lines: dict[tuple[str, str], dict[int, str]] = {}
        """Of a file and a kind: the numbers of lines, with what is wrong there."""

    def add(self, path: Path | str, number: int, kind: str, message: str) -> None:
        """Counts a line, once however often it is read."""
        self._lines.setdefault((str(path), kind), {}).setdefault(number, message)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def described(self, few: int = FEW) -> list[str]:
        """A sentence for each file and kind, with the numbers of the lines.

        Args:
          few: the most kinds, and the most numbers of each, that are named.
        """
        named = [
            f"{path}, {_named(sorted(lines), few)}: {_wrong(kind, lines)}"
            for (path, kind), lines in itertools.islice(self._lines.items(), few)
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


def bad_line(path: Path | str, number: int, kind: str, detail: str = "", subject: str = "") -> None:
    """Says that a line of a corpus cannot be read. The reader leaves it out and reads on.

    Args:
      path: of the file.
      number: of the line, from 1.
      kind: what is wrong, in words that other such lines share.
      detail: what follows in a message about this line.
      subject: what precedes in it.

    Raises:
      UserError: nobody counts such lines.
    """
    bad, message = _current.get(), f"{subject}{kind}{detail}"
    if bad is None:
        raise UserError(f"{path}, line {number}: {message}")
    bad.add(path, number, kind, message)


def bad_line_of(path: Path, number: int, error: UserError) -> None:
    """As `bad_line`, of an error whose message ends with the kind, after a colon, and may begin with the
    line."""
    subject, colon, kind = str(error).removeprefix(f"{path}, line {number}: ").rpartition(": ")
    bad_line(path, number, kind, subject=subject + colon)


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
        kind, colon, detail = wrong.partition(": ")
        words = [kind, colon + detail, f"{file}: "] if wrong else [file, "", ""]
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


def _wrong(kind: str, lines: dict[int, str]) -> str:
    """What is wrong with lines of a kind; with an example if they differ."""
    first = min(lines)
    if len(lines) == 1 or lines[first] == kind:
        return lines[first]
    return f"{kind}; line {first}: {lines[first]}"


def _named(numbers: list[int], few: int) -> str:
    """Numbers as line 3, or as lines 3, 7-9 and 12."""
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    ranges = list[str]()
    for _, group in itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0]):
        (_, first), *others = group
        ranges.append(f"{first}-{others[-1][1]}" if others else str(first))
    shown = ranges[:few]
    more = f" and {len(ranges) - len(shown):,} more" * (len(shown) < len(ranges))
    return f"{counted(len(numbers), 'line')} ({', '.join(shown)}{more})"
