"""What the time of a run is spent on."""

import contextlib
import time
from collections.abc import Iterator, Mapping

from transformer.runs.log import SPENT

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

    def spent(self) -> dict[str, float]:
        """Seconds by phase, up to now."""
        self.enter(self._phase)
        return {phase: round(seconds, 1) for phase, seconds in self._seconds.items()}
