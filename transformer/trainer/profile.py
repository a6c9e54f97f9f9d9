"""Profiles of a run: a trace of some steps, and what held the memory when it ran out."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import jax

from transformer.errors import UserError
from transformer.runtime.console import ProgressReporter
from transformer.runtime.hosts import is_main_process

SKIPPED = 3  # steps after the start, of which the first compiles


class Profile:
    """Traces some steps, once those are over that compile. A context: a trace that was begun is written.

    Args:
      folder: for the trace.
      step: the first step of this process.
      steps: their number; 0 for no trace.
      watch: says where the trace is.
    """

    def __init__(self, folder: Path, step: int, steps: int, watch: ProgressReporter) -> None:
        self._folder, self._watch, self._tracing = folder, watch, False
        self._first, self._last = step + SKIPPED, step + SKIPPED + steps

    def before(self, step: int) -> None:
        """Begins or ends the trace, if this step is the first one of it or after it."""
        if self._first <= step < self._last and not self._tracing:
            jax.profiler.start_trace(self._folder)
            self._tracing = True
        elif step >= self._last:
            self._finish()

    def _finish(self) -> None:
        if not self._tracing:
            return
        self._tracing, self._first = False, self._last
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
        if not any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory")):
            raise
        file, kept = run_dir / "memory.prof", ""
        with contextlib.suppress(Exception):  # what it says matters more
            jax.profiler.save_device_memory_profile(str(file))
            kept = f" What held it is in {file}: pprof -top {file}."
        raise UserError(
            "a device is out of memory: lower --data.batch-tokens, or raise --training.accumulate (the same "
            "results), add --model.remat, or divide the state by --mesh.fsdp; train.py --plan says what fits."
            f"{kept} {str(error).partition(chr(10))[0][:200]}"
        ) from error
