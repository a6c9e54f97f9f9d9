"""Recordings with their texts: numbers that a synthesiser speaks, those of TFDS, and those of manifests."""

import contextlib
import functools
import hashlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.config.records import AUDIO, RecordingsConfig
from transformer.data.built_in import spoken
from transformer.data.built_in.inflection import number
from transformer.data.remote import fetched
from transformer.data.signals import audio
from transformer.data.signals.audio import SILENT, features_before_silence
from transformer.data.signals.waveforms import check_header, read_audio
from transformer.data.sources.source import (
    HELD_OUT,
    HELD_OUT_NOTE,
    SHARE,
    SPLITS,
    Entry,
    Lists,
    Source,
    digests_of,
    entries_of,
    files_of,
    held_out,
    listed,
    read_files,
    records_of,
)
from transformer.data.sources.text_files import Damaged, refuse_bad_lines
from transformer.data.sources.tfds_sets import tfds_speech
from transformer.data.store import TEXT, Corpus, Form, Progress, array, silent
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import readable
from transformer.runtime.text import has_text

log = logging.getLogger("transformer")
SILENCE_MARGIN = 1e-3
"""By how much features of silence may differ from `SILENT`: rounding."""


@dataclass(frozen=True)
class Recording:
    """Log-mel features of a recording, and what is said in it."""

    name: str
    """Name of the file."""
    features: Float[np.ndarray, "t bands"] = field(repr=False)
    text: str = ""
    """Empty if nothing is said, or if it is to be recognised."""
    whole: audio.Statistics | None = field(default=None, repr=False)
    """Statistics of all frames of the file, if the recording was truncated."""
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
        """The recording's first frames."""
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


RECORDINGS = Form(
    "recordings",
    {"name": TEXT, "features": array(np.float16, None, None, dtype=np.float32), "text": TEXT},
    Recording,
    attrgetter("name", "features", "text"),
)
"""Features in half precision, so that no file is decoded twice."""
SPOKEN_BY = Form(
    RECORDINGS.dataset,
    {**RECORDINGS.columns, "speaker": TEXT},
    lambda name, features, text, speaker: Recording(name, features, text, speaker=speaker),
    attrgetter("name", "features", "text", "speaker"),
)
"""Recordings with their speakers."""


def open_recordings(data: RecordingsConfig, progress: Progress = silent, *, silence: bool = True) -> Corpus:
    """The recordings of the config, with features computed on first use.

    Args:
      data: options of the recordings.
      progress: shows the progress.
      silence: whether to read recordings of manifests in which nothing is said.

    Raises:
      UserError: a manifest or a recording is missing or damaged (the message names its line).
    """
    has_manifests = bool(files_of(data))
    if not has_manifests and data.dataset not in BUILT_IN:
        return _tfds(data, progress).open(data.cache_dir)
    for name in "audio_feature", "text_feature", "sample_rate":
        if getattr(data, name) != getattr(RecordingsConfig, name):
            log.warning("--data.%s has no effect: it is for TFDS datasets", name.replace("_", "-"))
    source = _listed(data, progress, silence) if has_manifests else _built_in(data, progress)
    return source.open(data.cache_dir)


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


