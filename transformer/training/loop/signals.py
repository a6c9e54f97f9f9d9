"""What stops training, after the current step and with everything saved: signals, and the end of its time."""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

from transformer.runtime.hosts import gathered

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

    before = {}
    try:
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread: the program around it handles signals
        pass
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
