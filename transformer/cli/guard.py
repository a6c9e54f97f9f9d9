"""Errors as their users should meet them."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from transformer.errors import Stopped, UserError

USAGE = 2
AGAIN = 2.0  # seconds; an exception that is raised in a callback of the garbage collector, say, is lost


class _Asked(KeyboardInterrupt):
    """A signal that asks to end, as an exception, so that what is open is put in order."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def _without_late_callbacks() -> Iterator[None]:
    """Where one array of a checkpoint cannot be written, what TensorStore's threads have to say of the others
    comes too late, and would be printed: a traceback for each."""
    tell = sys.excepthook

    def tell_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if str(error) != "Event loop is closed":
            tell(kind, error, trace)

    sys.excepthook = tell_others
    try:
        yield
    finally:
        sys.excepthook = tell


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGINT raise `_Asked`, again and again until it arrives."""
    asked: list[int] = []
    tell = sys.unraisablehook

    def tell_others(lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, _Asked):
            tell(lost)

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        raise _Asked(asked[0])

    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGINT is in the background
                before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread: somebody else's program handles signals
        pass
    sys.unraisablehook = tell_others
    try:
        with _without_late_callbacks():
            yield
    finally:
        sys.unraisablehook = tell
        if before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


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
        return 128 + (asked.number if isinstance(asked, _Asked) else signal.SIGINT)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0
