"""The output of a command: files appear only when complete, and long jobs can be resumed."""

import contextlib
import fcntl
import glob
import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from transformer.config.corpus import PACKED
from transformer.config.records import is_recording
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import Stopped, UserError, counted
from transformer.runtime.files import address, append_flags, brief, display_path, is_device, temp_sibling

OF_TRAINING = "config.json", "corpus", "lock", "log.txt", "metrics.jsonl", "results.json"
T = TypeVar("T")
OF_REPORT = "exhibits.json", "overview.json", "report.html"
OF_TASK = "brackets.json", "classes.json", "labels.json", "scale.json"
TOKENIZERS = "source.model", "target.model", "text.model"
LEARNED_LATER = "confidence.json", "limits.json", "shortlist.bin"
RUN_FILES = {*OF_TRAINING, *OF_REPORT, *OF_TASK, *TOKENIZERS, *LEARNED_LATER}
"""Files of a run directory."""
JOB = "user.transformer.job"
"""The attribute of a finished file that tells which job made it, where the file system has attributes."""
LONGEST_NAME = 240  # bytes; systems allow 255, and what is being written has a longer one


def check_output(option: str, path: Path, files: Iterable[tuple[str, Path]]) -> None:
    """Checks the name of an output before the work for it begins.

    Args:
      option: the option that names it.
      path: a file that text will be written to.
      files: options and the files that they name.

    Raises:
      UserError: it cannot be written, or is one of the other files, which would be lost.
    """
    if address(path):
        raise UserError(f"{option} {display_path(path)}: write to a file here, and copy it there")
    suffix = path.suffix.lower()
    for is_unfit, media_type in (
        (is_recording(path), "recording"),
        (suffix == ".png", "picture"),
        (suffix in (*PACKED, ".parquet", ".arrow"), "compressed file or a table"),
    ):
        if is_unfit:
            raise UserError(f"{option} {path}: text is written to it, and its name is that of a {media_type}")
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise UserError(f"{option} {brief(path.name)}: a name of a file may have {LONGEST_NAME} bytes")
    if is_device(path):
        return
    if path.is_dir() or not path.name:
        raise UserError(f"{option} {path} is a folder: name a file")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UserError(f"cannot write {option} {path}: its folder is missing or read-only")
    check_replaced(option, path, files)


def check_replaced(option: str, path: Path, files: Iterable[tuple[str, Path]]) -> None:
    """Raises UserError if writing a file would replace one of the others, or one of a run directory.
    Arguments as of `check_output`."""
    if path.name in RUN_FILES and path.exists() and (path.absolute().parent / "config.json").is_file():
        raise UserError(f"{option} {path} is a file of a run, which would be lost: choose another name")
    for source, file in files:
        is_same = file.exists() and path.exists() and file.samefile(path)
        if is_same or os.path.realpath(file) == os.path.realpath(path):
            raise UserError(f"{option} {path} is the file of {source}, which would be lost")


def resumable_output(
    path: Path | None,
    job: str,
    *,
    resume: bool,
    needs: str,
    again: bool = False,
    mark: str = "",
    **options: Any,
) -> "Output":
    """The output of a long job: a `LongOutput` if it is a file.

    Args:
      path: None: standard output.
      job: identifies the input, the model and the options. Empty: the input can be read only once.
      resume: continue what is unfinished.
      needs: the options that --resume needs.
      again: whether a finished output is made again, for its scores.
      mark: as of `LongOutput`. Empty: the job.
      options: further arguments of `LongOutput`.

    Raises:
      Stopped: it is to be resumed, and finished.
      UserError: it cannot be resumed.
    """
    if resume and path is not None and not again:
        with contextlib.suppress(OSError):  # a file system without attributes: the work is done again
            if os.getxattr(path, JOB) == _digest(mark or job).encode():
                raise Stopped(f"{display_path(path)} is finished: there is nothing to resume", 0)
    if path is None or not job or is_device(path):
        if resume:
            raise UserError(f"--resume needs {needs}: only files can be resumed")
        return Output(path)
    return LongOutput(path, job, resume=resume, mark=mark, **options)


def _digest(job: str) -> str:
    return hashlib.blake2b(job.encode(), digest_size=6).hexdigest()


class Output:
    """Standard output, a device or a pipe; or a file that appears only when it is complete.

    Args:
      path: None: standard output.
      option: the option that names it.

    Raises:
      UserError: on entering or leaving, if it cannot be written.
    """

    done = 0
    has_discarded = False

    def results(self, parse: Callable[[str], T]) -> list[T]:
        """What an earlier process has written of it."""
        return []

    def discard(self) -> None:
        """Discards what was written, if it can be."""

    def __init__(self, path: Path | None, option: str = "--output") -> None:
        self._option = option
        self._direct = path is None or is_device(path)
        # for a link, its target
        self._path = path if path is None or self._direct else Path(os.path.realpath(path))

    def __enter__(self) -> TextIO:
        if self._path is None:
            if sys.stdout is None:
                raise UserError(f"standard output is closed: name a file with {self._option}")
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
            self._file: TextIO = sys.stdout
            return self._file
        try:
            if self._direct:
                self._file = open(self._path, "w", encoding="utf-8", newline="\n")
            else:
                self._file = self._open()
        except OSError as error:
            raise self._not_written(error) from error
        return self._file

    def _open(self) -> TextIO:
        assert self._path
        self._partial = temp_sibling(self._path)
        return open(self._partial, "x", encoding="utf-8", newline="\n")

    def __exit__(self, error_class: object, error: BaseException | None, _: object) -> None:
        try:
            self._file.flush()
        except OSError as trouble:
            error = error or trouble
        try:
            if not self._direct:
                self._settle(complete=error is None)
        except OSError as trouble:
            error = error or trouble
        if self._path:  # only now: closing releases the lock, and others could continue the partial file
            with contextlib.suppress(OSError):
                self._file.close()
        if isinstance(error, BrokenPipeError):
            raise error
        if isinstance(error, OSError):
            raise self._not_written(error) from error

    def _settle(self, complete: bool) -> None:
        if not complete:
            self._partial.unlink(missing_ok=True)
            return
        assert self._path
        with contextlib.suppress(OSError):  # keep the old permissions
            self._partial.chmod(self._path.stat().st_mode)
        os.replace(self._partial, self._path)

    def _not_written(self, error: OSError) -> UserError:
        name = f"{self._option} {self._path}" if self._path else "standard output"
        return UserError(f"cannot write {name}: {error.strerror}")


