"""A recording of any length in windows of 30 seconds, in which Whisper hears it (Radford et al. 2022,
sections 3.8 and 4.5; Whisper's `transcribe.py` has the details), and the searches of the windows.

The text of a window has times. The next window begins at the last of them that ends a segment, so that what
was cut is heard again, whole.
"""

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.config.decoding import DecodingConfig, names_of
from transformer.config.records import WindowsConfig
from transformer.data.signals.audio import HOP, RATE
from transformer.data.sources.recordings import Recording
from transformer.decoding.calls import Inputs, advance, as_variables, init_cache, special_ids
from transformer.decoding.searches.search import length_penalty
from transformer.decoding.service.lanes import batch
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import shard_rows
from transformer.systems.speech.options import PROMPT
from transformer.systems.speech.transcripts import NOTHING, SpokenPart, SpokenWindow, Transcript, unsaid
from transformer.tasks.media.timing import Segment, moved, units

Wave = Float[np.ndarray, " samples"]
HOT = 0.5
"""The highest temperature of a text that is a prompt (Whisper's `transcribe.py`)."""
FRAMES = 2
"""Frames from one time of Whisper to the next, which is 0.02 s later."""


@dataclass(frozen=True, eq=False)
class Heard:
    """What a search has found in a window."""

    transcript: Transcript
    ids: tuple[int, ...]
    """Text and times, without what the output is forced to begin with, and without <eos>."""
    mean: float
    """The mean log-probability of a token, <eos> included, in nats. That of each token is relative to those
    that the rules of times allow."""


@dataclass(frozen=True)
class Piece:
    """A segment of a window."""

    start: int
    """The first frame of the segment, in the window."""
    end: int
    ids: tuple[int, ...]


@dataclass
class Window:
    """A window whose search is begun."""

    search: Callable[[float], Heard]
    """(temperature) -> what is found."""
    compute_silence: Callable[[], float]
    """() -> the probability that nobody speaks."""
    known_silence: float | None = None
    """This probability, if it was needed, or is known without the model."""

    @property
    def silence(self) -> float:
        """The probability that nobody speaks; computed when it is needed."""
        if self.known_silence is None:
            self.known_silence = self.compute_silence()
        return self.known_silence


def decoded(window: Window, options: WindowsConfig) -> tuple[Heard, float]:
    """What is heard in a window, and at which temperature: the first at which it neither repeats itself nor
    is improbable, or at which it is improbable because nobody speaks; otherwise the last one."""
    heard, temperature = None, 0.0
    for temperature in options.temperatures:
        heard = window.search(temperature)
        ratio = compression_ratio(heard.transcript.text)
        repeats = options.compression_ratio is not None and ratio > options.compression_ratio
        is_improbable = options.log_probability is not None and heard.mean < options.log_probability
        if is_improbable and options.no_speech is not None and window.silence > options.no_speech:
            break
        if not (repeats or is_improbable):
            break
    assert heard is not None
    return heard, temperature


def is_silent(window: Window, heard: Heard, options: WindowsConfig) -> bool:
    """Whether a window stays without text."""
    if options.no_speech is None:
        return False
    is_certain = options.log_probability is not None and heard.mean > options.log_probability
    return not is_certain and window.silence > options.no_speech


def compression_ratio(text: str) -> float:
    """The size of a text over that of its compression."""
    content = text.encode()
    return len(content) / len(zlib.compress(content))


def pieces_of(ids: Sequence[int], first_time: int, frames: int) -> tuple[list[Piece], int]:
    """The segments of a window, and after how many frames the next one begins.

    Args:
      ids: text and times.
      first_time: the id of time 0; all ids from it are times.
      frames: of the window.
    """

    def frame(index: int) -> int:
        return FRAMES * (index - first_time)

    is_time = [index >= first_time for index in ids]
    ends = [end for end in range(1, len(ids)) if is_time[end - 1] and is_time[end]]
    nothing_follows = is_time[-2:] == [False, True]  # the output ends with the end of a segment
    if not ends:
        times = [index for index in ids if index > first_time]
        return [Piece(0, frame(times[-1]) if times else frames, tuple(ids))], frames
    if nothing_follows:
        ends.append(len(ids))
    starts = [0, *ends]
    pieces = [
        Piece(frame(ids[start]), frame(ids[end - 1]), tuple(ids[start:end]))
        for start, end in zip(starts, ends, strict=False)
    ]
    return pieces, frames if nothing_follows else frame(ids[ends[-1] - 1]) or frames


