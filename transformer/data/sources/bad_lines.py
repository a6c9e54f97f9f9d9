"""Lines of corpus files that cannot be read: all are counted, then refused together or left out.

Readers say `bad_line` and read on. What becomes of it is decided by `reading`, which is around all that opens
a corpus, since whole corpora are read by functions that know nothing of the option.
"""

import contextlib
import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from transformer.runtime.errors import UserError, counted

FEW = 20  # ranges of line numbers that a message has


class BadLines:
    """Lines that cannot be read, by file and by what is wrong with them.

    Args:
      drops: whether they are left out rather than refused.
    """

    def __init__(self, drops: bool) -> None:
        self.drops = drops
        self._lines: dict[tuple[str, str], dict[int, str]] = {}
        """Of a file and a kind: the numbers of lines, with details."""

    def add(self, path: Path | str, number: int, kind: str, detail: str = "") -> None:
        """Counts a line, once however often it is read."""
        self._lines.setdefault((str(path), kind), {}).setdefault(number, detail)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def described(self, few: int | None = FEW) -> list[str]:
        """A sentence for each file and kind, with the numbers of the lines.

        Args:
          few: ranges of numbers that are named. None: all.
        """
        return [
            f"{path}, {_named(sorted(lines), few)}: {kind}{_first(lines)}"
            for (path, kind), lines in self._lines.items()
        ]

    def refuse(self) -> None:
        """Raises UserError if there are lines that are not left out."""
        if not self._lines or self.drops:
            return
        first, *more = self.described()
        if len(self) == 1:
            raise UserError(first)
        lines = "\n".join([first, *more])
        raise UserError(
            f"{lines}\n{counted(len(self), 'line')} cannot be read: --data.drop-bad leaves them out"
        )


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


def bad_line(path: Path | str, number: int, kind: str, detail: str = "") -> None:
    """Says that a line of a corpus cannot be read. The reader leaves it out and reads on.

    Args:
      path: of the file.
      number: of the line, from 1.
      kind: what is wrong, in words that other such lines share.
      detail: what follows in a message about this line.

    Raises:
      UserError: nobody counts such lines.
    """
    bad = _current.get()
    if bad is None:
        raise UserError(f"{path}, line {number}: {kind}{detail}")
    bad.add(path, number, kind, detail)


def refuse_bad_lines() -> None:
    """To be called when all files are read, before anything is made of them. Raises UserError if lines cannot
    be read and are not left out."""
    if bad := _current.get():
        bad.refuse()


def _first(lines: dict[int, str]) -> str:
    """The detail of the first line, which is that of all if there is one."""
    number = min(lines)
    detail = lines[number]
    return detail if len(lines) == 1 or not detail else f"{detail} (line {number})"


def _named(numbers: list[int], few: int | None) -> str:
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
