"""Searches several batches concurrently in threads, and compiles in the background."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from transformer.runtime.sharding import on_one_cpu

T = TypeVar("T")
R = TypeVar("R")


def batches_at_once() -> int:
    """Number of batches searched concurrently. On a CPU it is two: while one search runs a sequential part,
    the other uses the remaining cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(2, cores or 1) if on_one_cpu() else 1


def in_turn(work: Callable[[T], R], items: Sequence[T], at_once: int) -> Generator[R, None, None]:
    """Yields `work(item)` for every item, in order, computed by `at_once` threads. As many items again wait
    in a queue, which is cancelled when the generator is closed. Raises what `work` raises."""
    if min(at_once, len(items)) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(at_once) as threads:
        begun: deque[Future[R]] = deque()
        try:
            for item in items:
                if len(begun) == 2 * at_once:
                    yield begun.popleft().result()
                begun.append(threads.submit(work, item))
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()


@contextmanager
def meanwhile(work: Callable[[T], object], items: Sequence[T]) -> Iterator[None]:
    """Runs `work` for the items one by one in a background thread, such as compiling what is needed later.
    Items that have not started at the end are skipped. Exceptions are dropped, so `work` must raise again
    when its item is needed."""
    with ThreadPoolExecutor(1) as thread:
        for item in items:
            thread.submit(work, item)
        try:
            yield
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
