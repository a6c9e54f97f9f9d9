"""Plans for sampled examples: every epoch has other segmentations (subword sampling), or other examples (a
temperature over directions)."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Protocol

import numpy as np
from jaxtyping import Int

from transformer.data.plans import Batching, Lengths, Plan, Rows, eligible_examples, plan_of
from transformer.data.sequences import Arrays, Sequences, concatenated, side_lengths
from transformer.data.store import Progress, silent
from transformer.runtime.errors import UserError


class Draw(Protocol):
    """Samples examples."""

    part: int
    """How many at a time."""

    def __call__(
        self, epoch: int, window: int, indices: Int[np.ndarray, " examples"]
    ) -> Iterator[Mapping[str, Sequences]]:
        """The examples of a window of an epoch, a part at a time; the same for the same arguments."""
        ...


Order = Callable[[int], Int[np.ndarray, " examples"]]
"""The examples of an epoch; the same for the same epoch."""


@dataclasses.dataclass(frozen=True)
class _Window:
    """A part of an epoch, planned like a separate corpus."""

    indices: Int[np.ndarray, " examples"]
    examples: Arrays | None
    """The sampled examples. None: the examples as they are stored."""
    plan: Plan
    """It refers to positions in `indices`."""


class SampledPlan(Plan):
    """Plans batches by the lengths of the samples, so that no sample is preferred for its length.

    The examples of an epoch, in random order, are divided into windows. A window's examples are drawn, then
    planned. All windows have as many batches as the first one, so that every epoch has the same number of
    steps: a window with more drops random batches, and one with fewer starts again. All its examples are
    equally likely to be dropped or repeated.

    An example is dropped from all epochs if it is too long without sampling (`dropped`), and from one epoch
    if its sample is (`outgrown`).

    Args:
      lengths: without sampling.
      batching: how to make batches.
      draw: samples examples. None: they are as they are stored.
      progress: shows that of the first window.
      order: the examples of an epoch; each has as many. None: all, in random order.

    Raises:
      UserError: every sample is too long.
    """

    BATCHES = 128  # in a window: enough to fill buckets and rows well, few enough to sample in seconds

    def __init__(
        self,
        lengths: Lengths,
        batching: Batching,
        draw: Draw | None,
        progress: Progress,
        order: Order | None = None,
    ) -> None:
        self._lengths, self._batching, self._draw, self.packed = lengths, batching, draw, batching.packed
        self._eligible = eligible_examples(lengths, batching.buckets[-1])
        self._order = functools.lru_cache(maxsize=2)(order or self._shuffled)
        self.dropped = len(lengths) - len(self._eligible)
        self.steps_per_epoch = 0
        if not len(self._eligible):
            return
        num_positions = lengths.shape[1] * batching.batch_tokens * self.BATCHES
        self._windows = max(1, round(int(lengths[self._order(0)].sum()) / num_positions))
        first = self._make_window(0, progress)
        self._steps, self._padding = first.plan.steps_per_epoch, first.plan.padding
        self.outgrown = first.plan.dropped / len(first.indices)
        self.steps_per_epoch = self._windows * self._steps
        self._lock = threading.Lock()
        self._drawn = {0: Future[_Window]()}
        self._drawn[0].set_result(first)

    def __call__(self, step: int) -> Rows:
        number, index = divmod(step, self._steps)
        window = self._window(number)
        rows = window.plan(index)
        chosen = window.indices[rows.chosen]
        examples = None if window.examples is None else (window.examples, rows.chosen)
        return dataclasses.replace(rows, chosen=chosen, examples=examples)

    @property
    def padding(self) -> float:
        return self._padding

    def _window(self, number: int) -> _Window:
        """A window, numbered across epochs. The next one is made while this one is used."""
        with self._lock:
            for needed in (number, number + 1):
                if needed not in self._drawn:
                    self._drawn[needed] = Future()
                    arguments = (needed, self._drawn[needed])
                    threading.Thread(target=self._fulfil, args=arguments, daemon=True).start()
            window = self._drawn[number]
            while len(self._drawn) > 3:  # another thread may still be one window behind
                del self._drawn[next(iter(self._drawn))]
        return window.result()

    def _fulfil(self, number: int, window: Future[_Window]) -> None:
        try:
            window.set_result(self._make_window(number))
        except BaseException as error:
            window.set_exception(error)

    def _shuffled(self, epoch: int) -> Int[np.ndarray, " examples"]:
        return np.random.default_rng((self._batching.seed, epoch)).permutation(self._eligible)

    def _make_window(self, number: int, progress: Progress = silent) -> _Window:
        epoch, index = divmod(number, self._windows)
        indices = np.array_split(self._order(epoch), self._windows)[index]
        examples, lengths = None, self._lengths[indices]
        if self._draw:
            parts = self._draw(epoch, index, indices)
            count = -(-len(indices) // self._draw.part)
            shown = progress(f"sampled segmentations, in parts of {self._draw.part:,} pairs", parts, count)
            examples = concatenated(list(shown))
            lengths = side_lengths(examples)
        seed = int(np.random.default_rng((self._batching.seed, epoch, index)).integers(2**31))
        plan = plan_of(lengths, dataclasses.replace(self._batching, seed=seed))
        if not plan.steps_per_epoch:
            raise UserError(
                "every segmentation that --data.subword-sampling draws is longer than --data.max-length "
                f"{max(self._batching.buckets[-1])}: raise it"
            )
        return _Window(indices, examples, plan)
