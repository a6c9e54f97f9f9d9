"""Recordings that take several searches, among others: long ones, and those that are heard by the rules of
Whisper's windows. Each has a thread of its own, and all join one search."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.config.records import WindowsConfig
from transformer.data.signals.audio import RATE
from transformer.data.signals.pauses import GAP, Part, parts_of
from transformer.data.sources.recordings import Recording
from transformer.decoding.service.queue import Answer
from transformer.runtime.errors import UserError
from transformer.systems.speech.transcripts import SpokenPart, Transcript
from transformer.tasks.metrics.scores import is_unspaced


@dataclass(frozen=True, eq=False)
class LongRecording(Recording):
    """A recording that is longer than a model hears at once. It is read when it is transcribed."""

    source: Any = None
    """A file, also one in memory, or a waveform."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of `Transcriber.parts`, without those of the search."""
    heard: Callable[[float], None] = lambda seconds: None
    """Is called with the seconds that are transcribed, after each part."""

    @classmethod
    def of(
        cls, source: Any, options: Mapping[str, Any], heard: Callable[[float], None] = lambda seconds: None
    ) -> "LongRecording":
        """A file, or a waveform, with the options of `Transcriber.parts`; `heard` as the field."""
        name = str(source) if isinstance(source, Path | str) else "a waveform"
        return cls(name, np.zeros((0, 0), np.float32), source=source, options=options, heard=heard)


@dataclass(frozen=True, eq=False)
class RuledRecording(Recording):
    """A recording that a model hears at once, and that is heard by the rules of windows."""

    windows: WindowsConfig = field(default_factory=WindowsConfig)

    @classmethod
    def of(cls, recording: Recording, windows: WindowsConfig) -> "RuledRecording":
        """A recording with the options of windows."""
        return cls(**vars(recording), windows=windows)


class SeveralSearches:
    """Transcribes recordings in the background, some at once.

    Args:
      num_threads: how many at once.
    """

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, "recordings")

    def submit(self, transcripts: Callable[[], Iterable[list[Transcript]]], line: int) -> Answer:
        """Begins to transcribe a recording.

        Args:
          transcripts: yields what is found after each search, and all of it at the end.
          line: its number, for messages.

        Returns:
          A future of the last list. It can be cancelled while it runs: then nothing more is searched.
        """
        answer = Answer()
        self._threads.submit(self._run, answer, transcripts, line)
        return answer

    def _run(self, answer: Answer, transcripts: Callable[[], Iterable[list[Transcript]]], line: int) -> None:
        whole = list[Transcript]()
        answer.begin()
        try:
            if answer.cancelled():
                return
            for transcript in transcripts():
                if answer.cancelled():
                    return
                whole = transcript
        except BaseException as error:
            failure = error
            if isinstance(error, UserError):
                failure = type(error)(f"line {line}: {error}")
            if answer.set_running_or_notify_cancel():
                answer.set_exception(failure)
        else:
            if answer.set_running_or_notify_cancel():
                answer.set_result(whole)


def joined_so_far(parts: Iterable[SpokenPart], heard: Callable[[float], None]) -> Iterator[list[Transcript]]:
    """Nothing after each part, when `heard` is called with its end, and at last one transcript of all."""
    transcripts = list[Transcript]()
    for part in parts:
        transcripts.append(part.transcript)
        heard(part.end)
        yield []
    yield [joined(transcripts)]


def joined(transcripts: Sequence[Transcript]) -> Transcript:
    """One transcript of several, which follow each other. Its score is the mean of theirs by their tokens."""
    sizes = [max(len(transcript.ids), 1) for transcript in transcripts]
    scores = (transcript.score * size for transcript, size in zip(transcripts, sizes, strict=True))
    return Transcript(
        " ".join(transcript.text for transcript in transcripts if transcript.text),
        tuple(token for transcript in transcripts for token in transcript.tokens),
        sum(scores) / max(sum(sizes), 1),
        sum(transcript.log_probability for transcript in transcripts),
        ids=tuple(index for transcript in transcripts for index in transcript.ids),
        words=tuple(word for transcript in transcripts for word in transcript.words),
        segments=tuple(segment for transcript in transcripts for segment in transcript.segments),
    )


