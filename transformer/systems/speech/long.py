"""Long recordings among others: each is divided in a thread of its own, and all join one search."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transformer.data.sources.recordings import Recording
from transformer.decoding.queue import Answer
from transformer.runtime.errors import UserError
from transformer.systems.speech.transcripts import SpokenPart, Transcript

Parts = Callable[["LongRecording", Mapping[str, Any]], Iterator[SpokenPart]]
"""(a recording, options of the search) -> its parts."""


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


class LongRecordings:
    """Transcribes long recordings in the background, some at once.

    Args:
      parts: divides one, and yields its parts.
      most: how many at once.
    """

    def __init__(self, parts: Parts, most: int) -> None:
        self._parts = parts
        self._threads = ThreadPoolExecutor(most, "long recordings")

    def submit(self, recording: LongRecording, line: int, options: Mapping[str, Any]) -> Answer:
        """Begins to transcribe a recording.

        Args:
          recording: with its own options.
          line: its number, for messages.
          options: of the search.

        Returns:
          A future of a list with its transcript. It can be cancelled while it runs: then the recording is
          read no further.
        """
        answer = Answer()
        self._threads.submit(self._run, answer, recording, line, options)
        return answer

    def _run(self, answer: Answer, recording: LongRecording, line: int, options: Mapping[str, Any]) -> None:
        transcripts = list[Transcript]()
        answer.begin()
        try:
            if answer.cancelled():
                return
            for part in self._parts(recording, options):
                if answer.cancelled():
                    return
                transcripts.append(part.transcript)
            whole = [joined(transcripts)]
        except BaseException as error:
            failure = error
            if isinstance(error, UserError):
                failure = type(error)(f"line {line}: {error}")
            if answer.set_running_or_notify_cancel():
                answer.set_exception(failure)
        else:
            if answer.set_running_or_notify_cancel():
                answer.set_result(whole)


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
