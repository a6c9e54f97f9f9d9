"""Several batches searched at the same time, by threads, and their results in order; and what a thread does
meanwhile."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from transformer.parallel import on_one_cpu

T = TypeVar("T")
R = TypeVar("R")


def batches_at_once() -> int:
    """How many batches are searched at the same time: on a CPU, while one search does what cannot be cut
    into parts for all cores, another has the cores that are left."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(2, cores or 1) if on_one_cpu() else 1


def in_turn(work: Callable[[T], R], items: Sequence[T], at_once: int) -> Generator[R, None, None]:
    """What `work` makes of every item, in order, by so many threads; no more items are begun than that,
    and as many again wait: no longer where the generator is closed. Raises what `work` raises."""
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
    """A thread of its own does `work` for the items, one by one, such as compiling what is needed later;
    what it has not begun at the end is left undone. What `work` raises is lost: it must raise again for
    whoever needs the item."""
    with ThreadPoolExecutor(1) as thread:
        for item in items:
            thread.submit(work, item)
        try:
            yield
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