class LongOutput(Output):
    """A file that can be resumed: if the work is interrupted, its lines remain in a partial file beside it.

    Args:
      path: a file.
      job: identifies the input, the model and the options.
      resume: continue a partial file; otherwise start again.
      lines_per_result: of the partial file.
      convert: makes the text of the file from the lines of the partial file. None: they are its text.
      mark: identifies the finished file: the job, and what else it depends on.

    Attributes:
      done: number of results that the partial file already had.
      is_unfinished: whether a partial file remained on leaving.
      has_discarded: whether a partial file was discarded on entering.
    """

    def __init__(
        self,
        path: Path,
        job: str,
        *,
        resume: bool,
        lines_per_result: int = 1,
        convert: Callable[[Iterable[str]], Iterable[str]] | None = None,
        mark: str = "",
    ) -> None:
        super().__init__(path)
        assert self._path
        self._partial = self._path.with_name(f".{self._path.name}.{_digest(job)}.partial")
        self._mark = _digest(mark or job).encode()
        self._resume = resume
        self._lines_per_result = lines_per_result
        self._convert = convert
        self.is_unfinished = False

    def _open(self) -> TextIO:
        file = self._locked()
        self.has_discarded = not self._resume and file.tell() > 0
        file.truncate(self._whole() if self._resume else 0)
        return file

    def _locked(self) -> TextIO:
        """Opens the partial file, and locks it against other processes."""
        while True:
            # line-buffered, so that a killed process leaves complete lines
            file = open(  # noqa: SIM115 (left in __exit__)
                self._partial, "a", 1, encoding="utf-8", newline="\n", opener=append_flags
            )
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.close()
                raise UserError(f"{self._option} {self._path}: another process is writing it") from error
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.lstat(self._partial)):
                    return file
            file.close()  # another process has just completed it, and this is its finished output

    @property
    def path(self) -> Path:
        """The partial file."""
        return self._partial

    def lines(self) -> Iterator[str]:
        """The first line of each result so far."""
        with open(self._partial, encoding="utf-8", newline="\n") as file:
            for line in itertools.islice(file, 0, None, self._lines_per_result):
                yield line.removesuffix("\n")

    def results(self, parse: Callable[[str], T]) -> list[T]:
        """What an earlier process has written.

        Args:
          parse: (the first line of a result) -> what it stands for; raises ValueError, LookupError or
            TypeError if it is damaged.

        Raises:
          UserError: another program changed the file.
        """
        try:
            return list(map(parse, self.lines()))
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{self.path} is damaged: run the command without --resume") from error

    @property
    def count(self) -> int:
        """How many results the partial file has."""
        with open(self._partial, "rb") as file:  # which may be damaged
            return sum(1 for _ in itertools.islice(file, 0, None, self._lines_per_result))

    def _whole(self) -> int:
        """The size of the complete results in bytes. Sets `done`."""
        size = 0
        with open(self._partial, "rb") as file:
            while (
                len(lines := list(itertools.islice(file, self._lines_per_result))) == self._lines_per_result
            ):
                if not lines[-1].endswith(b"\n"):
                    break
                size += sum(map(len, lines))
                self.done += 1
        return size

    def discard(self) -> None:
        """Discards what was written."""
        os.truncate(self._partial, 0)

    def _settle(self, complete: bool) -> None:
        self.is_unfinished = not complete and self._partial.stat().st_size > 0
        if complete and self._convert:
            with open(whole := temp_sibling(self._partial), "x", encoding="utf-8", newline="\n") as file:
                file.writelines(self._convert(self.lines()))
            os.replace(whole, self._partial)
        if complete:
            with contextlib.suppress(OSError):
                os.setxattr(self._partial, JOB, self._mark)
        if not self.is_unfinished:
            super()._settle(complete)
        if complete:
            self._tidy()

    def _tidy(self) -> None:
        """Removes what other jobs left of this output, unless one still runs."""
        assert self._path
        for partial in self._path.parent.glob(f".{glob.escape(self._path.name)}.*.partial"):
            with contextlib.suppress(OSError), open(partial, opener=append_flags) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                partial.unlink()


@contextlib.contextmanager
def resumable(output: Output, watch: ProgressReporter, noun: str) -> Iterator[None]:
    """While an output is written: if that ends early and --resume can continue it, says so; an interrupt has
    it as a note, for the message of the command.

    Args:
      output: entered and left inside.
      watch: writes the message.
      noun: what a result is, such as "line".
    """
    try:
        yield
    except BaseException as error:
        if isinstance(output, LongOutput) and output.is_unfinished:
            note = (
                f"the unfinished output, {counted(output.count, noun)}, is saved: to continue it, add "
                "--resume to the same command (with other input or options it starts again)"
            )
            error.add_note(note) if isinstance(error, KeyboardInterrupt) else watch.message(note)
        raise
