"""Compares the outputs of Whisper here with those of CTranslate2 for the same recordings, or for silence.

`python -m benchmarks.quality.whisper RECORDINGS [RECORDINGS ...] --weights FOLDER` imports a Whisper model
from the folder of CTranslate2 or faster-whisper, draws 25 recordings of each folder of recordings, and
decodes them with both programs in float32, from the features that are computed here: greedily and with
several beams, with and without times. It prints for each search how many outputs have the same tokens, and
how far apart the log-probabilities of these are. With `--minutes 5`, recordings are also joined to a long one
of each folder, which is divided into windows here; each is decoded by both programs after the same text.

With several beams CTranslate2 ranks hypotheses by their log-probability divided by the number of tokens
without the end; here the end counts, as in Hugging Face. The last column is by the rule of CTranslate2: of
the hypotheses that are found here, the one that is best by it.

`python -m benchmarks.quality.whisper --silence --weights FOLDER` prints what both programs hear where nobody
speaks, CTranslate2 by faster-whisper, each with its defaults: silence, noise, tones and music-like sounds of
8 seconds, and of 40 seconds with `--long`. Samples are drawn, so outputs may differ where a program falls
back to higher temperatures.
"""

import argparse
import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.command import needs, positive, run
from benchmarks.quality.long_recordings import joined, recorded
from transformer import Transcriber
from transformer.config.records import WindowsConfig
from transformer.data.signals.audio import RATE
from transformer.data.sources.recordings import Recording
from transformer.interop.architectures.ctranslate2 import MODEL
from transformer.interop.pretrained import import_model
from transformer.runtime.errors import UserError

SOUNDS = {".wav", ".flac", ".ogg", ".mp3"}
TOGETHER = 5
"""Recordings that CTranslate2 decodes at once."""
LONGEST = 448
"""Positions of Whisper's decoder."""
SECONDS, LONG = 8, 40
"""Of a sound in which nobody speaks."""
NOTES = 220, 247, 262, 294, 330, 349, 392
"""Hertz."""


@dataclass(frozen=True)
class Search:
    """How outputs are searched."""

    beams: int
    is_timed: bool

    def __str__(self) -> str:
        return ("greedy" if self.beams == 1 else f"{self.beams} beams") + (", with times" * self.is_timed)


@dataclass(frozen=True)
class Found:
    """An output: its ids without those it is forced to begin with and without the end, and its
    log-probability."""

    ids: tuple[int, ...]
    log_p: float

    @property
    def without_end(self) -> float:
        """Its score in CTranslate2."""
        return self.log_p / max(len(self.ids), 1)


@dataclass(frozen=True)
class Agreement:
    """How alike two programs are."""

    equal: int
    """Outputs with the same tokens."""
    difference: float
    """The largest difference of their log-probabilities."""
    equal_by_rule: int
    """Outputs with the same tokens if hypotheses are ranked as by CTranslate2."""


def agreement(ours: Sequence[Sequence[Found]], theirs: Sequence[Found]) -> Agreement:
    """That of the hypotheses that are found here for each recording, best first, with the outputs of the
    other program."""
    pairs = list(zip(ours, theirs, strict=True))
    same = [(best, other) for (best, *_), other in pairs if best.ids == other.ids]
    by_rule = [max(several, key=lambda found: found.without_end).ids == other.ids for several, other in pairs]
    return Agreement(len(same), max((abs(a.log_p - b.log_p) for a, b in same), default=0.0), sum(by_rule))


def found_here(transcriber: Transcriber, recordings: Sequence[Path], search: Search) -> list[list[Found]]:
    """The hypotheses of each recording, best first."""
    asked: dict[str, Any] = {"timestamps": search.is_timed, "beam_size": search.beams}
    start = len(transcriber.task.start(timestamps=search.is_timed))
    results = transcriber.search(recordings, stop="present" if search.beams == 1 else "full", **asked)
    # the score is divided by the tokens after the start, with the end
    return [
        [Found(each.ids[start:-1], each.score * (len(each.ids) - start)) for each in several]
        for several in results
    ]


