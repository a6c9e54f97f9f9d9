"""Errors as their users should meet them."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from transformer.errors import Stopped, UserError

USAGE = 2


class _Asked(KeyboardInterrupt):
    """SIGTERM, as an exception, so that what is open is put in order."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def ask(*_: Any) -> None:
        raise _Asked

    try:
        before = signal.signal(signal.SIGTERM, ask)
    except ValueError:  # not the main thread: somebody else's program handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def guarded(program: str, command: Callable[[list[str]], None]) -> int:
    """Runs a command; what its user can mend becomes one message and exit status 2."""
    try:
        with _terminable():
            command(sys.argv[1:])
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE
    except Stopped as stopped:
        print(stopped)
        return 128 + stopped.signal
    except KeyboardInterrupt as asked:
        print(f"{program}: interrupted", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(asked, _Asked) else signal.SIGINT)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0
