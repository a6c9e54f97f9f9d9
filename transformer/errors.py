"""The exceptions that are meant for people: what the user can fix, and what the user asked for."""


class UserError(Exception):
    """Bad input: the message names the file, line or option at fault and the remedy.

    The commands print the message alone and exit with status 2; library callers catch it.
    """


class Stopped(Exception):
    """Training was asked to stop and has saved; the message says how to go on."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal
