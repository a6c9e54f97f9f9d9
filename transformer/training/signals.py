"""Stopping when asked to: after the step, with everything saved."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

from transformer.hosts import gathered

AGAIN = 1.0  # seconds; a job system may send the same signal twice, to a process and to its group


class StopRequest:
    """The signal that asked to stop; 0 while none did."""

    signal = 0


def asked(request: StopRequest) -> int:
    """The signal that asked any of the processes, which all have to be here."""
    return max(gathered(request.signal))


@contextlib.contextmanager
def stop_requests(descriptor: int | None) -> Iterator[StopRequest]:
    """SIGINT and SIGTERM ask to stop after the step; a second one, a second later or more, ends at once.

    Args:
      descriptor: of the file where the first one is confirmed. None: nowhere.
    """
    request, since = StopRequest(), [0.0]

    def ask(number: int, frame: FrameType | None) -> None:
        if request.signal == 0:
            request.signal, since[0] = number, time.monotonic()
            if descriptor is not None:  # the console may be locked by what this signal interrupts
                with contextlib.suppress(OSError):
                    os.write(descriptor, b"\nStopping after this step; again to stop without saving.\n")
        elif time.monotonic() - since[0] >= AGAIN:
            # not what it was before: a job started in the background began with SIGINT ignored
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            signal.raise_signal(number)

    before = {}
    try:
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread: somebody else's program handles signals
        pass
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
