"""Requests that wait to be searched: which are accepted, and which is next. The most urgent comes first, of
these the longest, but none is overtaken for ever."""

import heapq
import itertools
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from transformer.config.decoding import DecodingConfig
from transformer.data.sequences import Example
from transformer.runtime.errors import UserError, counted

# Which requests a decoder accepts: no more than wait, and none when it is closed.


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


log = logging.getLogger("transformer")
WINDOW = 0.25  # seconds: of requests with deadlines in the same one, the longest is first
OVERTAKING = 2048  # requests that may be taken before the one that has waited longest


class Expired(UserError):
    """A request was not begun before its deadline."""


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
        self._is_begun = False

    @classmethod
    def of(cls, outputs: Any) -> "Answer":
        """A finished answer, for a request that needs no search."""
        answer = cls()
        answer.set_result(outputs)
        return answer

    def begin(self) -> None:
        """The search of its request begins."""
        self._is_begun = True

    def running(self) -> bool:
        """Whether its request is being searched. It can be cancelled nevertheless."""
        return self._is_begun and not self.done()

    def cancel(self) -> bool:
        """Cancels as `Future.cancel`, also during the search of the request, whose slot another one gets."""
        cancelled = super().cancel()
        if cancelled:
            self.set_running_or_notify_cancel()
        return cancelled

    def set_running_or_notify_cancel(self) -> bool:
        """Marks the answer as running, as `Future` does, also if it is notified of its cancellation."""
        with self._notifying:
            if not self._notified:
                self._notified = not super().set_running_or_notify_cancel()
            return not self._notified

    def result(self, timeout: float | int | None = None) -> Any:
        """Waits for the output and returns it, as `Future.result` does.

        Raises:
          UserError: a callback waits for it.
        """
        if not self.done() and isinstance(threading.current_thread(), SearchThread):
            raise UserError(
                "a future's callback cannot wait for the search, whose thread it runs in: use submit there"
            )
        return super().result(timeout)


class Together(Answer):
    """A future of what several others find: their results in order, joined. It fails with the first that
    fails, and is cancelled with the first that is cancelled; then so are the others.

    Args:
      parts: the others, at least one.
      join: makes the result of theirs, in the thread of the last.
    """

    def __init__(self, parts: Sequence[Future[Any]], join: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self._parts, self._join = parts, join
        self._open, self._lock = len(parts), threading.Lock()
        self._is_settled = self._is_cancelled = False
        for part in parts:
            part.add_done_callback(self._ended)

    def running(self) -> bool:
        """Whether one of them was begun."""
        return not self.done() and any(part.running() or part.done() for part in self._parts)

    def cancel(self) -> bool:
        """Cancels all answers that are open, as `Answer.cancel` does."""
        cancelled = super().cancel()
        if cancelled:
            with self._lock:  # each part that is cancelled calls this again
                is_first, self._is_cancelled = not self._is_cancelled, True
            if is_first:
                self._cancel_parts()
        return cancelled

    def _cancel_parts(self) -> None:
        for part in self._parts:
            part.cancel()

    def _ended(self, part: Future[Any]) -> None:
        if part.cancelled():
            self.cancel()
            return
        with self._lock:
            self._open -= 1
            if self._is_settled or (self._open and part.exception() is None):
                return
            self._is_settled = True
        if not self.set_running_or_notify_cancel():
            return
        try:
            part.result()  # of one that failed, while others may be open
            outcome = self._join([future.result() for future in self._parts])
        except BaseException as error:
            self.set_exception(error)
            self._cancel_parts()
        else:
            self.set_result(outcome)


@dataclass(eq=False)
class Request:
    """One record to search, and all that is needed to make its outputs."""

    example: Example
    length: int
    """Length of the longest sequence of the request."""
    line: int
    """Its line number, which sampling folds into its key."""
    options: DecodingConfig
    certain: int | None
    """How many of the best hypotheses must be certain. None: all that the search keeps."""
    finish: Callable[[Any, "Request"], Any]
    """(a row of the search's arrays, this request) -> the outputs."""
    record: Any = None
    """The record that `finish` makes outputs for; the next two fields are for it too."""
    n_best: int | None = None
    extras: Any = None
    lane: int = 0
    """The lane that searches it."""
    beyond: int = 0
    """`LaneShape.beyond` of the lane that has searched it."""
    priority: int = 0
    """Requests with a higher priority are searched first."""
    deadline: float | None = None
    """Time of `time.monotonic` after which the request is dropped, if no slot has it yet."""
    partial: Callable[[Any, "Request"], None] | None = None
    """(a row of the search's arrays, this request), with the best unfinished output, every few steps."""
    future: Answer = field(default_factory=Answer)

    @property
    def urgency(self) -> tuple[int, float, int]:
        """What it is ordered by: the least is first."""
        window = math.inf if self.deadline is None else self.deadline // WINDOW
        return -self.priority, window, -self.length

    @property
    def is_expired(self) -> bool:
        """Whether it was not begun in time."""
        return self.deadline is not None and not self.future.running() and time.monotonic() >= self.deadline

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

    def show(self, result: Any) -> None:
        """Passes an unfinished result on. What fails there is logged, and the search continues."""
        assert self.partial is not None
        try:
            self.partial(result, self)
        except Exception:
            log.exception("line %d: what was to be done with an unfinished output failed", self.line)

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

    Attributes:
      is_starting: whether a few programs must do, while the others are being compiled (`Preparation`).
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.changed = threading.Condition()
        self.is_starting = False
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

    def take(self, lane: int, limit: int) -> list[Request]:
        """Removes up to `limit` requests, which begin: the most urgent, and before them the oldest if it was
        overtaken often. Cancelled ones are dropped, and those whose deadline is over fail."""
        taken, expired = list[Request](), list[Request]()
        with self.changed:
            while len(taken) < limit and (some := self._waiting[lane].take(limit - len(taken))):
                for request in some:
                    (expired if request.is_expired else taken).append(request)
        for request in taken:
            request.future.begin()
        for request in expired:
            request.fail(Expired(f"line {request.line}: it was not begun before its deadline"))
        return taken


class Waiting:
    """The requests of one lane, in two orders: by arrival, and by urgency. Adding one and taking one cost
    O(log n)."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._by_arrival = OrderedDict[int, Request]()
        self._by_urgency: list[tuple[tuple[int, float, int], int]] = []  # a heap; some of them are gone
        self._overtaken: tuple[int | None, int] = None, 0  # the oldest at the last take, and how often it was

    def __len__(self) -> int:
        return len(self._by_arrival)

    def add(self, request: Request) -> None:
        """Adds a request."""
        number = next(self._numbers)
        self._by_arrival[number] = request
        heapq.heappush(self._by_urgency, (request.urgency, number))

    def take(self, limit: int) -> list[Request]:
        """Removes up to so many requests and returns them, as `Queue.take` does."""
        oldest = self._oldest()
        known, times = self._overtaken
        times = times if known == oldest else 0
        taken = list[Request]()
        if oldest is not None and limit and times >= OVERTAKING:
            taken.append(self._by_arrival.pop(oldest))
        while self._by_urgency and len(taken) < limit:
            _, number = heapq.heappop(self._by_urgency)
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
