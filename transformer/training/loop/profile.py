"""Profiles of a run: a trace of some steps, and what held the memory when it ran out."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import jax

from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import is_main_process

SKIPPED = 3  # steps after the start, of which the first compiles


class Profile:
    """Traces some steps, once those are over that compile. A context: a trace that was started is written.

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
            self._finish()

    def _finish(self) -> None:
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

    def __enter__(self) -> "Profile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish()


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
