"""Requests that wait to be searched: the longest first, but none is overtaken for ever."""

import heapq
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from transformer.config import DecodingConfig
from transformer.data.plans import Example
from transformer.errors import UserError

log = logging.getLogger("transformer")
OVERTAKING = 2048  # requests that may be taken before the one that has waited longest


class SearchThread(threading.Thread):
    """A thread that searches, and delivers what it finds."""


class Answer(Future[Any]):
    """A future. The thread that searches calls its callbacks, so these cannot wait for another answer."""

    def result(self, timeout: float | int | None = None) -> Any:
        """As `Future.result`.

        Raises:
          UserError: a callback waits for it.
        """
        if not self.done() and isinstance(threading.current_thread(), SearchThread):
            raise UserError(
                "a future's callback cannot wait for the search, whose thread it runs in: use submit there"
            )
        return super().result(timeout)


@dataclass(eq=False)
class Request:
    """One input to search."""

    example: Example
    length: int
    """Of its longest sequence."""
    line: int
    """Its line number, which sampling folds into its key."""
    options: DecodingConfig
    then: Callable[[Any], Any]
    """Makes the future's result of what the search found: a row of its arrays."""
    wanted: int | None = None
    """How many of the best outputs must be certain. None: all that the search keeps."""
    lane: int = 0
    """The lane that searches it."""
    future: Answer = field(default_factory=Answer)

    def deliver(self, found: Any) -> None:
        """Sets the future's result, unless it was cancelled."""
        if self.future.set_running_or_notify_cancel():
            try:
                result = self.then(found)
            except UserError as error:
                self._tell(self.future.set_exception, type(error)(f"line {self.line}: {error}"))
            except BaseException as error:
                self._tell(self.future.set_exception, error)
            else:
                self._tell(self.future.set_result, result)

    def fail(self, error: BaseException) -> None:
        """Sets the future's exception, unless it was cancelled or has a result."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self._tell(self.future.set_exception, error)

    def _tell(self, tell: Callable[[Any], None], what: Any) -> None:
        try:
            tell(what)
        except BaseException:  # such as SystemExit; of others the future itself takes care
            log.exception("a future's callback failed")


class Queue:
    """Waiting requests, by lane. Threads may share it.

    Args:
      lanes: their number.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes, self.changed = lanes, threading.Condition()
        self._waiting: list[list[Request]] = [[] for _ in range(lanes)]
        self._overtaken = [0] * lanes  # how often the oldest was

    def put(self, requests: Iterable[Request]) -> None:
        """Adds requests to their lanes."""
        with self.changed:
            for request in requests:
                self._waiting[request.lane].append(request)
            self.changed.notify_all()

    def waiting(self, lane: int) -> int:
        """How many requests wait there."""
        return len(self._waiting[lane])

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def take(self, lane: int, most: int) -> list[Request]:
        """Removes up to `most` requests: the longest, and before them the oldest if it was overtaken often.
        Cancelled ones are dropped."""
        with self.changed:
            waiting = [request for request in self._waiting[lane] if not request.future.cancelled()]
            first = waiting[: int(self._overtaken[lane] >= OVERTAKING)]
            rest = heapq.nlargest(
                most - len(first), waiting[len(first) :], key=lambda request: request.length
            )
            taken = first + rest
            gone = set(map(id, taken))
            self._waiting[lane] = [request for request in waiting if id(request) not in gone]
            self._overtaken[lane] += len(taken)
            if waiting and id(waiting[0]) in gone:
                self._overtaken[lane] = 0
            return taken
