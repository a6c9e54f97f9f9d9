"""Tasks of recordings and their texts: what speech recognition and speech synthesis share."""

import itertools
import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float

from transformer.config.options import Config
from transformer.config.records import RecordingsConfig
from transformer.data.plans import Batching
from transformer.data.sequences import Example, Field, Fields, id_dtype
from transformer.data.signals.audio import HOP, RATE, SILENT, normalised, scaled_to_peak, sound_of
from transformer.data.sources.recordings import Recording, libraries_of, open_recordings, recording_lists
from transformer.data.sources.tables import check_no_tables
from transformer.data.store import Corpus, Progress, Records, silent
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.runtime.errors import UserError
from transformer.runtime.files import parse_object, read_text, write_whole
from transformer.runtime.text import has_text
from transformer.tasks.exhibit import Axis, Exhibits, Picture, Sound
from transformer.tasks.outputs import DecodingTask, Lines
from transformer.tasks.vocabulary import OneVocabulary

SILENCE = float("-inf")
"""What pads frames."""
EXHIBITED = 10.0
"""The longest recording in a report, in seconds."""
LEAST_DEVIATION = 1e-3
"""The least standard deviation of a band."""
LARGEST = 88.0
"""The largest logarithm that a scale may have, whose exponential a float32 can hold."""
LOUDNESS = 12.0
"""How far below the loudest band a spectrogram goes, in nats of power (52 dB)."""


@dataclass(frozen=True)
class Scale:
    """How the bands of all recordings are normalised."""

    mean: Float[np.ndarray, " bands"]
    deviation: Float[np.ndarray, " bands"]

    @classmethod
    def of(cls, recordings: Iterable[Recording], bands: int) -> "Scale":
        """The scale of recordings: mean and standard deviation of each band over all frames."""
        count = 0
        total = np.zeros(bands)
        squares = np.zeros(bands)
        for recording in recordings:
            frames = recording.features.astype(np.float64)
            count += len(frames)
            total = total + frames.sum(axis=0)
            squares = squares + (frames**2).sum(axis=0)
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, LEAST_DEVIATION**2))
        return cls(mean.astype(np.float32), deviation.astype(np.float32))

    def __call__(self, features: Float[np.ndarray, "t bands"]) -> Float[np.ndarray, "t bands"]:
        scaled: np.ndarray = (features - self.mean) / self.deviation
        return scaled


