"""The order in which waiting requests are searched, and what happens to cancelled ones."""

import concurrent.futures
import heapq
import threading
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer.config.decoding import BeamConfig
from transformer.decoding.service import queue as module
from transformer.decoding.service.queue import Answer, Queue, Request

OFTEN = 4


@pytest.fixture(autouse=True)
def _few_are_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERTAKING", OFTEN)


def request(length: int, line: int = 0, future: Answer | None = None) -> Request:
    return Request({}, length, line, BeamConfig(), None, lambda result, _: result, future=future or Answer())


def test_the_longest_first_but_none_is_overtaken_for_ever() -> None:
    queue = Queue(1)
    requests = [request(length, line) for line, length in enumerate((1, 5, 3, 5, 4, 2, 6))]
    queue.put(requests)
    requests[2].future.cancel()
    taken = [each.line for _ in range(4) for each in queue.take(0, 2)]
    assert taken == [6, 1, 3, 4, 0, 5]
    assert queue.waiting(0) == len(queue) == 0


class Slow:
    """The same order by looking at all that wait."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.overtaken: tuple[Request | None, int] = None, 0

    def take(self, most: int) -> list[Request]:
        self.waiting = [each for each in self.waiting if not each.future.cancelled()]
        oldest = self.waiting[0] if self.waiting else None
        known, times = self.overtaken
        times = times if known is oldest else 0
        first = self.waiting[: int(times >= OFTEN and most > 0)]
        taken = first + heapq.nlargest(
            most - len(first), self.waiting[len(first) :], lambda each: each.length
        )
        self.waiting = [each for each in self.waiting if each not in taken]
        self.overtaken = oldest, times + len(taken)
        return taken


steps = st.one_of(
    st.tuples(st.just("put"), st.lists(st.integers(1, 5), max_size=6)),
    st.tuples(st.just("take"), st.integers(0, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
)


@settings(max_examples=50)
@given(st.lists(steps, max_size=40))
@example(  # the oldest is cancelled between two
    [
        ("put", [1, 1]),
        ("take", 2),
        ("put", [1] * 7 + [2] * 5),
        ("take", 4),
        ("put", [1]),
        ("cancel", 2),
        ("take", 1),
    ]
)
def test_the_order_is_that_of_looking_at_all_that_wait(todo: list[tuple[str, Any]]) -> None:
    queue, slow, everyone = Queue(1), Slow(), list[Request]()
    for what, arg in todo:
        if what == "put":
            new = [request(length, len(everyone) + index) for index, length in enumerate(arg)]
            everyone += new
            slow.waiting += new
            queue.put(new)
        elif what == "cancel" and everyone:
            everyone[arg % len(everyone)].future.cancel()
        elif what == "take":
            assert [each.line for each in queue.take(0, arg)] == [each.line for each in slow.take(arg)]


class Asked(Answer):
    """Counts how often one asks whether it is cancelled."""

    times = 0

    def cancelled(self) -> bool:
        Asked.times += 1
        return super().cancelled()


def test_taking_one_does_not_look_at_all_that_wait() -> None:
    queue, Asked.times = Queue(1), 0
    queue.put(request(1 + index % 7, future=Asked()) for index in range(5000))
    for _ in range(100):
        queue.take(0, 1)
    assert Asked.times <= 100 * 4


def test_whoever_waits_for_a_cancelled_request_hears_of_it_at_once() -> None:
    """Also if nothing is searched: it waits, was taken, or was dropped."""
    queue = Queue(1)
    waits, taken, dropped, cancelled_before = (request(length) for length in (1, 4, 3, 2))
    queue.put([waits, taken, dropped])
    assert queue.take(0, 1) == [taken]
    done = threading.Event()
    ready = {each.future for each in (waits, taken, dropped, cancelled_before)}
    cancelled_before.future.cancel()

    def wait() -> None:
        assert set(concurrent.futures.as_completed(ready)) == ready
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    for each in (dropped, taken, waits):
        assert each.future.cancel()
        assert each.future.cancel()
    assert done.wait(60)
    assert not concurrent.futures.wait(ready, timeout=60).not_done
    assert queue.take(0, 3) == []
    taken.deliver("found")
    taken.fail(ValueError("late"))
    assert taken.future.cancelled()
