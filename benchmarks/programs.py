"""Compiled programs in this process: their time, in turns, and the memory that the compiler states."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from rich.progress import track


@dataclass(frozen=True)
class Program:
    """A compiled program with its arguments."""

    call: Callable[[], Any]
    bytes: int
    """Memory for results in between, besides arguments and results."""


def compiled(function: Callable[..., Any], *arguments: Any) -> Program:
    """The program of a function for these arguments."""
    program = jax.jit(function).lower(*arguments).compile()
    about = program.memory_analysis()
    return Program(lambda: program(*arguments), 0 if about is None else about.temp_size_in_bytes)


def medians(programs: Sequence[Program], rounds: int, what: str = "") -> list[float]:
    """Median seconds of each program. They take turns, so that a disturbance of the machine affects all of
    them. The first round, which warms up, does not count. `what` is the title of a progress bar; none: no
    bar."""
    seconds: list[list[float]] = [[] for _ in programs]
    for _ in track(range(rounds + 1), what, disable=not what):
        for program, times in zip(programs, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(program.call())
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]
