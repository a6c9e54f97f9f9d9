"""The exceptions whose messages are for the user."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: the message names the file, line or option at fault and the remedy.

    The commands print only the message and exit with status 2; library callers catch it.
    """


class Stopped(Exception):
    """Training stopped on request and saved a checkpoint; the message says how to resume."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def nearest(word: str, words: Iterable[str]) -> str:
    """Suggests similar words as ": did you mean ...?", or is empty if there are none."""
    found = difflib.get_close_matches(word, list(words), n=3, cutoff=0.6)
    return f": did you mean {' or '.join(found)}?" if found else ""