def found_by_ctranslate2(
    model: Any, features: np.ndarray, prompt: Sequence[int], search: Search
) -> list[Found]:
    """The output for each recording, of which the features are `[n, frames, bands]`."""
    from ctranslate2 import StorageView

    found = []
    for first in range(0, len(features), TOGETHER):
        some = np.ascontiguousarray(features[first : first + TOGETHER].transpose(0, 2, 1))
        results = model.generate(
            StorageView.from_array(some),
            [list(prompt)] * len(some),
            beam_size=search.beams,
            return_scores=True,
            max_length=LONGEST,
        )
        for result in results:
            ids = tuple(result.sequences_ids[0])
            found.append(Found(ids, result.scores[0] * max(len(ids), 1)))
    return found


def in_windows(transcriber: Transcriber, path: Path) -> list[tuple[Recording, list[Found]]]:
    """The windows of a long recording, with the ids that each continues, and the greedy output of each."""
    submitted, submit = list[tuple[Recording, Any]](), transcriber.submit

    def noted(record: Recording, **asked: Any) -> Any:
        future = submit(record, **asked)
        submitted.append((record, future))
        return future

    with patch.object(transcriber, "submit", noted):
        options = WindowsConfig(temperatures=(0.0,))
        list(transcriber.parts(path, windows=options, beam_size=1, stop="present"))
    found, start = list[tuple[Recording, list[Found]]](), len(transcriber.task.start(timestamps=True))
    for record, future in submitted:
        (best,) = future.result()
        length = len(best.ids) - start
        found.append((record, [Found(best.ids[start:-1], best.score * length)]))
    return found


def agreement_of_windows(transcriber: Transcriber, model: Any, folder: Path, minutes: int) -> tuple[str, str]:
    """How many windows of a recording have the same tokens, and how far apart their log-probabilities are."""
    task = transcriber.task
    assert task.codes
    assert task.codes.previous is not None
    previous = [task.codes.previous]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "long.wav"
        joined(recorded(folder), 60 * minutes, path)
        windows = in_windows(transcriber, path)
    theirs = list[Found]()
    for record, _ in windows:
        before = [*previous, *record.prompt[1 - task.prompt_size :]] if record.prompt else []
        prompt = [*before, task.special.bos, *task.start(timestamps=True)]
        features = task.frames(record)[None].astype(np.float32)
        theirs += found_by_ctranslate2(model, features, prompt, Search(1, True))
    found = agreement([ours for _, ours in windows], theirs)
    return f"{found.equal} of {len(windows)}", f"{found.difference:.1e}"


def drawn(folders: Sequence[Path], count: int) -> list[Path]:
    """So many recordings of each folder.

    Raises:
      UserError: it has fewer.
    """
    random = Random(0)
    chosen = []
    for folder in folders:
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SOUNDS)
        if len(files) < count:
            raise UserError(f"{folder} has {len(files)} recordings, and --count is {count}")
        chosen += random.sample(files, count)
    return chosen


# Where nobody speaks


