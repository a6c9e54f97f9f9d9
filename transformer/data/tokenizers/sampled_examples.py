"""Draws the segmentations of an epoch, word by word or sentence by sentence."""

import contextlib
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int

from transformer.config.corpus import DataConfig
from transformer.data.sampled_plan import Draw
from transformer.data.sequences import Arrays, Field, Sequences
from transformer.data.store import Records
from transformer.data.tokenizers.segmentations import WordSampler
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.runtime.errors import UserError
from transformer.runtime.files import module_path

# Sampled segmentations of many texts, by processes of their own: the library holds the interpreter's lock.


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
            command = [sys.executable, "-m", "transformer.data.tokenizers.sampled_examples"]
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


def with_method(data: DataConfig, tokenizers: Sequence[Tokenizer]) -> DataConfig:
    """The options of a new run, with the method decided if they sample and leave it open.

    Raises:
      UserError: they sample, and the vocabularies are of another kind than they say.
    """
    if not data.subword_sampling:
        return data
    for tokenizer in tokenizers:
        kind = getattr(tokenizer, "kind", data.tokenizer)
        if kind == "char":
            raise UserError(
                "--data.subword-sampling: the given vocabulary has only one segmentation; leave it out"
            )
        if kind != data.tokenizer:
            raise UserError(
                f"--data.tokenizer {data.tokenizer} with --data.subword-sampling: the given vocabulary is a "
                f"{kind} model, which is sampled in another way: give --data.tokenizer {kind}"
            )
    if data.sampling_by:
        return data
    by_word = all(tokenizer.subwords for tokenizer in tokenizers)
    return dataclasses.replace(data, sampling_by="word" if by_word else "sentence")


def drawn_by(
    data: DataConfig, tokenizers: Mapping[str, Tokenizer], records: Records, examples: Arrays
) -> Draw:
    """Draws by the method of the options; by sentences if they have none, as runs did before there was one.

    Args:
      data: the options.
      tokenizers: of each side.
      records: a text for each side.
      examples: their best segmentations.

    Raises:
      UserError: the method is not for these tokenizers, or the strength is invalid.
    """
    if data.sampling_by == "word":
        return WordDraw(data, tokenizers, examples)
    return SentenceDraw(data, tokenizers, records, examples)


class WordDraw:
    """Samples words; a few array operations for any number of examples. Arguments as those of `drawn_by`."""

    part = 2**15  # examples: enough to meet frequent words often, few enough for a few hundred MB

    def __init__(self, data: DataConfig, tokenizers: Mapping[str, Tokenizer], examples: Arrays) -> None:
        self._seed, self._examples = data.seed, examples
        self._samplers: dict[str, WordSampler] = {}
        for side, tokenizer in tokenizers.items():
            if tokenizer.subwords is None:
                raise UserError(
                    f"--data.sampling-by word: pieces of the {side} vocabulary cross spaces, or are not "
                    "divided into characters; use sentence"
                )
            self._samplers[side] = WordSampler(
                tokenizer.subwords, tokenizer.special.eos, data.subword_sampling
            )

    def __call__(
        self, epoch: int, window: int, indices: Int[np.ndarray, " examples"]
    ) -> Iterator[dict[str, Sequences]]:
        """As `Draw`."""
        # from 1: a 0 at the end of a seed changes nothing
        numbers = range(1, len(self._samplers) + 1)
        randoms = [np.random.default_rng((self._seed, epoch, window, number)) for number in numbers]
        for start in range(0, len(indices), self.part):
            chosen = indices[start : start + self.part]
            segmentations = {}
            for (side, sample), random in zip(self._samplers.items(), randoms, strict=True):
                best = self._examples[side]
                assert isinstance(best, Sequences)
                segmentations[side] = sample(best.take(chosen), random)
            yield segmentations


class SentenceDraw:
    """Samples sentences one by one, in processes. Arguments as those of `drawn_by`."""

    part = CHUNK

    def __init__(
        self, data: DataConfig, tokenizers: Mapping[str, Tokenizer], records: Records, examples: Arrays
    ) -> None:
        self._seed, self._sides, self._records = data.seed, tuple(tokenizers), records
        # texts that begin with the code of a language of their record, which no sample has
        opened = (
            side for side, tokenizer in tokenizers.items() if tokenizer.has_codes and not tokenizer.start
        )
        self._best = {side: examples[side] for side in opened}
        self._sample = SamplerProcesses(Sampler(tuple(tokenizers.values()), data.subword_sampling))

    def __call__(
        self, epoch: int, window: int, indices: Int[np.ndarray, " examples"]
    ) -> Iterator[dict[str, Sequences]]:
        """As `Draw`."""
        texts = self._records.__getitems__(indices.tolist())
        count = 0
        for sides in self._sample(texts, [(self._seed, epoch, int(index)) for index in indices]):
            segmentations = dict(zip(self._sides, sides, strict=True))
            chosen = indices[count : (count := count + len(sides[0]))]
            for side, best in self._best.items():
                assert isinstance(best, Sequences)
                segmentations[side] = segmentations[side].after(best.values[best.ends[chosen]])
            yield segmentations