# Recognition of sound while it arrives, by local agreement (Liu et al. 2020, section 3.1).


SHORTEST_STEP = 0.1
"""Seconds between two transcripts."""
BEFORE = 10.0
"""Seconds of sound before the last pause that tell how loud silence is."""


class LiveText(NamedTuple):
    """What was heard until now."""

    final: str
    """What is new of the text that does not change any more: append it."""
    tentative: str
    """What seems to follow."""
    seconds: float
    """How much sound has arrived."""


def live_texts(
    transcribe: Callable[[Float[np.ndarray, " samples"]], str],
    sound: Iterable[Float[np.ndarray, " _"]],
    longest: float,
    step: float = 1.0,
    pause: float = 0.5,
) -> Iterator[LiveText]:
    """Yields what was heard, after each step and at the end. Words are compared; in a language without spaces
    between them, which the first text with letters tells, characters.

    Args:
      transcribe: the text of a waveform of at most `longest` seconds.
      sound: samples as they arrive, 16,000 a second.
      longest: seconds that are transcribed at once; speech without a pause is cut.
      step: seconds of sound between two transcripts.
      pause: seconds of silence that end a part.
    """
    has_spaces: bool | None = None

    def words_of(part: Part) -> list[str]:
        nonlocal has_spaces
        text = transcribe(part.wave)
        if has_spaces is None and any(map(str.isalpha, text)):
            has_spaces = not is_unspaced([text])
        return list(text) if has_spaces is False else [f" {word}" for word in text.split()]

    heard, begin = np.zeros(0, np.float32), 0.0  # samples, and when the first of them came
    done, before, num_final, has_text = 0.0, list[str](), 0, False
    for block in _steps(sound, round(step * RATE)):
        heard = heard if block is None else np.concatenate([heard, block])
        length = len(heard) / RATE
        new, tentative = list[str](), list[str]()
        parts = list(parts_of([heard], longest, pause))
        for part in (part for part in parts if begin + part.spoken[1] > done):
            words = words_of(part)
            if block is None or part is not parts[-1] or part.spoken[1] + pause <= length:
                new += words[num_final:]
                done, before, num_final = (
                    begin + part.end,
                    before[len(words) :],
                    max(0, num_final - len(words)),
                )
            else:
                has_ended = part.spoken[1] + GAP <= length
                pairs = zip(before, words if has_ended else words[:-1], strict=False)
                same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
                agreed = max(num_final, len(list(same)))
                new += words[num_final:agreed]
                before, num_final, tentative = words, agreed, words[agreed:]
        text = "".join(new)
        final = text if has_text else text.removeprefix(" ")
        yield LiveText(final, "".join(tentative).removeprefix(" "), begin + length)
        has_text = has_text or bool(text)
        dropped = max(0, round((max(done, begin + length - longest) - BEFORE - begin) * RATE))
        begin, heard = begin + dropped / RATE, heard[dropped:]


def speed_of(sound: float, took: float) -> str:
    """How fast sound was heard, in words.

    Args:
      sound: its seconds.
      took: the seconds of hearing it, from the first block on.
    """
    factor = took / max(sound, 1e-9)
    return f"{sound:,.1f} s of sound in {took:.1f} s (real-time factor {factor:.3f}, compilation included)"


def _steps(
    sound: Iterable[Float[np.ndarray, " _"]], size: int
) -> Iterator[Float[np.ndarray, " samples"] | None]:
    """Samples in blocks of this size, the last of which is shorter, then None."""
    pending = np.zeros(0, np.float32)
    for samples in sound:
        pending = np.concatenate([pending, samples])
        while len(pending) >= size:
            yield pending[:size]
            pending = pending[size:]
    if len(pending):
        yield pending
    yield None
