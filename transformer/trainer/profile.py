"""What stops training (signals, the end of its time), and profiles of it: a trace of some steps, and what
held the memory when it ran out."""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import jax

from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import gathered, is_main_process
from transformer.runtime.machine import signals_handled

SKIPPED = 3  # steps after the start, of which the first compiles


class Profile:
    """Traces some steps, once those are over that compile.

    Args:
      folder: for the trace.
      step: the first step of this process.
      steps: their number; 0 for no trace.
      watch: shows where the trace is.
    """

    def __init__(self, folder: Path, step: int, steps: int, watch: ProgressReporter) -> None:
        self._folder = folder
        self._watch = watch
        self._tracing = False
        self._first = step + SKIPPED
        self._last = step + SKIPPED + steps

    def before(self, step: int) -> None:
        """Starts or ends the trace, if this step is the first one of it or after it."""
        if self._first <= step < self._last and not self._tracing:
            jax.profiler.start_trace(self._folder)
            self._tracing = True
        elif step >= self._last:
            self.close()

    def close(self) -> None:
        """Writes the trace, if it was started."""
        if not self._tracing:
            return
        self._tracing = False
        self._first = self._last
        jax.profiler.stop_trace()
        if is_main_process():
            self._watch.message(
                f"trace in {self._folder}: tensorboard --logdir {self._folder.parent} (it needs the package "
                "tensorboard-plugin-profile), or open the *.trace.json.gz in ui.perfetto.dev"
            )


@contextlib.contextmanager
def memory_profiled(run_dir: Path) -> Iterator[None]:
    """If a device runs out of memory, writes what held it.

    Raises:
      UserError: it did; what to lower.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not any(phrase in str(error) for phrase in ("RESOURCE_EXHAUSTED", "Out of memory")):
            raise
        file = run_dir / "memory.prof"
        hint = ""
        with contextlib.suppress(Exception):  # the error itself matters more
            jax.profiler.save_device_memory_profile(str(file))
            hint = f" What held it is in {file}: pprof -top {file}."
        raise UserError(
            "a device is out of memory: lower --data.batch-tokens, or raise --training.accumulate (the same "
            "results), add --model.remat, or divide the state by --mesh.fsdp; train.py --plan says what fits."
            f"{hint} {str(error).partition(chr(10))[0][:200]}"
        ) from error


# What stops training, after the current step and with everything saved: signals, and the end of its time.


AGAIN = 1.0  # seconds; a job system may send the same signal twice, to a process and to its group


TIME_IS_OVER = int(signal.SIGALRM)
"""Stands for the end of the time, among signals. Nobody sends it."""


class StopRequest:
    """Whether a stop is requested, by a signal or by the time.

    Args:
      deadline: of `time.monotonic`, when the time is over.
    """

    def __init__(self, deadline: float = math.inf) -> None:
        self.received = 0
        self._deadline = deadline

    @property
    def signal(self) -> int:
        """The signal that requested a stop, or 0."""
        return self.received or TIME_IS_OVER * (time.monotonic() >= self._deadline)


def asked(request: StopRequest) -> int:
    """The signal that requested a stop of any process, or 0. All processes have to call this."""
    return max(gathered(request.signal))


@contextlib.contextmanager
def stop_requests(tell: Callable[[str], None], deadline: float = math.inf) -> Iterator[StopRequest]:
    """SIGINT and SIGTERM request a stop after the step. Another one, at least a second later, ends at once.

    Args:
      tell: called in a signal handler with a message that confirms the first one.
      deadline: of `time.monotonic`, which requests a stop as well.
    """
    request = StopRequest(deadline)
    since = [0.0]

    def ask(number: int, frame: FrameType | None) -> None:
        if request.received == 0:
            request.received, since[0] = number, time.monotonic()
            tell("Stopping after this step; again after a second to stop without saving.")
        elif time.monotonic() - since[0] >= AGAIN:
            # not the previous handler: in a background job SIGINT was ignored
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            signal.raise_signal(number)

    with signals_handled(ask, signal.SIGINT, signal.SIGTERM):
        yield request
