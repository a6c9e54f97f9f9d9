"""Sampled segmentations of many texts, by processes of their own: the library holds the interpreter's lock.

`python -m transformer.data.features.sampled` is such a process. It imports nothing but tokenizers.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from transformer.data.features.tokenizer import Tokenizer
from transformer.data.sequences import Field, Sequences
from transformer.runtime.errors import UserError
from transformer.runtime.files import module_path

CHUNK = 512  # records that a process gets at a time
MOST = 16  # processes

Seed = tuple[int, ...]


@dataclass(frozen=True)
class Sampler:
    """Samples the sides of records."""

    tokenizers: tuple[Tokenizer, ...]
    """Of each side."""
    strength: float

    def __call__(self, records: Sequence[Sequence[str]], seeds: Sequence[Seed]) -> list[Sequences]:
        """A segmentation of each side of every record, closed by <eos>; the same for the same seed."""
        sides = []
        for side, tokenizer in enumerate(self.tokenizers):
            several = [
                [
                    *tokenizer.sample(record[side], np.random.default_rng((*seed, side)), self.strength),
                    tokenizer.special.eos,
                ]
                for record, seed in zip(records, seeds, strict=True)
            ]
            sides.append(Sequences.of(several, Field()))
        return sides


class SamplerProcesses:
    """A sampler that works in several processes, if there are many records. They end with this object.

    Args:
      sampler: what each does.
      count: of processes. None: as many as cores but one, which is left to this process.

    Raises:
      UserError: a process has ended.
    """

    def __init__(self, sampler: Sampler, count: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._count = min(MOST, max(1, cores - 1)) if count is None else count
        self._sampler = sampler
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, records: Sequence[Sequence[str]], seeds: Sequence[Seed]) -> Iterator[list[Sequences]]:
        """The samples, a chunk of records at a time, in order."""
        starts = range(0, len(records), CHUNK)
        chunks = ((records[start : start + CHUNK], seeds[start : start + CHUNK]) for start in starts)
        if len(starts) <= self._count:
            yield from (self._sampler(*chunk) for chunk in chunks)
            return
        with self._lock:  # one caller at a time, whose answers these are
            has_all = False
            try:
                yield from self._shared_out(chunks)
                has_all = True
            except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
                raise UserError(
                    "a process that samples segmentations has ended; is there too little memory? Training "
                    "can be resumed"
                ) from error
            finally:
                if not has_all:  # answers to this caller are still to come
                    self._end()

    def _shared_out(self, chunks: Iterator[Any]) -> Iterator[list[Sequences]]:
        waiting: list[subprocess.Popen[bytes]] = []
        for process in self._started():
            with contextlib.suppress(StopIteration):
                _send(process, next(chunks))
                waiting.append(process)
        while waiting:
            process = waiting.pop(0)
            answer = _answer(process)
            with contextlib.suppress(StopIteration):
                _send(process, next(chunks))
                waiting.append(process)
            yield answer

    def _started(self) -> list[subprocess.Popen[bytes]]:
        if not self._processes:
            command = [sys.executable, "-m", "transformer.data.features.sampled"]
            environment = os.environ | {"PYTHONPATH": module_path()}
            for _ in range(self._count):
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for this process, with which the others end
                )
                self._processes.append(process)
                _send(process, self._sampler)
        return self._processes

    def _end(self) -> None:
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.communicate()

    def __del__(self) -> None:
        self._end()


def _send(process: "subprocess.Popen[bytes]", what: object) -> None:
    assert process.stdin
    pickle.dump(what, process.stdin)
    process.stdin.flush()


def _answer(process: "subprocess.Popen[bytes]") -> list[Sequences]:
    assert process.stdout
    result = pickle.load(process.stdout)
    if isinstance(result, BaseException):
        raise result
    answer: list[Sequences] = result
    return answer


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answers until the other end closes."""
    with contextlib.suppress(EOFError):
        sampler = pickle.load(asked)
        while True:
            chunk = pickle.load(asked)
            try:
                answer: object = sampler(*chunk)
            except Exception as error:
                answer = error
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
