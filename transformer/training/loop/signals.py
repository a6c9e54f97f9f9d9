"""Signals that stop training, after the current step and with everything saved."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

from transformer.runtime.hosts import gathered

AGAIN = 1.0  # seconds; a job system may send the same signal twice, to a process and to its group


class StopRequest:
    """The signal that requested a stop, or 0."""

    signal = 0


def asked(request: StopRequest) -> int:
    """The signal that any process has received, or 0. All processes have to call this."""
    return max(gathered(request.signal))


@contextlib.contextmanager
def stop_requests(descriptor: int | None) -> Iterator[StopRequest]:
    """SIGINT and SIGTERM request a stop after the step. Another one, at least a second later, ends at once.

    Args:
      descriptor: of the file to which a message confirms the first one. None: no message.
    """
    request = StopRequest()
    since = [0.0]

    def ask(number: int, frame: FrameType | None) -> None:
        if request.signal == 0:
            request.signal, since[0] = number, time.monotonic()
            if descriptor is not None:  # the console may be locked by what this signal interrupts
                with contextlib.suppress(OSError):
                    os.write(
                        descriptor,
                        b"\nStopping after this step; again after a second to stop without saving.\n",
                    )
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
