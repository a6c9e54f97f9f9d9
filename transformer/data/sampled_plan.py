"""Plans for subword sampling, where every epoch has other segmentations."""

import dataclasses
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import numpy as np
from jaxtyping import Int

from transformer.config import DataConfig
from transformer.data.plans import Lengths, Plan, Rows, Sentences, kept_pairs, plan_of
from transformer.errors import UserError

Draw = Callable[[int, Int[np.ndarray, " pairs"]], Iterable[Sentences]]
"""(epoch, indices of pairs) -> the ids of both sides of each, sampled for that epoch."""


@dataclasses.dataclass(frozen=True)
class _Window:
    """A part of an epoch, planned like a separate corpus."""

    pairs: Int[np.ndarray, " pairs"]
    sentences: list[Sentences]
    plan: Plan
    """It refers to indices into `pairs`."""


class SampledPlan(Plan):
    """Plans batches by the lengths of sampled segmentations, so that no sample is preferred for its length.

    The pairs of an epoch, in random order, are divided into windows. A window's pairs are segmented and then
    planned. All windows have as many batches as the first one, so that every epoch has the same number of
    steps: a window with more drops random batches, and one with fewer starts again. All its pairs are equally
    likely to be dropped or repeated.

    A pair is dropped from all epochs if its best segmentation is longer than max_length (`dropped`), and from
    one epoch if its sample is (`outgrown`).
    """

    BATCHES = 128  # in a window: enough to fill buckets and rows well, few enough to sample in seconds

    def __init__(
        self, lengths: Lengths, data: DataConfig, draw: Draw, progress: Callable[[Iterable, int], Iterable]
    ) -> None:
        self._data, self._draw = data, draw
        self._kept = kept_pairs(lengths, data.max_length)
        self.dropped, self.steps_per_epoch = len(lengths) - len(self._kept), 0
        if not len(self._kept):
            return
        places = 2 * data.batch_tokens * self.BATCHES
        self._windows = max(1, round(int(lengths[self._kept].sum()) / places))
        first = self._make_window(0, progress)
        self._steps, self._padding = first.plan.steps_per_epoch, first.plan.padding
        self.outgrown = first.plan.dropped / len(first.pairs)
        self.steps_per_epoch = self._windows * self._steps
        self._lock, self._drawn = threading.Lock(), {0: Future[_Window]()}
        self._drawn[0].set_result(first)

    def __call__(self, step: int) -> Rows:
        number, index = divmod(step, self._steps)
        window = self._window(number)
        rows = window.plan(index)
        sentences = {int(window.pairs[i]): window.sentences[i] for row in rows.pairs for i in row}
        return Rows([window.pairs[row].tolist() for row in rows.pairs], rows.length, sentences)

    @property
    def padding(self) -> float:
        return self._padding

    def _window(self, number: int) -> _Window:
        """A window, numbered across epochs. The next one is made while this one is used."""
        with self._lock:
            for wanted in (number, number + 1):
                if wanted not in self._drawn:
                    self._drawn[wanted] = Future()
                    given = (wanted, self._drawn[wanted])
                    threading.Thread(target=self._fulfil, args=given, daemon=True).start()
            window = self._drawn[number]
            while len(self._drawn) > 3:  # another thread may still be one window behind
                del self._drawn[next(iter(self._drawn))]
        return window.result()

    def _fulfil(self, number: int, window: Future[_Window]) -> None:
        try:
            window.set_result(self._make_window(number))
        except BaseException as error:
            window.set_exception(error)

    def _make_window(
        self, number: int, progress: Callable[[Iterable, int], Iterable] = lambda items, total: items
    ) -> _Window:
        epoch, place = divmod(number, self._windows)
        order = np.random.default_rng((self._data.seed, epoch)).permutation(self._kept)
        pairs = np.array_split(order, self._windows)[place]
        sentences = list(progress(self._draw(epoch, pairs), len(pairs)))
        lengths = np.array([[len(side) for side in sides] for sides in sentences], np.int32)
        seed = int(np.random.default_rng((self._data.seed, epoch, place)).integers(2**31))
        plan = plan_of(lengths, dataclasses.replace(self._data, seed=seed))
        if not plan.steps_per_epoch:
            raise UserError(
                "every segmentation that --data.subword-sampling draws is longer than --data.max-length "
                f"{self._data.max_length}: raise it"
            )
        return _Window(pairs, sentences, plan)