def _built_in(data: RecordingsConfig, progress: Progress) -> Source:
    held_out = min(HELD_OUT, max(10, data.built_in_size // 10))
    sizes = {"train": data.built_in_size, "validation": held_out, "test": held_out}
    options = (data.most_digits, data.bands, data.speeds, data.language, data.writing, data.speaker)
    key = sizes, (*options, data.tempi, *_padding(data))

    def read(split: str) -> Iterator[Recording]:
        for index in progress(f"speaking, {split}", range(sizes[split]), sizes[split]):
            one_speaker = data.speaker == "one"
            utterance = BUILT_IN[data.dataset](SPLITS.index(split), index, data.most_digits, one_speaker)
            yield from _versions(f"{split}-{index}", utterance.wave, written(utterance, data), split, data)

    name = f"built-in {data.dataset.replace('-', ' ')}"
    return Source(name, RECORDINGS, f"{data.dataset}-v{spoken.VERSION}", key, read)


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
) -> Iterator[Recording]:
    """A recording as it is stored: in training at each speed, and with a tempo drawn by its name."""
    if split != "train":
        yield Recording(name, features(wave, data), text)
        return
    random = Random(name)
    for speed in data.speeds:
        frames = features(audio.faster(wave, speed), data)
        if data.tempi:
            frames = audio.stretched(frames, 1 / random.uniform(*data.tempi))
        yield Recording(name, frames, text)


# TFDS


def _tfds(data: RecordingsConfig, progress: Progress) -> Source:
    waves, identity = tfds_speech(data, SPLITS)
    members = {split: (split, range(len(some))) for split, some in waves.items()}
    notes = []
    if "validation" not in members:
        notes.append(HELD_OUT_NOTE.replace("text", "split", 1))
        size = len(waves["train"])
        rest = size - min(HELD_OUT, math.ceil(SHARE * size))
        if not rest:
            raise UserError(f"{data.dataset} has one recording, of which nothing can be held out")
        members |= {"train": ("train", range(rest)), "validation": ("train", range(rest, size))}

    def read(split: str) -> Iterator[Recording]:
        source, indices = members[split]
        for index in progress(f"features, {split}", indices, len(indices)):
            wave, text = waves[source][index]
            if waves[source].rate != audio.RATE:
                wave = audio.resampled(wave, waves[source].rate, audio.RATE)
            yield from _versions(f"{source}-{index}", wave, text, split, data)

    key = identity, *_features_of(data)
    return Source(data.dataset, RECORDINGS, "recordings", key, read, members, notes)


# Manifests: a file name, a tab and what is said, and perhaps a tab and the speaker.


MUST = (
    "must be a file name, a tab and the text, which is empty for silence, and perhaps a tab and the speaker"
)


class Columns(NamedTuple):
    """What a line of a list says of a recording."""

    name: str
    """Name of the file."""
    text: str | None
    """What is said. None: the line does not say it."""
    speaker: str

    @classmethod
    def of(cls, line: str) -> "Columns":
        """The columns of a line. Raises ValueError if it has too many."""
        name, *others = line.split("\t")
        if len(others) > 2:
            raise ValueError(f"{len(others) + 1} columns")
        return cls(name, others[0] if others else None, "".join(others[1:]).strip())


@dataclass(frozen=True)
class Listed(Entry):
    """A recording of a manifest."""

    name: str
    """As the line has it, relative to the manifest."""
    text: str
    speaker: str = ""


def read_recording_list(path: Path) -> list[Listed]:
    """The recordings that a manifest lists. An empty text means that nothing is said.

    Raises:
      UserError: it is empty, a line is not a file name, a tab and a text, perhaps with another tab and the
        speaker, or a file is missing.
    """
    if path.suffix.lower() in AUDIO:
        raise UserError(f"{path} must list recordings with their texts, and its name is that of one")
    return [
        Listed(**vars(entry), name=name, text=text if has_text(text) else "", speaker=speaker)
        for entry, (name, text, speaker) in entries_of(path, "recording", _with_text)
    ]


def _with_text(line: str) -> tuple[str, str, str]:
    """The columns of a line that says a text. Raises ValueError if it does not."""
    with contextlib.suppress(ValueError):
        columns = Columns.of(line)
        if columns.text is not None:
            return columns.name, columns.text, columns.speaker
    raise ValueError(MUST)


def listed_columns(line: str, manifest: Path, number: int) -> tuple[Path, Columns]:
    """The recording that a line of a list names, whose text need not be known, and its columns.

    Raises:
      UserError: it names none that is there, or has too many columns; the message has the line.
    """
    try:
        columns = Columns.of(line)
    except ValueError as error:
        raise UserError(
            f"{manifest}, line {number}: must be a file name, and perhaps a tab and the text, and a tab and "
            "the speaker"
        ) from error
    return listed(columns.name, manifest, number, "recording"), columns


def recording_lists(data: RecordingsConfig) -> Lists[Listed]:
    """What the manifests list. Raises UserError if they are missing, or name files that are not there."""
    return read_files(data, "recordings", read_recording_list)


def libraries_of(data: RecordingsConfig) -> tuple[str, ...]:
    """The libraries that preparing these recordings needs and that are not always installed."""
    if files_of(data):
        return "soundfile", "soxr"
    return () if data.dataset in BUILT_IN and data.speeds == (1.0,) else ("soxr",)


def _listed(data: RecordingsConfig, progress: Progress, silence: bool) -> Source:
    every = recording_lists(data)
    lists = {split: _selected(some, split, silence) for split, some in every.items()}
    digests = digests_of(lists)
    notes = []
    if count := sum(not line.text for some in every.values() for line in some):
        dropped = "" if silence else ", which is dropped"
        notes.append(f"{counted(count, 'recording')} without text: silence{dropped}")
    notes += held_out(lists, digests, _hash_of_name, "recording")
    has_speakers = any(line.speaker for some in lists.values() for line in some)
    content = {
        split: [(line.text, digests[line.path], *([line.speaker] if has_speakers else ())) for line in some]
        for split, some in lists.items()
    }
    damaged = Damaged()

    @functools.cache
    def check() -> None:
        """Checks all headers once, since nothing is stored if the last recording cannot be read."""
        by_path = dict[Path, Listed]()
        for line in itertools.chain.from_iterable(every.values()):
            by_path.setdefault(line.path, line)
        for line in progress("headers", by_path.values(), len(by_path)):
            try:
                check_header(fetched(line.path))
            except UserError as error:
                damaged.add(line.manifest, line.number, error)
        refuse_bad_lines()

    def read(split: str) -> Iterator[Recording]:
        def versions(line: Listed) -> Iterator[Recording]:
            made = _versions(line.path.name, read_audio(fetched(line.path)), line.text, split, data)
            return (replace(version, speaker=line.speaker) for version in made)

        check()
        yield from records_of(
            progress(f"features, {split}", lists[split], len(lists[split])), versions, damaged
        )

    form = SPOKEN_BY if has_speakers else RECORDINGS
    key = content, *_features_of(data)
    return Source(str(data.train), form, "recordings", key, read, lists, notes, damaged)


def _hash_of_name(line: Listed) -> bytes:
    return hashlib.blake2b(line.path.name.encode()).digest()


def _selected(some: list[Listed], split: str, silence: bool) -> list[Listed]:
    """The recordings of a manifest, perhaps without those in which nothing is said.

    Raises:
      UserError: there is nothing to learn from them.
    """
    spoken = [line for line in some if line.text]
    if not spoken and (split == "train" or not silence):
        raise UserError(f"{some[0].manifest}: all texts are empty, so nothing is said in its recordings")
    return some if silence else spoken
