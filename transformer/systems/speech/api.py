"""The Python API for speech: a decoder whose records are recordings."""

import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.config import DecodingConfig, Option
from transformer.config.ranges import seconds, true_or_false, whole_number
from transformer.data.features.audio import HOP, RATE
from transformer.data.features.pauses import Part, parts_of
from transformer.data.features.waveforms import audio_blocks, seconds_of, waveform_of
from transformer.data.remote import fetched
from transformer.data.sequences import Example, length_in_search
from transformer.data.sources.recordings import Recording, features, recording
from transformer.decoding.queue import Request
from transformer.decoding.scores import SearchResult
from transformer.runtime.errors import UserError
from transformer.systems.speech.alignment import Alignment, alignment_of, words_by_ctc
from transformer.systems.speech.task import SpeechToText
from transformer.systems.speech.transcripts import SpokenPart, Transcript, spoken_parts
from transformer.tasks.timing import Word, timed
from transformer.translator.decoder import Decoder
from transformer.translator.lengths import bucket_of
from transformer.translator.search_outputs import Extras

Heard = Path | str | np.ndarray | jax.Array
"""A file, or a waveform at 16,000 samples a second: numbers from -1 to 1, or whole numbers, which are divided
by the range of their type."""

CONTENT = bytes, bytearray, memoryview, io.IOBase
"""What may hold a recording, and is not read."""


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
        tuple of `Segment` objects. One that is longer than the model hears at once is cut at pauses, as in
        `parts`.

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
        if not is_one and (isinstance(recordings, CONTENT) or not isinstance(recordings, Iterable)):
            raise _unheard(recordings)
        several: Any = [recordings] if is_one else recordings
        asked: dict[str, Any] = {"language": language, "task": task, "timestamps": timestamps}
        are_long = [self._is_long(source) for source in several]
        short = (source for source, is_long in zip(several, are_long, strict=True) if not is_long)
        bests = iter(self.search(list(short), n_best=1, **asked, **options))
        texts = list[Any]()
        for source, is_long in zip(several, are_long, strict=True):
            if is_long:
                parts = [part.transcript for part in self.parts(source, **asked, **options)]
            else:
                parts = next(bests)[:1]
            if timestamps:
                texts.append(tuple(segment for part in parts for segment in part.segments))
            else:
                texts.append(" ".join(part.text for part in parts if part.text))
        return texts[0] if is_one else texts

    def parts(
        self,
        source: Heard,
        *,
        pause: float = 0.5,
        times: bool = False,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        skip: int = 0,
        **options: Option,
    ) -> Iterator[SpokenPart]:
        """What is said in a recording of any length, part by part, in memory that does not grow with it. It
        is cut at pauses (`transformer.data.features.pauses`); the parts join one search.

        Args:
          source: a file, or a waveform at 16,000 samples a second.
          pause: seconds of silence at which a part ends.
          times: whether to find when each word begins and ends.
          language: as in `transcribe`, like task and timestamps.
          skip: parts at the beginning to leave out.
          options: as in `transcribe`.

        Raises:
          UserError: it cannot be read, or an option is invalid.
        """
        if not (_is_array(source) or isinstance(source, Path | str)):
            raise _unheard(source)
        skip = whole_number("skip", skip)
        start = self.task.start(language, task, true_or_false("timestamps", timestamps))
        extras = Extras(times=true_or_false("times", times))
        settings = self.settings(1, options)
        sound = (
            audio_blocks(fetched(Path(source)))
            if isinstance(source, Path | str)
            else iter([waveform_of(source)])
        )
        cut = parts_of(sound, self.hears(settings), seconds("pause", pause))

        def begun(part: Part, number: int) -> Future[list[Transcript]]:
            heard = replace(self.heard(part.wave), start=start)
            return self.submit(heard, n_best=1, line=number, extras=extras, **options)

        return spoken_parts(itertools.islice(cut, skip, None), begun, skip + 1, 2 * settings.rows)

    def hears(self, settings: DecodingConfig | None = None) -> float:
        """How many seconds the model hears at once, with some options of the search, or those of the run."""
        return self.task.hears(settings or self.settings(1, {}))

    def _is_long(self, source: Heard) -> bool:
        if isinstance(source, Path | str):
            length = seconds_of(fetched(Path(source)))
        else:
            length = np.shape(source)[0] / RATE if np.ndim(source) == 1 else 0.0
        return self.hears() < length < math.inf

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
        heard = (replace(self.heard(source), start=start) for source in recordings)
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

    def align(self, source: Heard, text: str) -> Alignment:
        """When each word of a text is said in a recording: by the most probable of all divisions of the
        recording among the tokens of the text, and blanks, under CTC.

        Args:
          source: a file, or a waveform at 16,000 samples a second.
          text: what is said in it.

        Raises:
          UserError: the run has no CTC; the recording cannot be read, or is longer than the model hears at
            once, or too short for the text; the text is empty, or has what the vocabulary lacks.
        """
        self.check_ctc()
        if not isinstance(text, str):
            raise UserError(f"align takes a recording and its text, a string, not {type(text).__name__}")
        return self.aligned(self.heard(source), text)

    def check_ctc(self) -> None:
        """Raises UserError if the run has no CTC."""
        if not self.has_ctc:
            raise UserError(
                "this run has no CTC, which aligns texts with recordings: train one with "
                "--model.ctc-weight 0.3"
            )

    @property
    def has_ctc(self) -> bool:
        """Whether its run was trained with CTC."""
        return bool(self.config.model.ctc_weight)  # type: ignore[attr-defined]

    def aligned(self, heard: Recording, text: str) -> Alignment:
        """As `align`, given the features of the recording."""
        frames, longest = len(heard.features), self.config.decoding.buckets[-1]
        if frames > longest:
            raise UserError(
                f"the recording has {frames * HOP / RATE:.2f} s, and this model hears {self.hears():g} s at "
                "once: cut it at a pause"
            )
        (example,) = self.task.input_examples([heard], longest)
        return alignment_of(self, example, text, self._padded_length(example, self.config.decoding))

    def _padded_length(self, example: Example, settings: DecodingConfig) -> int:
        return bucket_of(length_in_search(example, self.task.input_fields), settings)

    def finished(self, result: SearchResult, request: Request) -> list[Transcript]:
        """The outputs of a recording, as in `Decoder`, and the times of their words: by CTC, if the run has
        it, otherwise by attention."""
        extras: Extras = request.extras
        by_ctc = extras.times and self.has_ctc
        searched = replace(request, extras=replace(extras, times=False)) if by_ctc else request
        outputs = super().finished(result, searched)
        words: Sequence[tuple[Word, ...]] = [()] * len(outputs)
        if by_ctc:
            texts = [output.ids[:-1] for output in outputs]
            length = self._padded_length(request.example, request.options)
            words = words_by_ctc(self, request.example, texts, length)
        elif extras.times:
            words = [timed(x.ids, x.alignment, self.task.tokenizer, self.frame) for x in outputs]
        transcripts = []
        for output, of_output in zip(outputs, words, strict=True):
            fields = output.fields()
            fields["words"] = of_output
            fields["alignment"] = output.alignment if extras.alignments else None
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


ALIGNER = Transcriber
