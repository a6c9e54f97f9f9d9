"""Recordings with their texts: numbers that a synthesiser speaks, those of TFDS, and those of manifests."""

import functools
import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.config.records import RecordingsConfig
from transformer.data import store
from transformer.data.built_in import spoken
from transformer.data.built_in.inflection import number
from transformer.data.remote import fetched
from transformer.data.signals import audio
from transformer.data.signals.audio import SILENT, features_before_silence
from transformer.data.signals.waveforms import check_header, read_audio
from transformer.data.sources.corpora import HELD_OUT, HELD_OUT_NOTE, SPLITS, built_in_folder, corpus_folder
from transformer.data.sources.manifests import Listed, check_manifests, read_recording_list
from transformer.data.sources.text_files import Damaged, refuse_bad_lines
from transformer.data.sources.tfds_sets import tfds_speech
from transformer.data.store import Corpus, Progress, silent
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import open_regular, readable

log = logging.getLogger("transformer")
SILENCE_MARGIN = 1e-3
"""By how much features of silence may differ from `SILENT`: rounding."""
SHARE = 0.1  # of the recordings that is held out, if there is no manifest for validation


@dataclass(frozen=True)
class Recording:
    """Log-mel features of a recording, and what is said in it."""

    name: str
    """Of the file."""
    features: Float[np.ndarray, "t bands"] = field(repr=False)
    text: str = ""
    """Empty if nothing is said, or if it is to be recognised."""
    whole: audio.Statistics | None = field(default=None, repr=False)
    """Of all its frames, if it was truncated."""
    start: tuple[int, ...] | None = None
    """The ids that its output begins with, if they are not those of the vocabulary."""
    speaker: str = ""
    """Who speaks, if that is known."""
    prompt: tuple[int, ...] | None = None
    """The ids of what was said before it; empty: nothing. None: its search reads no prompt."""
    seconds: float | None = None
    """How long it is, if that is known: its last frames reach beyond its end."""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" if self.text else self.name

    def truncated(self, longest: int) -> "Recording":
        """Its first frames."""
        if len(self.features) <= longest:
            return self
        features = self.features[:longest].copy()  # so that the others are freed
        return replace(self, features=features, whole=self.whole or audio.Statistics.of(self.features))

    @property
    def is_silent(self) -> bool:
        """Whether its features show no sound at all, as those of digital silence."""
        return not (self.features > SILENT + SILENCE_MARGIN).any()

    @property
    def duration(self) -> float:
        """Seconds that its frames show of it."""
        seconds = len(self.features) * audio.HOP / audio.RATE
        return seconds if self.seconds is None else min(self.seconds, seconds)


class RecordingSource(store.Stored):
    """Recordings as they are stored: features in half precision, so that no file is decoded twice."""

    keys: ClassVar[tuple[str, ...]] = ("name", "features", "text")
    dataset = "recordings"

    @classmethod
    def encoded(cls, *values: Any) -> dict[str, bytes | Sequence[int]]:
        name, features, text = values
        return {
            "name": name.encode(),
            "features/shape": features.shape,
            "features/value": features.tobytes(),
            "text": text.encode(),
        }

    @staticmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> Recording:
        values = np.frombuffer(stored["features/value"].bytes_list.value[0], np.float16)
        features = values.reshape(stored["features/shape"].int64_list.value).astype(np.float32)
        return Recording(store.text_of(stored, "name"), features, store.text_of(stored, "text"))

    @staticmethod
    def features() -> Any:
        of = store.tfds().features
        frames = of.Tensor(shape=(None, None), dtype=np.float16, encoding="bytes")
        return of.FeaturesDict({"name": of.Text(), "features": frames, "text": of.Text()})


