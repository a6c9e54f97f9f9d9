"""The Python API for speech: a decoder whose records are recordings."""

import functools
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import jax
import numpy as np

from transformer.config.arguments import any_number, seconds, true_or_false
from transformer.config.decoding import DecodingConfig
from transformer.config.ranges import Option, instance
from transformer.config.records import Cut, Detector, WindowsConfig
from transformer.data.remote import fetched
from transformer.data.sequences import Example, length_in_search
from transformer.data.signals.audio import HOP, RATE
from transformer.data.signals.pauses import PAUSE, Part, detector_of, parts_of
from transformer.data.signals.waveforms import StoredRecording, audio_blocks, seconds_of, waveform_of
from transformer.data.sources.recordings import Recording, recording, recording_of
from transformer.decoding.scores import SearchResult
from transformer.decoding.service.lanes import Preparation
from transformer.decoding.service.queue import Request
from transformer.runtime.errors import UserError
from transformer.systems.speech.alignment import (
    Alignment,
    alignment_of,
    ids_of,
    long_alignment_of,
    positions_for,
    too_short,
    words_by_ctc,
)
from transformer.systems.speech.long import (
    SHORTEST_STEP,
    LiveText,
    LongRecording,
    RuledRecording,
    SeveralSearches,
    joined_so_far,
    live_texts,
)
from transformer.systems.speech.task import SpeechToText
from transformer.systems.speech.transcripts import SpokenPart, Transcript, spoken_parts
from transformer.systems.speech.windows import Sound, WindowSearch
from transformer.tasks.media.timing import Word, timed
from transformer.translator.decoder import Decoder
from transformer.translator.search_inputs import bucket_of
from transformer.translator.search_outputs import NO_EXTRAS, Extras

Heard = Path | str | np.ndarray | jax.Array | StoredRecording
"""A file, or a waveform at 16,000 samples a second: numbers from -1 to 1, or whole numbers, which are divided
by the range of their type."""

CONTENT = bytes, bytearray, memoryview, io.IOBase
"""What may hold a recording, and is not read."""