class Recordings(OneVocabulary, Exhibits, Lines, DecodingTask):
    """Recordings and what is said in them.

    Args:
      config: of the run.
      tokenizer: of the texts.
    """

    unit = "recordings"
    record_type = Recording
    learned = "vocabulary or scale of the features"
    sound: ClassVar[str]
    """The field that has the frames: source or target."""
    text: ClassVar[str]
    """The field that has the ids."""
    silence: ClassVar[bool] = True
    """Whether it learns from recordings in which nothing is said."""

    scale: Scale | None = None
    """Normalises the features. None: each recording by itself."""

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        frames = Field("float32", fill=SILENCE, shape=(self.data.bands,))
        fields = {self.sound: frames, self.text: Field(fill=self.special.pad)}
        self.fields = {name: fields[name] for name in ("source", "target")}

    @property
    def counted(self) -> str:  # type: ignore[override]
        """The frames, by which batches are counted."""
        return self.sound

    @property
    def drops(self) -> str:
        """Recordings that are too long, or whose text is."""
        return f"longer than {self.data.max_length} frames, or their text, or empty"

    @property
    def data(self) -> RecordingsConfig:
        """The options of the recordings."""
        return _data(self.config)

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if recordings are missing."""
        instead = "write a file name, a tab and the text on each line"
        check_no_tables(_data(config), "lists of recordings", instead, suffixes=(".jsonl",))
        recording_lists(_data(config))

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        """What reads recordings, or changes their rate or speed."""
        return libraries_of(_data(config))

    @classmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        """The recordings of manifests, or the built-in ones."""
        return open_recordings(_data(config), progress, silence=cls.silence)

    @classmethod
    def texts(cls, records: Iterable[Recording]) -> Iterator[str]:
        """What is said."""
        return (record.text for record in records)

    @classmethod
    def create(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> Self:
        """With a vocabulary of the training texts, and the scale of their recordings if the config asks for
        it."""
        data, recordings = _data(config), corpus.splits["train"]
        task = super().create(config, corpus, progress)
        if data.normalisation == "corpus":
            task.scale = Scale.of(progress("scale of the features", recordings, len(recordings)), data.bands)
        return task

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        """A task with the vocabulary and the scale of a run directory."""
        task = super().load(config, folder)
        if _data(config).normalisation == "corpus":
            task.scale = _read_scale(folder / "scale.json", _data(config).bands)
        return task

    def save(self, folder: Path) -> None:
        """Writes the vocabulary and the scale."""
        super().save(folder)
        if self.scale:
            scale = {"mean": self.scale.mean.tolist(), "deviation": self.scale.deviation.tolist()}
            write_whole(folder / "scale.json", json.dumps(scale))

    def content(self) -> bytes:
        """The vocabulary's file; the scale, and the side that it is for."""
        content = super().content()
        if not self.scale:
            return content
        return content + self.scale.mean.tobytes() + self.scale.deviation.tobytes() + self.sound.encode()

    # To batches

    def examples(self, records: Sequence[Recording], *, truncate: bool = False) -> list[Example]:
        """The normalised frames, and the ids of the text with <eos>."""
        frames = self.data.max_length if truncate else None
        tokens = self.data.max_text - 1 if truncate else None
        return [
            {
                self.sound: self.frames(record)[:frames],
                self.text: [*self.text_ids(record.text)[:tokens], self.special.eos],
            }
            for record in records
        ]

    def texts_of_fields(self, record: Recording) -> Mapping[str, tuple[str, Tokenizer]]:
        """What is said."""
        return {self.text: (record.text, self.tokenizer)}

    def text_ids(self, text: str) -> list[int]:
        """The ids of the text of a recording, without <eos>."""
        return self.tokenizer.encode(text)

    @property
    def stored_fields(self) -> Fields:
        """The frames, and ids in as few bytes as they need."""
        return {**self.fields, self.text: Field(id_dtype(self.tokenizer.num_ids))}

    def frames(self, record: Recording) -> Float[np.ndarray, "t bands"]:
        """The normalised features of a recording, by all of it if it was truncated; padded if the options ask
        for it."""
        silent = max(0, self.data.padded_length - len(record.features))
        features = np.pad(record.features, ((0, silent), (0, 0)), constant_values=SILENT)
        if self.data.normalisation == "peak":
            return scaled_to_peak(features)
        return self.scale(features) if self.scale else normalised(features, record.whole)

    def batching(self) -> Batching:
        """Lengths in frames, each with room for text in proportion."""
        data = self.data
        lengths_by_field = [{self.sound: frames, self.text: _room(frames, data)} for frames in data.lengths]
        buckets = tuple(tuple(lengths[name] for name in self.fields) for lengths in lengths_by_field)
        return Batching(buckets, data.batch_tokens, data.batching == "packed", data.seed)

    def filled(self, record: Recording) -> Mapping[str, bool]:
        """Whether there is sound, and text."""
        return {"recording": len(record.features) > 0, "text": has_text(record.text)}

    # From decoding

    def shortened(self, name: str, size: int, longest: int) -> str:
        """Says how a recording is truncated, with both lengths in seconds."""
        before, after = (frames * HOP / RATE for frames in (size, longest))
        return f"a recording of {before:.2f} s is truncated to {after:.2f} s: raise buckets"

    # For the report

    def exhibited(self, records: Records, count: int) -> list[Recording]:
        """The first recordings of at most ten seconds that training could have."""
        frames = min(self.data.max_length, round(EXHIBITED * RATE / HOP))
        fitting = (
            record for record in records if len(record.features) <= frames and self.is_exhibitable(record)
        )
        return list(itertools.islice(fitting, count))

    # For the explorer

    @abstractmethod
    def listed(self, line: str, manifest: Path, number: int) -> Recording:
        """The record that a line of a file names.

        Raises:
          UserError: it cannot be read; the message has the file and the line.
        """

    @abstractmethod
    def paired(self, record: Recording, output: Any) -> tuple[Recording, list[int]]:
        """The sound and the ids of the text that belong together: of a record and one of its outputs."""

    @property
    @abstractmethod
    def stride(self) -> float:
        """Seconds from one position of the sound to the next, where the model attends."""

    def unpadded(self, record: Recording, attention: Float[np.ndarray, "t s"]) -> Float[np.ndarray, "t _"]:
        """Attention without the positions of the silence that a recording is padded with.

        Args:
          record: the recording.
          attention: of each token, with a column for each position of the sound.
        """
        if not self.data.padded_length:
            return attention
        return attention[:, : max(1, math.ceil(record.duration / self.stride))]

    def attention_picture(
        self, record: Recording, attention: Float[np.ndarray, "t s"] | None
    ) -> tuple[Picture, ...]:
        """The attention given the text and the sound of a recording, or nothing if there is none."""
        if attention is None:
            return ()
        (example,) = self.examples([record], truncate=True)
        if self.sound == "source":
            attention = self.unpadded(record, attention)
        text = Axis("text", labels=tuple(self.tokenizer.pieces(example[self.text])))
        steps, positions = attention.shape
        if self.sound == "source":
            x, y = Axis("seconds", extent=positions * self.stride), text
        else:
            x, y = text, Axis("seconds", extent=steps * self.stride)
        caption = "attention given the target (square root of the weights)"
        return (Picture(caption, np.sqrt(attention), x, y),)

    def is_exhibitable(self, record: Recording) -> bool:
        """Whether the system can decode a recording."""
        return True