class Sound:
    """A recording that is read as it is needed.

    Args:
      blocks: the waveform, 16,000 samples a second.
    """

    def __init__(self, blocks: Iterable[Wave]) -> None:
        self._unread = iter(blocks)
        self._buffer = np.zeros(0, np.float32)
        self._begin = 0

    def window(self, frame: int, frames: int) -> Wave:
        """So many whole frames from a frame on, or as many as there are. What is before it is forgotten."""
        start = frame * HOP - self._begin
        while len(self._buffer) < start + frames * HOP:
            block = next(self._unread, None)
            if block is None:
                break
            self._buffer = np.concatenate([self._buffer, block])
            passed = min(start, len(self._buffer))
            self._buffer, self._begin, start = self._buffer[passed:], self._begin + passed, start - passed
        self._buffer, self._begin = self._buffer[start:], self._begin + start
        return self._buffer[: min(len(self._buffer) // HOP, frames) * HOP]


def windows_of(
    sound: Sound,
    begin: Callable[[Wave, Sequence[int], int], Window],
    spell: Callable[[Sequence[int]], str],
    options: WindowsConfig,
    first_time: int,
    frames: int,
    max_prompt_ids: int,
    before: SpokenWindow | None = None,
) -> Iterator[SpokenWindow]:
    """What is said in the windows of a recording, in order.

    Args:
      sound: the recording.
      begin: (a window, the ids that are said before it, its first frame) -> its search.
      spell: (ids of a segment) -> their text.
      options: of windows.
      first_time: the id of time 0.
      frames: of a window.
      max_prompt_ids: ids that a prompt may have.
      before: the window after which to continue. None: at the beginning.
    """
    seek = round(before.end * RATE / HOP) if before else 0
    prompt = before.prompt if before else ()
    while len(wave := sound.window(seek, frames)):
        size = len(wave) // HOP
        window = begin(wave, prompt, seek)
        heard, temperature = decoded(window, options)
        pieces, following = list[Piece](), size
        is_heard = not is_silent(window, heard, options)
        if is_heard:
            pieces, following = pieces_of(heard.ids, first_time, size)
        texts = [spell(piece.ids) for piece in pieces]
        spoken = [
            (piece, text)
            for piece, text in zip(pieces, texts, strict=True)
            if text.strip() and piece.end > piece.start
        ]
        if is_heard:
            spoken_ids = (index for piece, _ in spoken for index in piece.ids)
            prompt = (*prompt, *spoken_ids) if options.previous_text and temperature <= HOT else ()
            prompt = prompt[-max_prompt_ids:]
        end = seek + min(following, size)
        words = sum(len(units(text)) for text in texts)
        transcript = _moved(heard.transcript, spoken, words, seek * HOP / RATE, end * HOP / RATE)
        yield SpokenWindow(
            round(seek * HOP / RATE, 3),
            round(end * HOP / RATE, 3),
            transcript,
            temperature,
            heard.mean,
            round(compression_ratio(heard.transcript.text), 3),
            window.known_silence,
            prompt,
        )
        seek = end


def _moved(
    transcript: Transcript, spoken: Sequence[tuple[Piece, str]], words: int, start: float, end: float
) -> Transcript:
    """A transcript of these segments, and of the first words, whose times are those of the recording.

    Args:
      transcript: of a window.
      spoken: its segments with their texts.
      words: as many as the segments have.
      start: of the window, in seconds of the recording.
      end: of its last segment, at most.
    """
    segments = [Segment(text, piece.start * HOP / RATE, piece.end * HOP / RATE) for piece, text in spoken]
    return replace(
        transcript,
        text=" ".join(segment.text for segment in segments),
        segments=moved(segments, start, start, end),
        words=moved(transcript.words[:words], start, start, end) if spoken else (),
    )


# The searches of the windows: at each temperature, and the probability that nobody speaks.


class WindowSearch:
    """Begins the searches of the windows of a recording.

    Args:
      transcriber: the model: a `Transcriber`.
      settings: the options of the search at temperature 0.
      options: of windows.
      start: the ids that outputs begin with.
      extras: what is returned besides: an `Extras`.
      is_whole: whether it searches whole recordings (`outputs`), and no windows.

    Raises:
      UserError: the search has no log-probability of its outputs.
    """

    def __init__(
        self,
        transcriber: Any,
        settings: DecodingConfig,
        options: WindowsConfig,
        start: tuple[int, ...],
        extras: Any,
        is_whole: bool = False,
    ) -> None:
        if settings.method == "mbr":
            raise UserError(
                "--decoding.method mbr: windows need the log-probability that it replaces; leave it out, or "
                "cut at pauses"
            )
        self.transcriber, self.options, self.start, self.extras = transcriber, options, start, extras
        size = transcriber.task.prompt_size
        longest = len(start) + size + 1 if size else None  # with <eos>
        limits = [length for length in (settings.max_length, longest) if length is not None]
        limited = replace(settings, renormalise=True, max_length=min(limits, default=None))
        self.settings = settings if is_whole else limited

    def begin(self, wave: Wave, prompt: Sequence[int], number: int) -> Window:
        """The search of a window.

        Args:
          wave: the window.
          prompt: the ids that are said before it.
          number: of the window, for sampling.
        """
        record = replace(self.transcriber.heard(wave), start=self.start)
        if record.is_silent:
            return Window(lambda _: Heard(NOTHING, (), 0.0), lambda: 1.0, 1.0)
        if self.options.previous_text:
            record = replace(record, prompt=tuple(prompt))
        return Window(functools.partial(self.search, record, number), lambda: self.silence(record))

    def windows(self, sound: Sound, before: Sequence[SpokenPart]) -> Iterator[SpokenWindow]:
        """What is said in the windows of a recording.

        Args:
          sound: the recording.
          before: its first windows, which are left out.
        """
        task = self.transcriber.task
        assert task.codes
        last = before[-1] if before else None
        if not isinstance(last, SpokenWindow | None):
            raise UserError("after: these parts are no windows; cut at pauses, or leave them out")
        return windows_of(
            sound,
            self.begin,
            task.spell,
            self.options,
            task.codes.first_time,
            task.data.padded_length,
            task.prompt_size - 1,
            last,
        )

    def search(self, record: Recording, number: int, temperature: float) -> Heard:
        """What is found at a temperature."""
        settings = self.at(temperature)
        future = self.transcriber.submit(
            record, n_best=1, line=number + 1, extras=self.extras, **vars(settings)
        )
        try:
            (best,) = future.result()
        finally:
            future.cancel()
        ids = best.ids[len(self.start) : -1]
        length = len(ids) + 1
        total = best.score * float(length_penalty(settings)(length))
        return Heard(best, ids, total / length)

    def at(self, temperature: float) -> DecodingConfig:
        """The options of the search at a temperature."""
        if not temperature:
            return self.settings
        shared = {name: getattr(self.settings, name) for name in names_of(DecodingConfig) - {"method"}}
        sampled = {"method": "sample", "samples": self.options.samples, "temperature": temperature}
        return self.transcriber.settings(1, {**shared, **sampled})

    def outputs(
        self, record: Recording, line: int, n_best: int | None, **urgency: Any
    ) -> Iterator[list[Transcript]]:
        """Yields what may be said in a recording that the model hears at once, by the rules of windows: at
        the first temperature at which the best output is good enough, and nothing where nobody speaks.
        Digital silence is known without the model.

        Args:
          record: the recording.
          line: its number, for messages and for sampling.
          n_best: outputs. None: all that a search returns.
          urgency: fields of `Request`.
        """
        if record.is_silent:
            yield [NOTHING]
            return
        outputs = list[Transcript]()

        def search(temperature: float) -> Heard:
            nonlocal outputs
            settings = self.at(temperature)
            count = n_best and min(n_best, settings.num_hypotheses)
            future = self.transcriber.submit_plain(record, line, settings, count, self.extras, **urgency)
            try:
                outputs = future.result()
            finally:
                future.cancel()
            ids = outputs[0].ids[len(self.start) :]
            return Heard(outputs[0], ids[:-1], outputs[0].log_probability / max(len(ids), 1))

        window = Window(search, lambda: self.silence(record))
        heard, _ = decoded(window, self.options)
        yield [unsaid(outputs[0])] if is_silent(window, heard, self.options) else outputs

    def silence(self, record: Recording) -> float:
        """The probability that nobody speaks in a window."""
        transcriber = self.transcriber
        task, codes = transcriber.task, transcriber.task.codes
        if codes is None or codes.silent is None:
            return 0.0
        longest = self.settings.buckets[-1]
        arrays = batch(task.input_examples([record], longest), task.input_fields, longest, 1)
        if record.prompt is not None:
            arrays = {**arrays, PROMPT: task.prompt(record.prompt)[PROMPT][None]}
        inputs = dict(zip(arrays, shard_rows(*arrays.values()), strict=True))
        return float(_first(transcriber.model, transcriber.variables, inputs)[0, codes.silent])


@functools.partial(jax.jit, static_argnums=0)
def _first(model: nn.Module, variables: Variables, inputs: Inputs) -> Float[Array, "b v"]:
    """The probability of each first token."""
    variables = as_variables(variables)
    rows = len(inputs["source"])
    cache = init_cache(model, variables, inputs, 1, 1)
    begin = jnp.full((rows, 1), special_ids(model).bos)
    return jax.nn.softmax(advance(model, variables, cache, begin)[0][:, 0])
