"""What a training run logs: metrics.jsonl, TensorBoard, what its time is spent on, and what the terminal
showed."""

import contextlib
import json
import logging
import math
import os
import platform
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.data.sequences import side_lengths, sides
from transformer.runs.checkpoints import not_written
from transformer.runs.log import SPENT, spent_of
from transformer.runs.run import Run
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import Stopped, UserError
from transformer.runtime.files import Json, MiB, append_flags, atomic_open, open_regular, write_whole
from transformer.runtime.hosts import gathered, is_main_process
from transformer.runtime.invocation import version
from transformer.runtime.machine import without
from transformer.runtime.text import printable
from transformer.tasks.preparation import TrainingData

with without("torch"):  # which tensorboardX would import, and does not need for this
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter
    from tensorboardX.summary import scalar

# What the terminal showed of a training run, with times: log.txt in its directory.


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


# What the time of a run is spent on.


PREPARATION, TRAINING, WAITING, EVALUATION = SPENT


class Clock:
    """Seconds of a run: preparation (the corpus, its plan, loading a checkpoint), training (updates and
    their compilation), waiting for the next batch, and evaluation (of checkpoints, which it saves, and the
    test). It starts with the preparation.

    Attributes:
      began: when it was made, by `time.monotonic`.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(SPENT, 0.0)
        self.began = time.monotonic()
        self._phase, self._since = PREPARATION, self.began

    def enter(self, phase: str) -> None:
        """Starts to count for another phase."""
        now = time.monotonic()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Counts for another phase in this context."""
        before = self._phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def add(self, earlier: Mapping[str, float]) -> None:
        """Adds what was spent before the checkpoint that is resumed."""
        for phase, seconds in earlier.items():
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def seconds(self, phase: str) -> float:
        """Seconds of a phase, up to now. Any thread may ask."""
        return self._seconds[phase] + (phase == self._phase) * (time.monotonic() - self._since)

    def spent(self) -> dict[str, float]:
        """Seconds by phase, up to now."""
        self.enter(self._phase)
        return {phase: round(seconds, 1) for phase, seconds in self._seconds.items()}


# TensorBoard event files, written synchronously.


class Events:
    """One event file.

    Args:
      folder: for the file; created if missing.

    Raises:
      OSError: it cannot be written. All methods raise this too.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordWriter(str(folder / name))
        self._write(file_version="brain.Event:2")

    def _write(self, **content: Any) -> None:
        self._file.write(Event(wall_time=time.time(), **content).SerializeToString())

    def add(self, step: int, values: dict[str, float]) -> None:
        """Writes the values of a step, by name."""
        for name, value in values.items():
            self._write(step=step, summary=scalar(name, value))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


Track = Callable[[Json], None]
"""Given a record: `kind` ("training" or "evaluation"), `step`, and numbers by name."""


def untracked(record: Json) -> None:
    """Tracks nothing."""


class Journal:
    """The log of a run, from its checkpoint on. Only the main process writes.

    Args:
      run: its directory. Records after the checkpoint are removed, since those steps will be repeated.
      step: the step of the checkpoint.
      clock: of this process. What was spent before the checkpoint is added to it.
      track: called with every record of training and of evaluation, for other tools that follow a run.

    Attributes:
      evaluations: the records of all evaluations so far.
    """

    def __init__(self, run: Run, step: int, clock: Clock, track: Track = untracked) -> None:
        self._run = run
        self._clock = clock
        self._track = track
        self._events: Events | None = None
        earlier = self._earlier(step) if is_main_process() else ([], {})
        self.evaluations: list[Json]
        self.evaluations, spent = gathered(earlier)[0]
        clock.add(spent)

    def _earlier(self, step: int) -> tuple[list[Json], dict[str, float]]:
        """The evaluations, and the seconds spent."""
        with atomic_open(self._run.path / "metrics.jsonl") as file:
            for record in self._run.log.stream():
                if record["step"] <= step:
                    file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
        records = self._run.log.records()
        return [record for record in records if record["kind"] == "evaluation"], spent_of(records)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the TensorBoard file."""
        if not is_main_process():
            yield
            return
        with contextlib.closing(Events(self._run.path / "tensorboard")) as events:
            self._events = events
            yield

    def write(self, record: Json) -> None:
        """Writes a record, and its numbers for TensorBoard."""
        if record["kind"] == "evaluation":
            self.evaluations.append(record)
        if self._events is None:
            return
        self._append(record)
        values = {name: value for name, value in record.items() if isinstance(value, float)}
        self._events.add(record["step"], {f"{record['kind']}/{name}": x for name, x in values.items()})
        try:
            self._track(record)
        except Exception as error:  # a tool that is out of reach must not cost the run
            log.warning("tracking ends: %s: %s", type(error).__name__, error)
            self._track = untracked

    def _append(self, record: Json) -> None:
        spent = self._clock.spent()
        self._run.log.append(record | {"elapsed": round(sum(spent.values()), 1), "spent": spent})

    def write_test(self, step: int) -> dict[str, float]:
        """Writes that the test after a step is over, unless that was tested before. Returns the seconds that
        the run had taken then, by what they were spent on."""
        if not is_main_process():
            return self._clock.spent()
        if step not in (record["step"] for record in self._run.log.records("test")):
            self._append({"kind": "test", "step": step})
        return spent_of(self._run.log.records())

    def write_start(self, step: int, data: TrainingData, parameters: int, parts: int) -> None:
        """Writes the data, devices and versions, for the report page; and how many parts a batch is divided
        into, over devices and slices."""
        processes = f"{jax.process_count():,} process{'es' * (jax.process_count() != 1)}"
        devices = f"{jax.device_count()} {jax.devices()[0].device_kind}, {processes}"
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "flax", "optax"))
        facts = {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "devices": devices,
            "versions": f"{versions}, Python {platform.python_version()}",
            "parameters": f"{parameters:,}",
        }
        if is_main_process():
            self._run.log.append(
                {"kind": "start", "step": step, **facts, "parts": parts, "data": _described(data)}
            )