def resynthesised(record: Recording) -> Sound:
    """The sound of a recording, of which a corpus only has the features."""
    return Sound("recording, resynthesised from its features (Griffin-Lim)", sound_of(record.features))


def spectrogram(caption: str, features: Float[np.ndarray, "t bands"]) -> Picture:
    """Log-mel features, with the lowest band at the bottom."""
    features = np.nan_to_num(features)
    values = 1 + (features - features.max(initial=-np.inf)) / LOUDNESS
    seconds = len(features) * HOP / RATE
    return Picture(caption, np.clip(values.T[::-1], 0, 1), Axis("seconds", extent=seconds), Axis("mel bands"))


def _data(config: Config) -> RecordingsConfig:
    assert isinstance(config.data, RecordingsConfig)
    return config.data


def _room(frames: int, data: RecordingsConfig) -> int:
    """Tokens that a bucket holds: in proportion to its frames, in steps of four."""
    return min(data.max_text, max(4, 4 * math.ceil(data.max_text * frames / data.max_length / 4)))


def _read_scale(path: Path, bands: int) -> Scale:
    try:
        scale = parse_object(read_text(path))
        mean, deviation = (np.array(scale[name], np.float64) for name in ("mean", "deviation"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: the scale of the features cannot be read: {error}; copy it from where the run was made"
        ) from error
    if mean.shape != (bands,) or deviation.shape != (bands,):
        raise UserError(f"{path}: must have a mean and a deviation for each of {bands} bands")
    if not ((np.abs(mean) <= LARGEST) & (deviation >= LEAST_DEVIATION) & (deviation <= LARGEST)).all():
        raise UserError(
            f"{path}: means must be from {-LARGEST:g} to {LARGEST:g}, and deviations from "
            f"{LEAST_DEVIATION:g} to {LARGEST:g}; copy it from where the run was made"
        )
    return Scale(mean.astype(np.float32), deviation.astype(np.float32))
