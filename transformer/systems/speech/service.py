"""What runs that hear do for clients: transcriptions of recordings."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from transformer.data.signals.audio import RATE
from transformer.data.signals.waveforms import LONGEST, StoredRecording, audio_blocks
from transformer.data.sources.recordings import Recording
from transformer.decoding.service.lanes import Job, Preparation
from transformer.runtime.files import Json
from transformer.serve.services.messages import Asked, Endpoint, Name
from transformer.serve.services.service import Service
from transformer.systems.speech.api import Transcriber, with_rules
from transformer.systems.speech.long import LiveText, LongRecording
from transformer.systems.speech.transcripts import with_requested
from transformer.systems.speech.windows import WindowSearch
from transformer.translator.search_outputs import NO_EXTRAS


class AskedTranscription(Asked):
    """How a recording is transcribed."""

    language: Name | None = Field(None, description="Whisper: the code of the language that is spoken.")
    task: Name | None = Field(None, description="Whisper: transcribe, or translate (to English).")
    timestamps: bool = Field(False, description="Whisper: segments with their times.")


class Transcriptions(Service):
    """What is said in recordings."""

    search = Endpoint(
        "/transcribe",
        "What is said in a recording: the body is a WAV, FLAC, OGG or MP3 file.",
        AskedTranscription,
        {},
        hears=True,
    )
    loads: ClassVar = Transcriber
    decoder: Transcriber

    @property
    def has_alignments(self) -> bool:
        """The page shows none of a recording."""
        return False

    @property
    def listens(self) -> Callable[[Iterable[np.ndarray], Any], Iterator[Any]]:
        """What is said while the sound arrives."""
        return self._listen

    def _listen(self, sound: Iterable[np.ndarray], asked: Any) -> Iterator[LiveText]:
        options = {"language": asked.language, "task": asked.task, **self.defaults}
        return self.decoder.live(sound, step=asked.step, **options)

    def submit(
        self,
        item: bytes,
        asked: Asked,
        line: int,
        partial: Callable[[Any], None] | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Future[Any]:
        """As of all services: a client that leaves ends the reading."""
        return super().submit(StoredRecording(item, "the recording", is_wanted), asked, line, partial)

    def record(self, item: StoredRecording, asked: Any) -> tuple[Recording, Json]:
        """A recording, and what is asked of its transcription. A long one is cut at pauses, with Whisper
        too: its parts need no other programs than short ones. It waits as it was sent, since a few bytes may
        hold an hour."""
        begun = {"language": asked.language, "task": asked.task, "timestamps": asked.timestamps}
        start = self.decoder.task.start(**begun)
        blocks = list[np.ndarray]()
        for block in audio_blocks(item, LONGEST):
            blocks.append(block)
            if sum(map(len, blocks)) > self.decoder.hears() * RATE:
                return LongRecording.of(item, begun | {"cut": "pauses"}), {}
        record = dataclasses.replace(self.decoder.heard(np.concatenate(blocks)), start=start)
        return with_rules(record, self.decoder.rules(self.settings)), {}

    def preparation(self) -> Preparation:
        """As of all services, and what the rules of Whisper's windows need besides."""
        prepared = super().preparation()
        rules = self.decoder.rules(self.settings)
        if not rules:
            return prepared
        search = WindowSearch(
            self.decoder, self.settings, rules, self.decoder.task.start(), NO_EXTRAS, is_whole=True
        )
        silence = self.decoder.heard(np.zeros(RATE, np.float32))
        sampled = vars(search.at(max(rules.temperatures))) | self.prepared
        stages = (self.decoder.preparation(**sampled, timestamps=timed).stages for timed in (False, True))
        is_silent: Job = functools.partial(search.silence, silence)  # type: ignore[misc]
        return Preparation((*prepared.first, [is_silent]), (*itertools.chain(*stages), *prepared.rest))

    def _variants(self) -> Iterator[Json]:
        """As of all services, and those of outputs with times, which Whisper has."""
        yield from super()._variants()
        if self.decoder.task.codes:
            yield from ({**options, "timestamps": True} for options in super()._variants())

    def answer(self, item: bytes, outputs: list[Any], asked: Any) -> Json:
        """As of all services, with lists of words and segments that were asked for."""
        requested = asked.times, asked.timestamps
        return {"hypotheses": [with_requested(output.to_json(), *requested) for output in outputs]}


SERVICE = Transcriptions
