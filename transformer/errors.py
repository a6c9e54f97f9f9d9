"""The exceptions that are meant for people: what the user can fix, and what the user asked for."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: the message names the file, line or option at fault and the remedy.

    The commands print the message alone and exit with status 2; library callers catch it.
    """


class Stopped(Exception):
    """Training was asked to stop and has saved; the message says how to go on."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def nearest(word: str, words: Iterable[str]) -> str:
    """A question whether a similar word was meant, or nothing."""
    found = difflib.get_close_matches(word, list(words), n=3, cutoff=0.6)
    return f": did you mean {' or '.join(found)}?" if found else ""