class SpokenBySource(RecordingSource):
    """Recordings with their speakers."""

    keys = (*RecordingSource.keys, "speaker")

    @classmethod
    def encoded(cls, *values: Any) -> dict[str, bytes | Sequence[int]]:
        *others, speaker = values
        return {**super().encoded(*others), "speaker": speaker.encode()}

    @staticmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> Recording:
        return replace(RecordingSource.decoded(stored, keys), speaker=store.text_of(stored, "speaker"))

    @staticmethod
    def features() -> Any:
        of = store.tfds().features
        return of.FeaturesDict({**RecordingSource.features(), "speaker": of.Text()})


def open_recordings(data: RecordingsConfig, progress: Progress = silent, *, silence: bool = True) -> Corpus:
    """The recordings of the config, with features computed on first use.

    Args:
      data: options of the recordings.
      progress: shows the progress.
      silence: whether to read recordings of manifests in which nothing is said.

    Raises:
      UserError: a manifest or a recording is missing or damaged (the message names its line).
    """
    has_manifests = any(getattr(data, split) for split in SPLITS)
    if not has_manifests and data.dataset not in BUILT_IN:
        return _tfds(data, progress)
    for name in "audio_feature", "text_feature", "sample_rate":
        if getattr(data, name) != getattr(RecordingsConfig, name):
            log.warning("--data.%s has no effect: it is for TFDS datasets", name.replace("_", "-"))
    return _manifests(data, progress, silence) if has_manifests else _built_in(data, progress)


def features(wave: Float[np.ndarray, " samples"], data: RecordingsConfig) -> Float[np.ndarray, "t bands"]:
    """The features of a waveform, before they are normalised and padded."""
    if data.padded_length:
        return features_before_silence(wave, data.bands, data.padded_length)
    return audio.features_of(wave, data.bands)


def _features_of(data: RecordingsConfig) -> tuple[object, ...]:
    """The options that the features of training recordings depend on."""
    return data.bands, data.speeds, data.tempi, *_padding(data)


def _padding(data: RecordingsConfig) -> tuple[int, ...]:
    """The length that recordings are padded to, if they are."""
    return (data.padded_length,) if data.padded_length else ()


def recording(path: Path, data: RecordingsConfig, text: str = "") -> Recording:
    """A recording from a file.

    Raises:
      UserError: as `read_audio`.
    """
    return recording_of(readable(path.name), read_audio(fetched(path)), data, text)


def recording_of(
    name: str, wave: Float[np.ndarray, " samples"], data: RecordingsConfig, text: str = ""
) -> Recording:
    """A recording from its waveform."""
    return Recording(name, features(wave, data), text, seconds=len(wave) / audio.RATE)


# Built-in


