"""What a training run logs: metrics.jsonl, TensorBoard, and how long it took."""

import contextlib
import json
import logging
import platform
import time
from collections.abc import Callable, Iterator
from importlib import metadata

import jax
import numpy as np

from transformer.data.batching import sides
from transformer.files import Json, write_whole
from transformer.runs.run import Run
from transformer.runtime.hosts import gathered, is_main_process
from transformer.tasks.preparation import TrainingData
from transformer.trainer.events import Events

log = logging.getLogger("transformer")
Track = Callable[[Json], None]
"""Given a record: `kind` ("training" or "evaluation"), `step`, and numbers by name."""


def untracked(record: Json) -> None:
    """Tracks nothing."""


class Journal:
    """The log of a run, from its checkpoint on. Only the main process writes.

    Args:
      run: its directory. Records after the checkpoint are removed, since those steps will be repeated.
      step: the step of the checkpoint.
      track: called with every record of training and of evaluation, for other tools that follow a run.

    Attributes:
      evaluations: the records of all evaluations so far.
    """

    def __init__(self, run: Run, step: int, track: Track = untracked) -> None:
        self._run, self._track = run, track
        self._events: Events | None = None
        earlier = self._earlier(step) if is_main_process() else ([], 0.0)
        self.evaluations: list[Json]
        self.evaluations, self._elapsed_before = gathered(earlier)[0]
        self._began = time.monotonic()

    def _earlier(self, step: int) -> tuple[list[Json], float]:
        """The evaluations, and the seconds trained."""
        records = [record for record in self._run.log.records() if record["step"] <= step]
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        write_whole(self._run.path / "metrics.jsonl", text)
        seconds = [each["elapsed"] for each in records if isinstance(each.get("elapsed"), int | float)]
        return [each for each in records if each["kind"] == "evaluation"], max(seconds, default=0.0)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the TensorBoard file."""
        if not is_main_process():
            yield
            return
        with contextlib.closing(Events(self._run.path / "tensorboard")) as events:
            self._events = events
            yield

    def elapsed(self) -> float:
        """Seconds of training, including those before the checkpoint that was resumed."""
        return self._elapsed_before + time.monotonic() - self._began

    def write(self, record: Json) -> None:
        """Writes a record, and its numbers for TensorBoard."""
        if record["kind"] == "evaluation":
            self.evaluations.append(record)
        if self._events is None:
            return
        self._run.log.append(record | {"elapsed": round(self.elapsed(), 1)})
        values = {name: value for name, value in record.items() if isinstance(value, float)}
        self._events.add(record["step"], {f"{record['kind']}/{name}": x for name, x in values.items()})
        try:
            self._track(record)
        except Exception as error:  # a tool that is out of reach must not cost the run
            log.warning("tracking ends: %s: %s", type(error).__name__, error)
            self._track = untracked

    def write_start(self, step: int, data: TrainingData, parameters: int) -> None:
        """Writes the data, devices and versions, for the report page."""
        devices = f"{jax.device_count()} {jax.devices()[0].device_kind}, {jax.process_count()} process(es)"
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "flax", "optax"))
        about = {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "devices": devices,
            "versions": f"{versions}, Python {platform.python_version()}",
            "parameters": f"{parameters:,}",
        }
        if is_main_process():
            self._run.log.append({"kind": "start", "step": step, **about, "data": _described(data)})


def _described(data: TrainingData) -> Json:
    """The corpus, its batches, and the number of sequences by length."""
    plan, task, longest = data.batcher.plan, data.task, data.task.config.data.max_length
    counts, buckets = {}, zip(*task.batching().buckets, strict=True)
    for side, lengths, edges in zip(sides(task.fields), data.lengths.T, buckets, strict=True):
        found = np.bincount(np.searchsorted(edges, lengths), minlength=len(edges) + 1)
        counts[side] = dict(zip([*map(str, edges), "more"], found.tolist(), strict=True))
    return {
        "corpus": data.corpus.name,
        **{f"{name} {task.unit}": f"{len(each):,}" for name, each in data.corpus.splits.items()},
        "dropped": f"{plan.dropped:,} (empty, or longer than {longest} tokens)",
        "padding": f"{plan.padding:.1%} of the positions in a batch",
        "steps an epoch": f"{plan.steps_per_epoch:,}",
        "lengths": counts,
    }


class Pace:
    """Tokens per second since the last report, and time left; evaluations do not count.

    Args:
      step: the current one.
      total: the last one.
    """

    def __init__(self, step: int, total: int) -> None:
        self._first, self._total = step, total
        self._since = self._start = time.monotonic()
        self._tokens = 0.0

    def took(self, tokens: float) -> None:
        """Counts the tokens of a step."""
        self._tokens += tokens

    def report(self, step: int) -> tuple[float, float]:
        """Tokens per second, and seconds left."""
        now = time.monotonic()
        rate = self._tokens / max(now - self._since, 1e-9)
        left = (now - self._start) / max(step - self._first, 1) * (self._total - step)
        self._since, self._tokens = now, 0.0
        return rate, left

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Does not count the time in this context."""
        before = time.monotonic()
        yield
        paused = time.monotonic() - before
        self._since, self._start = self._since + paused, self._start + paused
