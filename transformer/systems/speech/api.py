"""The Python API for speech: a decoder whose records are recordings."""

import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.config import Option
from transformer.config.ranges import true_or_false
from transformer.data.features.waveforms import waveform_of
from transformer.data.sources.recordings import Recording, features, recording
from transformer.decoding.queue import Request
from transformer.decoding.scores import SearchResult
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.speech.task import SpeechToText
from transformer.tasks.hypotheses import Hypothesis
from transformer.tasks.timing import Segment, Word, timed
from transformer.translator.decoder import Decoder
from transformer.translator.search_outputs import Extras

Heard = Path | str | np.ndarray | jax.Array
"""A file, or a waveform at 16,000 samples a second: numbers from -1 to 1, or whole numbers, which are divided
by the range of their type."""

CONTENT = bytes, bytearray, memoryview, io.IOBase
"""What may hold a recording, and is not read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Transcript(Hypothesis):
    """What was said in a recording. `json.dumps(transcript.to_dict())` writes it as JSON."""

    words: tuple[Word, ...] = ()
    """With their times, if requested."""
    segments: tuple[Segment, ...] = ()
    """Parts of the text with their times, if timestamps were requested."""

    def to_json(self) -> Json:
        """As `Hypothesis.to_json`, with words and segments if there are some."""
        words = [{"word": word.text, "start": word.start, "end": word.end} for word in self.words]
        segments = [segment.to_dict() for segment in self.segments]
        parts = {"words": words, "segments": segments}
        return super().to_json() | {name: some for name, some in parts.items() if some}


class Transcriber(Decoder[SpeechToText]):
    """A trained model that hears. Threads may share it. See `Decoder` for batches and programs."""

    reads, does = SpeechToText, "hear"

    def transcribe(
        self,
        recordings: Heard | Sequence[Heard],
        *,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        **options: Option,
    ) -> Any:
        """What is said in a recording (a string), or in each of several (a list). With timestamps it is a
        tuple of `Segment` objects.

        Args:
          recordings: files, or waveforms at 16,000 samples a second (from -1 to 1, or whole numbers such as
            int16); one or a list.
          language: Whisper: the code of the language that is spoken, such as en. None: that of the run.
          task: Whisper: transcribe, or translate (to English). None: that of the run.
          timestamps: Whisper: whether to return segments with their times.
          options: any field of `DecodingConfig`, instead of the run's value.

        Raises:
          UserError: a recording cannot be read, or an option is invalid.
        """
        is_one = isinstance(recordings, Path | str) or _is_array(recordings)
        several: Any = [recordings] if is_one else recordings
        asked: dict[str, Any] = {"language": language, "task": task, "timestamps": timestamps}
        bests = [best for (best, *_) in self.search(several, n_best=1, **asked, **options)]
        texts = [best.segments if timestamps else best.text for best in bests]
        return texts[0] if is_one else texts

    def search(
        self,
        recordings: Sequence[Heard],
        *,
        n_best: int | None = None,
        times: bool = False,
        alignments: bool = False,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        **options: Option,
    ) -> list[list[Transcript]]:
        """What may be said in each recording, best first.

        Args:
          recordings: as in `transcribe`.
          n_best: outputs for each. None: all that the search returns.
          times: whether to return when each word begins and ends.
          alignments: whether to return the cross-attention of each token: a column for every `frame`.
          language: as in `transcribe`, like task and timestamps.
          options: as in `transcribe`.
        """
        if isinstance(recordings, Path | str):
            raise UserError(f"search takes a list of recordings: [{str(recordings)!r}]")
        if isinstance(recordings, CONTENT) or not isinstance(recordings, Iterable):
            raise _unheard(recordings)
        times = true_or_false("times", times)
        alignments = true_or_false("alignments", alignments)
        start = self.task.start(language, task, true_or_false("timestamps", timestamps))
        settings = self.settings(n_best, options)
        extras = Extras(alignments, times=times)
        heard = (dataclasses.replace(self.heard(source), start=start) for source in recordings)
        return list(self.outputs(enumerate(heard, 1), settings, n_best, extras))

    def heard(self, source: Heard) -> Recording:
        """The features of a recording.

        Raises:
          UserError: it cannot be read, or is no waveform.
        """
        if isinstance(source, Path | str):
            return recording(Path(source), self.task.data)
        if not _is_array(source):
            raise _unheard(source)
        return Recording("waveform", features(waveform_of(source), self.task.data))

    def finished(self, result: SearchResult, request: Request) -> list[Transcript]:
        """The outputs of a recording, as in `Decoder`, and the times of their words."""
        transcripts = []
        for output in super().finished(result, request):
            fields, attention = output.fields(), output.alignment
            if request.extras.times:
                fields["words"] = timed(output.ids, attention, self.task.tokenizer, self.frame)
            fields["alignment"] = attention if request.extras.alignments else None
            fields["segments"] = self.task.segments(output.ids, request.record)
            transcripts.append(Transcript(**fields))
        return transcripts

    @property
    def frame(self) -> float:
        """Seconds from one column of an alignment to the next."""
        return self.task.stride


def _is_array(source: object) -> bool:
    """Whether it is an array of NumPy, JAX or another library."""
    return hasattr(source, "__array__")


def _unheard(source: object) -> UserError:
    return UserError(f"cannot hear {type(source).__name__}: give files or arrays of samples")