def sounds(seconds: int) -> dict[str, np.ndarray]:
    """Waveforms in which nobody speaks, by their names."""
    random = np.random.default_rng(0)
    count = seconds * RATE
    times = np.arange(count) / RATE
    noise = random.normal(size=count)
    walk = np.cumsum(noise) - np.linspace(noise[0], noise.sum(), count)
    beat = np.arange(RATE // 2) / RATE

    def note(pitch: float) -> np.ndarray:
        tones = [np.sin(2 * np.pi * harmonic * pitch * beat) / harmonic for harmonic in (1, 2, 3)]
        decay: np.ndarray = np.exp(-3 * beat) * np.sum(tones, axis=0)
        return decay

    waves = {
        "digital silence": np.zeros(count),
        "dither of one bit": random.choice([-1, 0, 1], count) / 2**15,
        "near silence": 1e-3 * noise,
        "a click": 0.5 * (np.arange(count) == count // 2),
        "a constant": np.full(count, 0.1),
        "white noise": 0.1 * noise,
        "brown noise": 0.3 * walk / np.abs(walk).max(),
        "a tone of 440 Hz": 0.3 * np.sin(2 * np.pi * 440 * times),
        "a hum of 50 Hz": 0.1 * np.sin(2 * np.pi * 50 * times),
        "a chord": 0.1 * np.sum([np.sin(2 * np.pi * pitch * times) for pitch in (220, 277, 330)], axis=0),
        "notes": 0.2 * np.concatenate([note(pitch) for pitch in random.choice(NOTES, 2 * seconds)]),
    }
    return {name: wave.clip(-1, 1).astype(np.float32) for name, wave in waves.items()}


def silence_table(transcriber: Transcriber, given: argparse.Namespace) -> None:
    """Prints what both programs hear in each sound."""
    from faster_whisper import WhisperModel

    other = WhisperModel(str(given.weights), device="cpu", compute_type="float32")
    print("| sound | here | faster-whisper |")
    print("|---|---|---|")
    for name, wave in sounds(LONG if given.long else SECONDS).items():
        if given.only and name not in given.only:
            continue
        segments, _ = other.transcribe(wave, language=given.language)
        theirs = " ".join(segment.text.strip() for segment in segments)
        print(f"| {name} | {transcriber.transcribe(wave)} | {theirs} |", flush=True)


def recordings_table(transcriber: Transcriber, given: argparse.Namespace, recordings: list[Path]) -> None:
    """Prints how many outputs are equal, by search."""
    from ctranslate2.models import Whisper

    other = Whisper(str(given.weights), compute_type="float32")
    print("| search | equal | log-probabilities of equal outputs within | equal by CTranslate2's rule |")
    print("|---|---|---|---|")
    task = transcriber.task
    features = np.stack([task.frames(transcriber.heard(path)) for path in recordings]).astype(np.float32)
    for search in [Search(beams, is_timed) for beams in given.beams for is_timed in (False, True)]:
        prompt = [task.special.bos, *task.start(timestamps=search.is_timed)]
        ours = found_here(transcriber, recordings, search)
        found = agreement(ours, found_by_ctranslate2(other, features, prompt, search))
        counts = [f"{equal} of {len(recordings)}" for equal in (found.equal, found.equal_by_rule)]
        print(f"| {search} | {counts[0]} | {found.difference:.1e} | {counts[1]} |", flush=True)
    for folder in given.recordings if given.minutes else ():
        equal, difference = agreement_of_windows(transcriber, other, folder, given.minutes)
        title = f"windows of {given.minutes} minutes of {folder.name}, each after the text before it"
        print(f"| {title} | {equal} | {difference} | {equal} |", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("recordings", nargs="*", type=Path, help="folders of recordings")
    parser.add_argument("--weights", type=Path, required=True, help="folder of Whisper, of CTranslate2")
    parser.add_argument("--language", default="en", help="that is spoken (en)")
    parser.add_argument("--count", type=positive, default=25, help="recordings of each folder (25)")
    parser.add_argument("--beams", type=positive, nargs="+", default=[1, 5], help="beam sizes (1 5)")
    parser.add_argument("--minutes", type=positive, help="of a long recording of each folder")
    parser.add_argument("--silence", action="store_true", help="compare sounds in which nobody speaks")
    parser.add_argument("--long", action="store_true", help=f"such sounds of {LONG} seconds")
    parser.add_argument("--only", nargs="+", choices=tuple(sounds(1)), metavar="SOUND", help="these of them")
    given = parser.parse_args(arguments)
    if bool(given.recordings) == given.silence:
        parser.error("give either folders of recordings or --silence")
    if given.silence and not importlib.util.find_spec("faster_whisper"):
        raise UserError("faster-whisper is not installed: pip install faster-whisper")
    needs("ctranslate2")
    if not (given.weights / MODEL).exists():
        raise UserError(f"--weights {given.weights}: there is no {MODEL}; convert the model with CTranslate2")
    recordings = drawn(given.recordings, given.count)
    with tempfile.TemporaryDirectory() as folder:
        import_model(given.weights, Path(folder) / "run", given.language)
        transcriber = Transcriber.load(Path(folder) / "run")
        if given.silence:
            silence_table(transcriber, given)
        else:
            recordings_table(transcriber, given, recordings)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