class Transcriber(Decoder[SpeechToText]):
    """A trained model that hears. Threads may share it. See `Decoder` for batches and programs."""

    reads, does = SpeechToText, "hear"
    extras = ("alignments", "times")
    _several: SeveralSearches | None = None

    def transcribe(
        self,
        recordings: Heard | Sequence[Heard],
        *,
        cut: Cut | None = None,
        pause: float | None = None,
        detector: Detector | None = None,
        windows: WindowsConfig | None = None,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        **options: Option,
    ) -> Any:
        """What is said in a recording (a string), or in each of several (a list). With timestamps it is a
        tuple of `Segment` objects. One that is longer than the model hears at once is divided, as in `parts`.

        Args:
          recordings: files, or waveforms at 16,000 samples a second (from -1 to 1, or whole numbers such as
            int16); one or a list.
          cut: how a long recording is divided, as in `parts`, like pause, detector and windows.
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
        sources: Any = [recordings] if is_one else recordings
        request: dict[str, Any] = {"language": language, "task": task, "timestamps": timestamps}
        start = self.task.start(language, task, true_or_false("timestamps", timestamps))
        settings = self.settings(1, options)
        rules = self.rules(settings, cut, detector, windows, pause)
        request |= {"cut": cut, "pause": pause, "detector": detector, "windows": windows}

        def record(source: Heard) -> Recording:
            if self.is_long(source):
                return LongRecording.of(source, request)
            return with_rules(self._begun(source, start), rules)

        texts = list[Any]()
        for best, *_ in self.outputs(enumerate(map(record, sources), 1), settings, 1):
            texts.append(best.segments if timestamps else best.text)
        return texts[0] if is_one else texts

    def parts(
        self,
        source: Heard,
        *,
        cut: Cut | None = None,
        pause: float | None = None,
        detector: Detector | None = None,
        windows: WindowsConfig | None = None,
        times: bool = False,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        after: Sequence[SpokenPart] = (),
        **options: Option,
    ) -> Iterator[SpokenPart]:
        """What is said in a recording of any length, part by part, in memory that does not grow with it.

        Args:
          source: a file, or a waveform at 16,000 samples a second.
          cut: "windows": Whisper's windows, each of which begins where the segments of the one before it end
            (`transformer.systems.speech.windows`); "pauses": the recording is cut at pauses
            (`transformer.data.signals.pauses`), and the parts join one search. None: windows, if the model
            has times among its tokens.
          pause: seconds of silence at which a part ends that is cut at pauses. None: 0.5.
          detector: what tells speech from pauses: "energy", or "silero", a small network
            (`transformer.data.signals.pauses`). None: energy.
          windows: options of windows. None: those of Whisper's publisher.
          times: whether to find when each word begins and ends.
          language: as in `transcribe`, like task.
          timestamps: whether parts have segments; windows always have them.
          after: the first parts, if they are known from before: those after them are returned.
          options: as in `transcribe`.

        Raises:
          UserError: it cannot be read, or an option is invalid.
        """
        if not (_is_array(source) or isinstance(source, Path | str | StoredRecording)):
            raise _unheard(source)
        timestamps = true_or_false("timestamps", timestamps)
        instance("after", after, list | tuple)
        in_windows = self.task.in_windows(cut, detector, windows, pause)
        pause = seconds("pause", PAUSE if pause is None else pause)
        start = self.task.start(language, task, timestamps or in_windows)
        extras = Extras(times=true_or_false("times", times))
        settings = self.settings(1, options)
        sound = _blocks_of(source)
        if in_windows:
            search = WindowSearch(self, settings, windows or WindowsConfig(), start, extras)
            return search.windows(Sound(sound), after)
        cut_parts = parts_of(sound, self.hears(settings), pause, detector_of(detector))

        def begun(part: Part, number: int) -> Future[list[Transcript]]:
            heard = replace(self.heard(part.wave), start=start)
            return self.submit(heard, n_best=1, line=number, extras=extras, **options)

        further_parts = itertools.islice(cut_parts, len(after), None)
        return spoken_parts(further_parts, begun, len(after) + 1, 2 * settings.rows)

    def live(
        self,
        sound: Iterable[np.ndarray],
        *,
        step: float = 1.0,
        pause: float = 0.5,
        language: str | None = None,
        task: str | None = None,
        **options: Option,
    ) -> Iterator[LiveText]:
        """Yields what is said while the sound arrives (`transformer.systems.speech.long`).

        Args:
          sound: its samples as they arrive, 16,000 a second, in arrays of any length, also none.
          step: seconds of sound between two transcripts.
          pause: seconds of silence at which all before it is final.
          language: as in `transcribe`, like task.
          options: as in `transcribe`.

        Raises:
          UserError: an array is no waveform, or an option is invalid.
        """
        longest, pause = self.hears(self.settings(1, options)), seconds("pause", pause)
        self.task.start(language, task, False)
        step = seconds("step", step, SHORTEST_STEP)
        sound = any_number("sound", sound, "waveforms")

        rules = WindowsConfig(temperatures=(0.0,)) if self.task.in_windows() else None

        def transcribe(wave: np.ndarray) -> str:
            ((best, *_),) = self.search(
                [wave], n_best=1, language=language, task=task, windows=rules, **options
            )
            return best.text

        waves = (waveform_of(block) for block in sound if np.shape(block) != (0,))
        return live_texts(transcribe, waves, longest, step, pause)

    def rules(
        self,
        settings: DecodingConfig,
        cut: Cut | None = None,
        detector: Detector | None = None,
        windows: WindowsConfig | None = None,
        pause: float | None = None,
    ) -> WindowsConfig | None:
        """The rules by which a recording is heard that the model hears at once: those of Whisper's windows.
        None: for other models, if recordings are cut at pauses, and in a search without a log-probability of
        its outputs.

        Args:
          settings: of the search.
          cut: as in `parts`, like the others.

        Raises:
          UserError: these options do not go together.
        """
        in_windows = self.task.in_windows(cut, detector, windows, pause)
        if not in_windows or (settings.method == "mbr" and windows in (None, WindowsConfig())):
            return None
        return windows or WindowsConfig()

    def hears(self, settings: DecodingConfig | None = None) -> float:
        """How many seconds the model hears at once, with some options of the search, or those of the run."""
        return self.task.hears(settings or self.settings(1, {}))

    def is_long(self, source: Heard) -> bool:
        """Whether a recording is longer than the model hears at once."""
        if isinstance(source, Path | str):
            length = seconds_of(fetched(Path(source)))
        else:
            length = np.shape(source)[0] / RATE if _is_array(source) and np.ndim(source) == 1 else 0.0
        return self.hears() < length < math.inf

    def search(
        self,
        recordings: Sequence[Heard],
        *,
        n_best: int | None = None,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        windows: WindowsConfig | None = None,
        **options: Option,
    ) -> list[list[Transcript]]:
        """What may be said in each recording, best first.

        Args:
          recordings: as in `transcribe`.
          n_best: outputs for each. None: all that the search returns.
          language: as in `transcribe`, like task and timestamps.
          windows: as in `transcribe`. None: what the search finds, whether or not somebody speaks.
          options: as in `transcribe`; `times=True` also returns when each word begins and ends, and
            `alignments=True` the cross-attention of each token, with a column for every `frame`.
        """
        if isinstance(recordings, Path | str):
            raise UserError(f"search takes a list of recordings: [{str(recordings)!r}]")
        if isinstance(recordings, CONTENT):
            raise _unheard(recordings)
        sources = any_number("recordings", recordings, "recordings")
        instance("windows", windows, WindowsConfig | None)
        extras, options = NO_EXTRAS.asked(self.extras, options)
        start = self.task.start(language, task, true_or_false("timestamps", timestamps))
        settings = self.settings(n_best, options)
        rules = self.rules(settings, "windows", windows=windows) if windows else None
        heard = (with_rules(self._begun(source, start), rules) for source in sources)
        return list(self.outputs(enumerate(heard, 1), settings, n_best, extras))

    def _begun(self, source: Heard, start: tuple[int, ...]) -> Recording:
        """The features of a recording, whose output begins with these ids."""
        return replace(self.heard(source), start=start)

    def heard(self, source: Heard) -> Recording:
        """The features of a recording.

        Raises:
          UserError: it cannot be read, or is no waveform.
        """
        if isinstance(source, Path | str):
            return recording(Path(source), self.task.data)
        if not _is_array(source):
            raise _unheard(source)
        return recording_of("waveform", waveform_of(source), self.task.data)

    def preparation(self, *, extras: Extras = NO_EXTRAS, **options: Option | bool) -> Preparation:
        """As `Decoder.preparation`. With `timestamps`: of outputs with times, in place of those without."""
        has_times = true_or_false("timestamps", options.pop("timestamps", False))
        silence = self.heard(np.zeros(RATE, np.float32)) if has_times else None
        records = {1: replace(silence, start=self.task.start(timestamps=True))} if silence else {}
        return self._preparation(records, *self._asked(extras, options))

    def align(self, source: Heard, text: str) -> Alignment:
        """When each word of a text is said in a recording: by the most probable of all divisions of the
        recording among the tokens of the text, and blanks, under CTC.

        Args:
          source: a file, or a waveform at 16,000 samples a second.
          text: what is said in it; empty: nothing.

        A recording of any length is heard window by window.

        Raises:
          UserError: the run has no CTC; the recording cannot be read, or is too short for the text; or the
            vocabulary lacks something of the text.
        """
        self.check_ctc()
        if not isinstance(text, str):
            raise UserError(f"align takes a recording and its text, a string, not {type(text).__name__}")
        if self._frames(source) > self.config.decoding.buckets[-1]:
            return long_alignment_of(self, _blocks_of(source), text)
        return self.aligned(self.heard(source), text)

    def _frames(self, source: Heard) -> float:
        """How many frames a recording has; infinity if its header does not say it."""
        if isinstance(source, Path | str):
            return seconds_of(fetched(Path(source))) * RATE / HOP
        return len(source) / HOP if _is_array(source) and np.ndim(source) == 1 else 0.0

    def check_alignment(self, source: Path | str, text: str) -> None:
        """Checks what can be told without hearing a file, so that `align` does not fail late in a list.

        Raises:
          UserError: the run has no CTC, the vocabulary lacks something of the text, or the file is too short
            for it.
        """
        self.check_ctc()
        ids = ids_of(text, self.task.tokenizer, self.task.special)
        frames = self._frames(source)
        if frames < math.inf and positions_for(ids) > math.ceil((frames + 2) * HOP / RATE / self.frame):
            raise too_short(frames * HOP / RATE, ids, self.frame)

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
        return bool(self.config.model.ctc_weight)

    def aligned(self, heard: Recording, text: str) -> Alignment:
        """As `align`, given the features of the recording. Also raises UserError if they are more than the
        model hears at once."""
        frames, longest = len(heard.features), self.config.decoding.buckets[-1]
        if frames > longest:
            raise UserError(
                f"the recording has {frames * HOP / RATE:.2f} s, and this model hears {self.hears():g} s at "
                "once: cut it at a pause"
            )
        (example,) = self.task.input_examples([heard], longest)
        length = self._padded_length(example, self.config.decoding)
        return alignment_of(self, example, text, length, self.task.heard_seconds(heard))

    def _padded_length(self, example: Example, settings: DecodingConfig) -> int:
        return bucket_of(length_in_search(example, self.task.input_fields), settings)

    def _submit_all(
        self,
        records: Sequence[tuple[int, Any]],
        settings: DecodingConfig,
        n_best: int | None,
        extras: Extras = NO_EXTRAS,
        **urgency: Any,
    ) -> list[Future[Any]]:
        """As `Decoder._submit_all`; long recordings are transcribed whole, and others by their rules."""
        long = [(line, record) for line, record in records if isinstance(record, LongRecording)]
        ruled = [(line, record) for line, record in records if isinstance(record, RuledRecording)]
        if not (long or ruled):
            return super()._submit_all(records, settings, n_best, extras, **urgency)
        for line, record in long:
            named = [("--n-best", n_best not in (None, 1)), ("--alignments", extras.alignments)]
            if wrong := [name for name, is_asked in named if is_asked]:
                raise UserError(
                    f"line {line}: {wrong[0]}: {record} is longer than the model hears at once; leave the "
                    "option out, or cut the recording into short ones"
                )
        if self._several is None:
            self._several = SeveralSearches(settings.rows)
        apart = LongRecording, RuledRecording
        short = [(line, record) for line, record in records if not isinstance(record, apart)]
        searched = super()._submit_all(short, settings, n_best, extras, **urgency) if short else []
        futures = dict(zip((line for line, _ in short), searched, strict=True))
        for line, record in long:
            options = {**record.options, "times": extras.times, **vars(settings)}
            futures[line] = self._several.submit(self._parts_of(record, options), line)
        for line, ruled_record in ruled:
            start = self.task.start() if ruled_record.start is None else ruled_record.start
            search = WindowSearch(self, settings, ruled_record.windows, start, extras, is_whole=True)
            outputs = functools.partial(search.outputs, ruled_record, line, n_best, **urgency)
            futures[line] = self._several.submit(outputs, line)
        return [futures[line] for line, _ in records]

    def _parts_of(
        self, recording: LongRecording, options: Mapping[str, Any]
    ) -> Callable[[], Iterator[list[Transcript]]]:
        """What yields what is found in a long recording."""
        return lambda: joined_so_far(self.parts(recording.source, **options), recording.heard)

    def submit_plain(
        self,
        record: Recording,
        line: int,
        settings: DecodingConfig,
        n_best: int | None,
        extras: Extras,
        **urgency: Any,
    ) -> Future[list[Transcript]]:
        """A future of what one search finds in a recording. The arguments are those of `_submit_all`."""
        (future,) = super()._submit_all([(line, record)], settings, n_best, extras, **urgency)
        return future

    def finished(self, result: SearchResult, request: Request) -> list[Transcript]:
        """The outputs of a recording, as in `Decoder`, and the times of their words: by CTC, if the run has
        it, otherwise by attention."""
        extras: Extras = request.extras
        by_ctc = extras.times and self.has_ctc
        searched = replace(request, extras=replace(extras, times=False)) if by_ctc else request
        outputs = super().finished(result, searched)
        words: Sequence[tuple[Word, ...]] = [()] * len(outputs)
        end = self.task.heard_seconds(request.record)
        if by_ctc:
            texts = [output.ids[:-1] for output in outputs]
            length = self._padded_length(request.example, request.options)
            words = words_by_ctc(self, request.example, texts, length, end)
        elif extras.times:
            first = self.task.codes.first_time if self.task.codes else None
            tokenizer = self.task.tokenizer
            words = [timed(x.ids, x.alignment, tokenizer, self.frame, end, first) for x in outputs]
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


def with_rules(recording: Recording, rules: WindowsConfig | None) -> Recording:
    """A recording that is heard by the rules of windows, if there are some."""
    return RuledRecording.of(recording, rules) if rules else recording


def _is_array(source: object) -> TypeGuard[np.ndarray]:
    """Whether it is an array of NumPy, JAX or another library."""
    return hasattr(source, "__array__")


def _blocks_of(source: Heard) -> Iterator[np.ndarray]:
    """The waveform of a recording, some seconds at once."""
    if isinstance(source, StoredRecording):
        return audio_blocks(source)
    if isinstance(source, Path | str):
        return audio_blocks(fetched(Path(source)))
    return iter([waveform_of(source)])


def _unheard(source: object) -> UserError:
    return UserError(f"cannot hear {type(source).__name__}: give files or arrays of samples")


ALIGNER = Transcriber
