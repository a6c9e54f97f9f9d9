"""Reports errors and signals of a command as one message and an exit status."""

import atexit
import contextlib
import functools
import io
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn, TextIO, cast

from transformer.runtime.errors import Stopped, UserError, shortened
from transformer.runtime.files import discard_further
from transformer.runtime.invocation import program, version
from transformer.runtime.machine import signals_handled
from transformer.runtime.text import printable

USAGE = 2
OUT_OF_MEMORY = (
    "out of memory: reduce the batch size (train.py: --data.batch-tokens; decode.py: --rows, --buckets), "
    "or the size of the model. "
)
_FRAMED = re.compile("[\x1b│╭╰├]")
SOON = 0.05  # seconds
AGAIN = 2.0  # seconds; an exception in a callback of the garbage collector, for example, is lost


_interrupted: list[KeyboardInterrupt] = []  # what ended a command of this process


class _Asked(KeyboardInterrupt):
    """A signal that requests the end, as an exception, so that cleanup code runs."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _silence_late_callbacks() -> None:
    """Suppresses late tracebacks of TensorStore's threads. If one array of a checkpoint cannot be read or
    written, they would print one for each other array, even at exit."""
    tell, tell_lost = sys.excepthook, sys.unraisablehook

    def tell_others(cls: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if str(error) != "Event loop is closed":
            tell(cls, error, trace)

    def tell_other_lost(lost: "sys.UnraisableHookArgs") -> None:
        if str(lost.exc_value) != "Event loop is closed":
            tell_lost(lost)

    sys.excepthook, sys.unraisablehook = tell_others, tell_other_lost


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported, which would report the exception as its own."""
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGINT raise `_Asked`, repeatedly in case it is lost."""
    interrupts: list[_Asked] = []
    tell = sys.unraisablehook

    def tell_others(lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, _Asked):
            tell(lost)

    def ask(number: int, frame: FrameType | None) -> None:
        interrupts.append(_Asked(number))
        importing = _importing(frame)
        signal.setitimer(signal.ITIMER_REAL, SOON if importing else AGAIN)
        if not importing:
            raise interrupts[0]  # the same one, with its notes

    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGALRM
    heard = (number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)  # SIGINT is
    sys.unraisablehook = tell_others
    with signals_handled(ask, *heard):
        try:
            yield
        finally:
            sys.unraisablehook = tell
            if interrupts:
                signal.setitimer(signal.ITIMER_REAL, 0)


def _open_standard_streams() -> None:
    """Opens closed standard streams (`<&-`). Otherwise files opened later would get their descriptors, and
    the output of libraries."""
    for number, flags in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    for stream in (sys.stdout, sys.stderr):
        # file names may contain any text, which a terminal's encoding may lack
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _PrintableLog(logging.Formatter):
    """Warnings may name what strangers wrote, such as files."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


_LOG = logging.StreamHandler()
_LOG.setFormatter(_PrintableLog())


def wrapped_help(text: str) -> str:
    """A help text whose lines fit in the terminal. Those with colours or frames do so already."""
    from transformer.runtime.console import terminal_width, wrapped  # not a part of the standard library

    width = terminal_width()
    return "\n".join(line if _FRAMED.search(line) else wrapped(line, width) for line in text.split("\n"))


class _PrintableStream:
    """A stream of help: wraps long lines and escapes control characters, except the colours of a
    terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colour = re.compile(r"(\x1b\[[\d;]*m)" if stream.isatty() else "(?!)")

    def write(self, text: str) -> int:
        spans = self._colour.split(wrapped_help(text))  # every second one is a colour
        return self._stream.write("".join(span if i % 2 else printable(span) for i, span in enumerate(spans)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def printable_help() -> Iterator[None]:
    """While a command line is parsed, whose help has the options of a run, perhaps a stranger's."""
    with contextlib.ExitStack() as until:
        if sys.stdout:
            until.enter_context(contextlib.redirect_stdout(cast(TextIO, _PrintableStream(sys.stdout))))
        if sys.stderr:
            until.enter_context(contextlib.redirect_stderr(cast(TextIO, _PrintableStream(sys.stderr))))
        yield


def _tell(program: str, message: object) -> None:
    """A message on standard error, if anyone reads it."""
    with contextlib.suppress(OSError):
        text = f"{program}: {printable(message)}"
        if sys.stderr.isatty():
            from transformer.runtime.console import terminal_width, wrapped

            text = wrapped(text, terminal_width())
        print(text, file=sys.stderr, flush=True)


Words = Callable[[list[str]], None]
"""A function of the words of a command line."""


def named_command(name: str) -> Callable[[Words], Callable[[], int]]:
    """Makes the command of this name in `COMMANDS` of a function: it runs it by `run_command`."""
    return lambda function: functools.wraps(function)(lambda: run_command(program(name), function))


def run_command(program: str, command: Callable[[list[str]], None]) -> int:
    """Runs a command and returns its exit status. An error that the user can fix becomes one message and
    status 2. Handles --version. The process is expected to end then: after an interrupt, further SIGINTs
    are ignored."""
    _open_standard_streams()
    _silence_late_callbacks()
    _LOG.stream = sys.stderr  # the present one: a process may run several commands
    logging.basicConfig(handlers=[_LOG])  # before a library chooses another format
    try:
        with _terminable():
            if sys.argv[1:] == ["--version"]:
                print(version())
            else:
                command(sys.argv[1:])
            if sys.stdout is not None:
                sys.stdout.flush()
    except UserError as error:
        _tell(program, error)
        return USAGE
    except Stopped as stopped:
        with contextlib.suppress(OSError):
            print(printable(stopped), flush=True)
        return 128 + stopped.signal if stopped.signal else 0  # 0: its time was over, as it was asked to
    except KeyboardInterrupt as asked:
        _interrupted.append(asked)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, lambda *_: None)  # impatience must not disturb what ends the program
        _tell(program, ". ".join(("interrupted", *getattr(asked, "__notes__", ()))))
        return 128 + (asked.number if isinstance(asked, _Asked) else signal.SIGINT)
    except BrokenPipeError:  # the reader of our output has gone
        _discard_output()
        return 0
    except OSError as error:  # of the file system: a full disk, a name that is too long
        where = error.filename or "standard output, or a file"
        _tell(program, shortened(f"{error.strerror or error}: {where}"))
        _discard_output()
        return USAGE
    except Exception as error:
        if not _out_of_memory(error):
            raise
        _tell(program, OUT_OF_MEMORY + str(error).partition("\n")[0])
        return USAGE
    return 0


def leave(status: int) -> NoReturn:
    """Ends the process of a command with its exit status.

    After an interrupt, programs may still be compiled in threads of JAX, which crash when its client is
    destroyed (jaxlib 0.10.2). So Python waits for its own threads as always, and ends without the rest.
    """
    if _interrupted and "jax" in sys.modules:
        import jax

        if not jax.distributed.is_initialized():  # whose end tells the other processes
            atexit.register(_end, status)
    raise SystemExit(status)


def _end(status: int) -> NoReturn:
    """Ends at once, with what is written and without the processes that were started."""
    if "multiprocessing" in sys.modules:
        import multiprocessing.util

        for process in multiprocessing.active_children():
            process.terminate()
        # semaphores, which its tracker would report as leaked
        multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]  # not in the stubs
    _discard_output()
    os._exit(status)


def _discard_output() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                discard_further(stream)


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or (
        type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
        and any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory"))
    )
