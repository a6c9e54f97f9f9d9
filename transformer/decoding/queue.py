"""Requests that wait to be searched: the longest first, but none is overtaken for ever."""

import heapq
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from transformer.config import DecodingConfig
from transformer.data.sequences import Example
from transformer.runtime.errors import UserError

log = logging.getLogger("transformer")
OVERTAKING = 2048  # requests that may be taken before the one that has waited longest


class SearchThread(threading.Thread):
    """A thread that searches, and delivers the results."""


class Answer(Future[Any]):
    """A future. The thread that searches calls its callbacks, so these cannot wait for another answer.

    Once it is cancelled, `concurrent.futures.wait` and `as_completed` return at once: nothing else would
    notify them, since the search drops cancelled requests wherever it meets them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._notifying = threading.Lock()
        self._notified = False

    @classmethod
    def of(cls, outputs: Any) -> "Answer":
        """One that needs no search."""
        answer = cls()
        answer.set_result(outputs)
        return answer

    def cancel(self) -> bool:
        """As `Future.cancel`."""
        cancelled = super().cancel()
        if cancelled:
            self.set_running_or_notify_cancel()
        return cancelled

    def set_running_or_notify_cancel(self) -> bool:
        """As that of `Future`, also if it was notified before that it is cancelled."""
        with self._notifying:
            if not self._notified:
                self._notified = not super().set_running_or_notify_cancel()
            return not self._notified

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
    """One record to search, and all that is needed to make its outputs."""

    example: Example
    length: int
    """Of its longest sequence."""
    line: int
    """Its line number, which sampling folds into its key."""
    options: DecodingConfig
    certain: int | None
    """How many of the best hypotheses must be certain. None: all that the search keeps."""
    finish: Callable[[Any, "Request"], Any]
    """(a row of the search's arrays, this request) -> the outputs."""
    record: Any = None
    """For `finish`, and so are the next two."""
    n_best: int | None = None
    extras: Any = None
    lane: int = 0
    """The lane that searches it."""
    future: Answer = field(default_factory=Answer)

    def deliver(self, result: Any) -> None:
        """Makes the outputs from the search result, and sets them as the future's result, unless it was
        cancelled."""
        if self.future.set_running_or_notify_cancel():
            try:
                outputs = self.finish(result, self)
            except UserError as error:
                self._settle(self.future.set_exception, type(error)(f"line {self.line}: {error}"))
            except BaseException as error:
                self._settle(self.future.set_exception, error)
            else:
                self._settle(self.future.set_result, outputs)

    def fail(self, error: BaseException) -> None:
        """Sets the future's exception, unless it was cancelled or has a result."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self._settle(self.future.set_exception, error)

    def _settle(self, settle: Callable[[Any], None], outcome: Any) -> None:
        try:
            settle(outcome)
        except BaseException:  # such as SystemExit; of others the future itself takes care
            log.exception("a future's callback failed")


class Queue:
    """Waiting requests, by lane. Threads may share it.

    Args:
      lanes: their number.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.changed = threading.Condition()
        self._waiting = [Waiting() for _ in range(lanes)]

    def put(self, requests: Iterable[Request]) -> None:
        """Adds requests to their lanes."""
        with self.changed:
            for request in requests:
                self._waiting[request.lane].add(request)
            self.changed.notify_all()

    def waiting(self, lane: int) -> int:
        """How many requests wait in a lane."""
        return len(self._waiting[lane])

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def take(self, lane: int, most: int) -> list[Request]:
        """Removes up to `most` requests: the longest, and before them the oldest if it was overtaken often.
        Cancelled ones are dropped."""
        with self.changed:
            return self._waiting[lane].take(most)


class Waiting:
    """The requests of one lane, in two orders: by arrival, and by length. Adding one and taking one cost
    O(log n)."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._by_arrival = OrderedDict[int, Request]()
        self._by_length: list[tuple[int, int]] = []  # a heap of (-length, number), some of them gone
        self._overtaken: tuple[int | None, int] = None, 0  # the oldest at the last take, and how often it was

    def __len__(self) -> int:
        return len(self._by_arrival)

    def add(self, request: Request) -> None:
        """Adds a request."""
        number = next(self._numbers)
        self._by_arrival[number] = request
        heapq.heappush(self._by_length, (-request.length, number))

    def take(self, most: int) -> list[Request]:
        """As `Queue.take`."""
        oldest = self._oldest()
        known, times = self._overtaken
        times = times if known == oldest else 0
        taken = list[Request]()
        if oldest is not None and most and times >= OVERTAKING:
            taken.append(self._by_arrival.pop(oldest))
        while self._by_length and len(taken) < most:
            _, number = heapq.heappop(self._by_length)
            request = self._by_arrival.pop(number, None)
            if request and not request.future.cancelled():
                taken.append(request)
        self._overtaken = oldest, times + len(taken)
        return taken

    def _oldest(self) -> int | None:
        """The number of the request that has waited longest. Cancelled ones before it are dropped."""
        while self._by_arrival:
            number, request = next(iter(self._by_arrival.items()))
            if not request.future.cancelled():
                return number
            del self._by_arrival[number]
        return None
