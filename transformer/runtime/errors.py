"""The exceptions whose messages are for the user, and how messages call a command."""

import difflib
import re
from collections.abc import Iterable

from transformer.runtime.text import printable


class UserError(Exception):
    """Bad input: the message names the file, line or option at fault and the remedy.

    The commands print only the message and exit with status 2; library callers catch it. Names and paths that
    are longer than any file's are shortened, and control characters of somebody's file are escaped: a log is
    read at a terminal, too.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(shortened(message)))


class Stopped(Exception):
    """A command ends early, and all is saved; the message says how to resume, if anything is left.

    Args:
      message: for the user.
      signal: that requested it. 0: the time that it was given is over, or there is nothing to do.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


_LONG = re.compile(r"""(?<![^\s:'"])[^\s:'"]{4097,}|(?<![^\s/:'"])[^\s/:'"]{256,}""")
"""What is longer than a path or a name can be. Each begins where one before it ends: a text is read once."""
_WORD = 200
"""Characters of the longest word for which similar ones are looked for."""


def shortened(message: str) -> str:
    """A message in which what is too long for the name of a file ends with "..."."""
    return _LONG.sub(lambda match: f"{match[0][:60]}...", message)


def first_line(error: Exception) -> str:
    """What an error says, without what follows its first line, and without names of temporary files."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 line, 2,000 lines."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def abbreviated(text: str) -> str:
    """A text for messages, shortened to 60 characters."""
    return text if len(text) <= 60 else f"{text[:60]}..."


def nearest(word: str, words: Iterable[str], similarity: float = 0.6) -> str:
    """Suggests similar words as ": did you mean ...?", or is empty if there are none. `similarity` is the
    least that counts, up to 1."""
    if len(word) > _WORD:
        return ""
    similar = difflib.get_close_matches(word, list(words), n=3, cutoff=similarity)
    return f": did you mean {' or '.join(similar)}?" if similar else ""
