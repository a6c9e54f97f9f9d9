"""Requests that wait to be searched: the longest first, but none is overtaken for ever."""

import heapq
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from transformer.config import DecodingConfig
from transformer.data.plans import Example

OVERTAKING = 2048  # requests that may be taken before the one that has waited longest


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
    lane: int = 0
    """The lane that searches it."""
    future: Future[Any] = field(default_factory=Future)

    def deliver(self, found: Any) -> None:
        """Sets the future's result, unless it was cancelled."""
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self.then(found))
            except BaseException as error:
                self.future.set_exception(error)

    def fail(self, error: BaseException) -> None:
        """Sets the future's exception, unless it was cancelled or has a result."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


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