def _built_in(data: RecordingsConfig, progress: Progress) -> Corpus:
    held_out = min(HELD_OUT, max(10, data.built_in_size // 10))
    sizes = {"train": data.built_in_size, "validation": held_out, "test": held_out}
    kind: tuple[object, ...] = (data.most_digits, data.bands, data.speeds, data.language, data.writing)
    kind += data.speaker, data.tempi, *_padding(data)
    folder = built_in_folder(data.cache_dir, data.dataset, spoken.VERSION, sizes, kind)

    made = BUILT_IN[data.dataset]

    def split(name: str) -> Callable[[], Iterator[tuple[Any, ...]]]:
        def spoken() -> Iterator[tuple[Any, ...]]:
            for index in progress(f"speaking, {name}", range(sizes[name]), sizes[name]):
                utterance = made(SPLITS.index(name), index, data.most_digits, data.speaker == "one")
                yield from _versions(f"{name}-{index}", utterance.wave, written(utterance, data), name, data)

        return spoken

    prepared = store.prepare(folder, {name: split(name) for name in SPLITS}, RecordingSource)
    return Corpus(f"built-in {data.dataset.replace('-', ' ')}", prepared, folder)


class Spoken(NamedTuple):
    """Numbers that are said one after the other."""

    words: list[str]
    wave: Float[np.ndarray, " samples"]
    values: list[int]
    times: list[tuple[float, float]]
    """When each word begins and ends, in seconds."""


def digits(split: int, index: int, most: int, one: bool = False) -> Spoken:
    """Up to `most` digits by a speaker that is only heard here, or by the one of all recordings."""
    random = np.random.default_rng((split, index))
    return _said(random.choice(10, size=random.integers(1, most + 1)).tolist(), random, one)


def numbers(split: int, index: int, most: int, one: bool = False) -> Spoken:
    """A number of up to `most` digits, at most 4, by a speaker as above."""
    random = np.random.default_rng((split, index))
    chance = Random(int(random.integers(2**32)))
    return _said([spoken.drawn_number(SPLITS[split], chance, min(most, 4))], random, one)


BUILT_IN: dict[str, Callable[[int, int, int, bool], Spoken]] = {
    "spoken-digits": digits,
    "spoken-numbers": numbers,
}


def _said(values: list[int], random: np.random.Generator, one: bool) -> Spoken:
    speaker = spoken.ONE if one else spoken.Speaker.drawn(random)
    words = [word for value in values for word in spoken.words_of(value)]
    signs = spoken.phonemes(words)
    counts = spoken.durations(signs, speaker, random)
    wave = spoken.spoken(signs, speaker, random, counts)
    return Spoken(words, wave, values, spoken.word_times(signs, counts))


def written(utterance: Spoken, data: RecordingsConfig) -> str:
    """Spoken numbers as text."""
    if data.writing == "digits":
        return " ".join(map(str, utterance.values))
    if data.writing == "phonemes":
        return spoken.phonemes(utterance.words)
    return " ".join(
        utterance.words if data.language == "en" else (number(value)[1] for value in utterance.values)
    )


def _versions(
    name: str, wave: Float[np.ndarray, " samples"], text: str, split: str, data: RecordingsConfig
) -> Iterator[tuple[Any, ...]]:
    """A recording as it is stored: in training at each speed, and with a tempo drawn by its name."""
    if split != "train":
        yield name, features(wave, data).astype(np.float16), text
        return
    random = Random(name)
    for speed in data.speeds:
        frames = features(audio.faster(wave, speed), data)
        if data.tempi:
            frames = audio.stretched(frames, 1 / random.uniform(*data.tempi))
        yield name, frames.astype(np.float16), text


# TFDS


def _tfds(data: RecordingsConfig, progress: Progress) -> Corpus:
    waves, identity = tfds_speech(data, SPLITS)
    members = {split: (split, range(len(some))) for split, some in waves.items()}
    note = "" if "validation" in members else HELD_OUT_NOTE.replace("text", "split", 1)
    if note:
        num_train = len(waves["train"]) - min(HELD_OUT, math.ceil(SHARE * len(waves["train"])))
        if not num_train:
            raise UserError(f"{data.dataset} has one recording, of which nothing can be held out")
        members |= {"train": ("train", range(num_train))}
        members |= {"validation": ("train", range(num_train, len(waves["train"])))}
    folder = corpus_folder(data.cache_dir, "recordings", identity, *_features_of(data))

    def split(name: str) -> Callable[[], Iterator[tuple[Any, ...]]]:
        def read() -> Iterator[tuple[Any, ...]]:
            source, indices = members[name]
            for index in progress(f"features, {name}", indices, len(indices)):
                wave, text = waves[source][index]
                same_rate = waves[source].rate == audio.RATE
                wave = wave if same_rate else audio.resampled(wave, waves[source].rate, audio.RATE)
                yield from _versions(f"{source}-{index}", wave, text, name, data)

        return read

    prepared = store.prepare(folder, {name: split(name) for name in members}, RecordingSource)
    return Corpus(data.dataset, prepared, folder, note)


# Manifests


def libraries_of(data: RecordingsConfig) -> tuple[str, ...]:
    """The libraries that preparing these recordings needs and that are not always installed."""
    if any(getattr(data, split) for split in SPLITS):
        return "soundfile", "soxr"
    return () if data.dataset in BUILT_IN and data.speeds == (1.0,) else ("soxr",)


def _manifests(data: RecordingsConfig, progress: Progress, silence: bool) -> Corpus:
    check_manifests(data)
    manifests = {split: read_recording_list(getattr(data, split)) for split in SPLITS if getattr(data, split)}
    lists = {split: _selected(some, split, silence) for split, some in manifests.items()}
    digests = {path: _digest(path) for path in {line.path for some in lists.values() for line in some}}
    notes = []
    count = sum(not line.text for some in manifests.values() for line in some)
    if count:
        notes.append(
            f"{counted(count, 'recording')} without text: silence{'' if silence else ', which is dropped'}"
        )
    if "validation" not in lists:
        notes.append(HELD_OUT_NOTE.replace("text", "manifest", 1).replace("text", "recordings"))
        lists |= _parted(lists["train"], digests)
    has_speakers = any(line.speaker for some in lists.values() for line in some)

    def speaker(line: Listed) -> tuple[str, ...]:
        return (line.speaker,) if has_speakers else ()

    content = {
        split: [(line.text, digests[line.path], *speaker(line)) for line in some]
        for split, some in lists.items()
    }
    folder = corpus_folder(data.cache_dir, "recordings", content, *_features_of(data))

    damaged = Damaged()

    @functools.cache
    def check() -> None:
        """Checks all headers once, since nothing is stored if the last recording cannot be read."""
        every = dict[Path, Listed]()
        for some in manifests.values():
            for line in some:
                every.setdefault(line.path, line)
        for line in progress("headers", every.values(), len(every)):
            try:
                _named(line, check_header)
            except UserError as error:
                damaged.add(line.manifest, line.number, error)
        refuse_bad_lines()

    def split(name: str) -> Callable[[], Iterator[tuple[Any, ...]]]:
        def read() -> Iterator[tuple[Any, ...]]:
            check()
            for line in progress(f"features, {name}", lists[name], len(lists[name])):
                if (line.manifest, line.number) in damaged:
                    continue
                try:
                    wave = _wave(line)
                except UserError as error:
                    damaged.add(line.manifest, line.number, error)
                    continue
                for version in _versions(line.path.name, wave, line.text, name, data):
                    yield *version, *speaker(line)
            refuse_bad_lines()

        return read

    kind = SpokenBySource if has_speakers else RecordingSource
    prepared = store.prepare(folder, {name: split(name) for name in lists}, kind)
    damaged.note(folder)
    return Corpus(str(data.train), prepared, folder, "; ".join(notes))


def _selected(some: list[Listed], split: str, silence: bool) -> list[Listed]:
    """The recordings of a manifest, perhaps without those in which nothing is said.

    Raises:
      UserError: there is nothing to learn from them.
    """
    spoken = [line for line in some if line.text]
    if not spoken and (split == "train" or not silence):
        raise UserError(f"{some[0].manifest}: all texts are empty, so nothing is said in its recordings")
    return some if silence else spoken


def _parted(some: list[Listed], digests: Mapping[Path, str]) -> dict[str, list[Listed]]:
    """Recordings for training and validation: held out are those with the smallest hashes of their names,
    with all lines that have the same recording."""
    hashed = sorted(some, key=lambda line: hashlib.blake2b(line.path.name.encode()).digest())
    different = list(dict.fromkeys(digests[line.path] for line in hashed))
    count = min(HELD_OUT, math.ceil(SHARE * len(different)))
    if count == len(different):
        raise UserError(
            f"{some[0].manifest} lists too few recordings to hold some out: give --data.validation"
        )
    held_out = set(different[:count])
    return {
        "train": [line for line in some if digests[line.path] not in held_out],
        "validation": [line for line in some if digests[line.path] in held_out],
    }


def _wave(line: Listed) -> Float[np.ndarray, " samples"]:
    wave: np.ndarray = _named(line, read_audio)
    return wave


def _named(line: Listed, read: Callable[[Path], Any]) -> Any:
    """What is read of the recording of a line, which errors name."""
    try:
        return read(fetched(line.path))
    except UserError as error:
        raise UserError(f"{line.manifest}, line {line.number}: {error}") from error


def _digest(path: Path) -> str:
    with open_regular(fetched(path)) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
