"""What the terminal showed of a training run, with times: log.txt in its directory.

It is for people who look for what went wrong, also on another machine: messages, progress, scores, samples,
warnings, and the error that ended it. Nothing reads it, and if it cannot be written the training continues.
"""

import contextlib
import logging
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from transformer.runs.checkpoints import not_written
from transformer.runs.run import Run
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import Stopped, UserError, version
from transformer.runtime.files import MiB, append_flags, open_regular, write_whole
from transformer.runtime.hosts import is_main_process
from transformer.runtime.text import printable

log = logging.getLogger("transformer")
NAME = "log.txt"
MOST = 4 * MiB  # bytes after which only the error that ends the training is added
KEPT = 2 * MiB  # of earlier starts: the last bytes
LONGEST_BLOCK = 64 * 1024  # characters; the middle of a longer one, such as a traceback, is left out
TIME = "%Y-%m-%d %H:%M:%S"
FULL = "(The log is full: only the error that ends the training, if any, will follow.)"
REMOVED = "(Earlier lines were removed.)\n"


@contextlib.contextmanager
def transcribed(run: Run, watch: ProgressReporter) -> Iterator[None]:
    """Copies to the log of a run what is shown in this context, warnings, and the error that ends it. Only
    the main process writes. An earlier start's log is continued after a separating line."""
    if not is_main_process():
        yield
        return
    transcript = Transcript(run.path / NAME, run.name)
    transcript.begin()
    with watch.copied(transcript.write), _warnings_copied(transcript):
        try:
            yield
        except BaseException as error:
            transcript.write(time.time(), _ended_by(error, run.name), is_last=True)
            raise


class Transcript:
    """The log, one block of lines after the other. Each write opens it anew, so that signal handlers and
    other threads may write too.

    Args:
      path: the file.
      name: the run, for the warning if it cannot be written.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._is_usable = True
        self._is_full = self._is_warned = False

    def begin(self) -> None:
        """Writes the separating line, with the versions, after the end of what is there. The file is
        replaced, so that one which has another name elsewhere (a hard link) stays as it is there."""
        line = f"=== {time.strftime(f'{TIME} %z')}, {version()}, process {os.getpid()} ===\n"
        try:
            earlier = self._earlier()
            write_whole(self._path, earlier + (b"\n" if earlier else b"") + line.encode())
        except OSError as error:
            self._is_usable = False
            self._warn(error)

    def _earlier(self) -> bytes:
        """The last lines of earlier starts."""
        try:
            with open_regular(self._path) as file:
                size = os.fstat(file.fileno()).st_size
                if size > KEPT:
                    file.seek(size - KEPT)
                    file.readline(KEPT)
                lines = file.read(KEPT)
        except FileNotFoundError:
            return b""
        if lines and not lines.endswith(b"\n"):  # a kill cut it off
            lines += b"\n"
        return lines if size <= KEPT else REMOVED.encode() + lines

    def write(self, moment: float, text: str, is_last: bool = False) -> None:
        """Writes lines with their time; the first has it, and the others are indented.

        Args:
          moment: seconds since 1970.
          text: the lines. Control characters are escaped.
          is_last: to be written also if the log is full.
        """
        if not self._is_usable or (self._is_full and not is_last):
            return
        try:
            with open(self._path, "ab", buffering=0, opener=append_flags) as file:
                if file.tell() > MOST and not is_last:
                    self._is_full = True
                    text = FULL
                file.write(_block(moment, text).encode(errors="backslashreplace"))
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._is_warned:
            self._is_warned = True  # before the warning, which is copied here
            log.warning("%s/%s cannot be written: %s", self._name, NAME, error.strerror or error)


def _block(moment: float, text: str) -> str:
    if len(text) > LONGEST_BLOCK:
        half = LONGEST_BLOCK // 2
        text = f"{text[:half]}\n(...)\n{text[-half:]}"
    when = time.strftime(TIME, time.localtime(moment))
    first, *more = printable(text).rstrip().split("\n")
    return "\n".join([f"{when}  {first}", *(f"{'':{len(when)}}  {line}".rstrip() for line in more)]) + "\n"


def _ended_by(error: BaseException, name: str) -> str:
    """What ended the training, as the commands report it; the traceback of an error that they do not."""
    match error:
        case UserError():
            return f"Error: {error}"
        case Stopped():
            return str(error)
        case KeyboardInterrupt():
            return ". ".join(("Interrupted", *getattr(error, "__notes__", ())))
        case BrokenPipeError():
            return "Ended: the reader of the output has gone"
        case OSError():
            return f"Error: {not_written(name, error)}"
        case _:
            return "".join(traceback.format_exception(error))


class _CopyHandler(logging.Handler):
    def __init__(self, transcript: Transcript) -> None:
        super().__init__(logging.WARNING)
        self._transcript = transcript

    def emit(self, record: logging.LogRecord) -> None:
        self._transcript.write(record.created, f"Warning: {self.format(record)}")


@contextlib.contextmanager
def _warnings_copied(transcript: Transcript) -> Iterator[None]:
    """Copies what is logged as a warning or worse. Where no handler shows that, it is shown as before."""
    root = logging.getLogger()
    handlers: list[logging.Handler] = [_CopyHandler(transcript)]
    if logging.lastResort and not root.handlers:
        handlers.append(logging.lastResort)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
