"""Recordings that take several searches, among others: long ones, and those that are heard by the rules of
Whisper's windows. Each has a thread of its own, and all join one search."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config.windows import WindowsConfig
from transformer.data.sources.recordings import Recording
from transformer.decoding.queue import Answer
from transformer.runtime.errors import UserError
from transformer.systems.speech.transcripts import SpokenPart, Transcript


@dataclass(frozen=True, eq=False)
class LongRecording(Recording):
    """A recording that is longer than a model hears at once. It is read when it is transcribed."""

    source: Any = None
    """A file, or a waveform."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `Transcriber.parts`, without those of the search."""

    @classmethod
    def of(cls, source: Any, options: Mapping[str, Any]) -> "LongRecording":
        """A file, or a waveform, with the options of `Transcriber.parts`."""
        name = str(source) if isinstance(source, Path | str) else "a waveform"
        return cls(name, np.zeros((0, 0), np.float32), source=source, options=options)


@dataclass(frozen=True)
class RuledRecording(Recording):
    """A recording that a model hears at once, and that is heard by the rules of windows."""

    windows: WindowsConfig = field(default_factory=WindowsConfig)

    @classmethod
    def of(cls, recording: Recording, windows: WindowsConfig) -> "RuledRecording":
        """A recording with the options of windows."""
        return cls(**vars(recording), windows=windows)

    @property
    def plain(self) -> Recording:
        """The recording alone."""
        return Recording(**{name: getattr(self, name) for name in Recording.__dataclass_fields__})


class SeveralSearches:
    """Transcribes recordings in the background, some at once.

    Args:
      most: how many at once.
    """

    def __init__(self, most: int) -> None:
        self._threads = ThreadPoolExecutor(most, "recordings")

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


def joined_so_far(parts: Iterable[SpokenPart]) -> Iterator[list[Transcript]]:
    """Nothing after each part, and at the end one transcript of all."""
    transcripts = list[Transcript]()
    for part in parts:
        transcripts.append(part.transcript)
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
