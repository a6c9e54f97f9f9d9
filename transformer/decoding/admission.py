"""Which requests a decoder accepts: no more than wait, and none when it is closed."""

import threading
import time
from concurrent.futures import Future
from typing import Any

from transformer.runtime.errors import UserError, counted


class QueueFull(UserError):
    """As many requests wait as may: one can be submitted later."""


class Admission:
    """The requests of a decoder that are not done. Threads may share it.

    Attributes:
      limit: how many there may be of those that were submitted one by one. None: any number.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._changed = threading.Condition()
        self._open = set[Future[Any]]()
        self._expected = 0  # that were admitted, and have no future yet
        self._is_closed = False

    def check(self) -> None:
        """Raises UserError if the decoder is closed."""
        if self._is_closed:
            raise UserError("this model was closed: load it again")

    def admit(self) -> None:
        """Makes room for a request.

        Raises:
          QueueFull: there is none.
          UserError: the decoder is closed.
        """
        with self._changed:
            self.check()
            if self.limit is not None and len(self._open) + self._expected >= self.limit:
                raise QueueFull(f"{counted(self.limit, 'request')} wait, as many as may: try again later")
            self._expected += 1

    def opened(self, future: Future[Any] | None) -> None:
        """The future of a request that was admitted. None: it has none, since it was refused otherwise."""
        with self._changed:
            self._expected -= 1
            if future is not None:
                self._open.add(future)
        if future is not None:
            future.add_done_callback(self._done)

    def _done(self, future: Future[Any]) -> None:
        with self._changed:
            self._open.discard(future)
            self._changed.notify_all()

    def close(self, drain: bool, timeout: float | None) -> bool:
        """Accepts no more requests.

        Args:
          drain: whether to wait for those that there are. Otherwise they are cancelled.
          timeout: how long to wait at most, in seconds; then the others are cancelled. None: as long as it
            takes.

        Returns:
          Whether none had to be cancelled.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._is_closed = True
            while drain and (self._open or self._expected):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            remaining = list(self._open)
        return not [future for future in remaining if future.cancel()]