def _described(data: TrainingData) -> Json:
    """The corpus, its batches, and the number of sequences by length."""
    plan = data.batcher.plan
    task = data.task
    of = "" if plan.examined is None else f" of the first {plan.examined:,}"
    counts = {}
    buckets = zip(*task.batching().buckets, strict=True)
    lengths = side_lengths(data.batcher.examples).T
    for side, values, edges in zip(sides(task.stored_fields), lengths, buckets, strict=False):
        histogram = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
        counts[side] = dict(zip([*map(str, edges), "more"], histogram.tolist(), strict=True))
    return {
        "corpus": data.corpus.name,
        **{f"{name} {task.unit}": f"{len(records):,}" for name, records in data.corpus.splits.items()},
        "dropped": f"{plan.dropped:,}{of} ({task.drops})",
        "padding": f"{plan.padding:.1%} of the positions in a batch",
        "steps an epoch": f"{plan.steps_per_epoch:,}",
        "lengths": counts,
    }


class Pace:
    """Tokens, or what else is counted, per second since the last report, and time left; evaluations do not
    count.

    Args:
      step: the current one.
      total: the last one.
      clock: of the run, which counts updates and waiting for input.

    Attributes:
      step: the last one that was counted.
    """

    def __init__(self, step: int, total: int, clock: Clock) -> None:
        self.step = self._first = step
        self._total = total
        self._clock = clock
        self._count = 0.0
        self._reported = self._seconds()
        self._compiled, _ = self._reported

    def _seconds(self) -> tuple[float, float]:
        """Seconds of updates so far, and how many of them were spent waiting for input."""
        waited = self._clock.seconds(WAITING)
        return self._clock.seconds(TRAINING) + waited, waited

    def took(self, step: int, count: float) -> None:
        """Counts the tokens of a step."""
        self._count += count
        if self.step == self._first:
            self._compiled, _ = self._seconds()
        self.step = step

    @property
    def seconds_left(self) -> float:
        """Seconds that the other steps need, each as long as those so far, without the first one, which is
        compiled; infinite if there was no other."""
        steps, steps_left = self.step - self._first - 1, self._total - self.step
        if steps_left and steps < 1:
            return math.inf
        return (self._seconds()[0] - self._compiled) / max(steps, 1) * steps_left

    def report(self) -> tuple[float, float]:
        """Tokens per second, and the share of the time spent waiting for input."""
        now, before = self._seconds(), self._reported
        spent = max(now[0] - before[0], 1e-9)
        rate, waited = self._count / spent, (now[1] - before[1]) / spent
        self._reported, self._count = now, 0.0
        return rate, waited
