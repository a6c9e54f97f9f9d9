"""How well a long recording is heard, beside its parts alone, how fast, and in how much memory.

`python -m benchmarks.quality.long_recordings RUN` joins clips with known texts, with pauses of 0.2 to 2
seconds between them, to recordings of some lengths (`--minutes`), and transcribes each in a process of its
own, with the times of words. All of a recording has the same noise, as loud as that of its noisiest clip.

Without `--recordings` the clips are the built-in spoken digits, whose words have known times. With it they
are those of a folder: a file named `list.tsv` in it has the name of a recording, a tab and its text on each
line; without that file, what is before the first underscore of a name is the text, as in the Free Spoken
Digit Dataset. There only words that are a whole clip have known times.

For each length it prints the word error rate of the whole recording and of its clips alone, the share of
words that begin and end within 0.1 s of where they do, among those that are right, the time for a second of
sound (elapsed, and of all cores), and the memory that the process has used at most, over that before the
search.
"Seven", "7" and "7," are the same word.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np

from benchmarks.command import needs, positive, run
from benchmarks.measure import peak_memory_of_host
from transformer import Transcriber
from transformer.config.records import AUDIO, Cut, Detector
from transformer.data.built_in.spoken import DIGITS
from transformer.data.signals.audio import RATE
from transformer.data.signals.waveforms import read_audio
from transformer.data.sources.recordings import digits, read_recording_list
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.runtime.machine import library
from transformer.tasks.metrics.error_rates import word_errors

TEST = 2  # number of the test split of the built-in digits
MOST = 5  # digits of a built-in clip
PAUSE = (0.2, 2.0)  # seconds between clips
BLOCK = RATE // 100  # samples of which the level of noise is taken
EXACT = 0.1  # seconds
TOGETHER = 32  # clips that are transcribed at once
MANIFEST = "list.tsv"
NUMBERS = {word: str(number) for number, word in enumerate(DIGITS)}
WORD = re.compile(r"\d|[^\W\d]+(?:'[^\W\d]+)*")

Times = tuple[float, float]


@dataclass(frozen=True)
class Clip:
    """A recording with a known text."""

    wave: np.ndarray
    text: str
    times: Sequence[Times]
    """When each word begins and ends; empty if that is not known."""


def words_of(text: str) -> list[str]:
    """The words of a text, without punctuation; digits are words of their own, however they are written."""
    return [NUMBERS.get(word, word) for word in WORD.findall(text.casefold())]


def built_in() -> Iterator[Clip]:
    """Strings of digits by the built-in synthesiser, without end."""
    index = 0
    while True:
        said = digits(TEST, index, MOST)
        yield Clip(said.wave, " ".join(said.words), said.times)
        index += 1


def recorded(folder: Path) -> Iterator[Clip]:
    """The recordings of a folder in random order, without end.

    Raises:
      UserError: it has none.
    """
    if (folder / MANIFEST).exists():
        listed = [(line.path, line.text) for line in read_recording_list(folder / MANIFEST)]
    else:
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO)
        listed = [(path, path.stem.partition("_")[0]) for path in files]
    if not listed:
        raise UserError(f"--recordings {folder}: there are no recordings in it")
    random = Random(0)
    while True:
        for path, text in random.sample(listed, len(listed)):
            wave = read_audio(path)
            is_word = len(words_of(text)) == 1
            yield Clip(wave, text, [(0.0, len(wave) / RATE)] if is_word else [])


def joined(clips: Iterator[Clip], seconds: float, path: Path) -> tuple[list[Clip], list[Times | None]]:
    """Writes a recording of at least so many seconds; returns its clips as they are heard in it, and when
    each word begins and ends in it, or None."""
    random = np.random.default_rng(0)
    used, times, begins, length = list[Clip](), list[Times | None](), list[int](), 0
    while length < seconds * RATE:
        clip = next(clips)
        begin = length + round(random.uniform(*PAUSE) * RATE)
        known = [(begin / RATE + start, begin / RATE + end) for start, end in clip.times]
        times += known or [None] * len(words_of(clip.text))
        used.append(clip)
        begins.append(begin)
        length = begin + len(clip.wave)
    wave = random.normal(0, max(quietest(clip.wave) for clip in used), length).astype(np.float32)
    for begin, clip in zip(begins, used, strict=True):
        wave[begin : begin + len(clip.wave)] += clip.wave
    library("soundfile").write(path, wave, RATE, subtype="PCM_16")
    heard = (wave[begin : begin + len(clip.wave)] for begin, clip in zip(begins, used, strict=True))
    return [replace(clip, wave=part) for clip, part in zip(used, heard, strict=True)], times


def quietest(wave: np.ndarray) -> float:
    """The level of the quietest moment of a recording."""
    blocks = wave[: len(wave) // BLOCK * BLOCK].reshape(-1, BLOCK)
    return float(np.sqrt(np.square(blocks).mean(axis=1)).min(initial=1.0))


def exact(
    said: Sequence[str], times: Sequence[Times | None], heard: Sequence[tuple[str, Times]]
) -> tuple[int, int]:
    """How many words are right, among those with known times, and how many of them at the right time."""
    matcher = SequenceMatcher(None, list(said), [word for word, _ in heard], autojunk=False)
    right = on_time = 0
    for first, second, size in matcher.get_matching_blocks():
        for offset in range(size):
            known, found = times[first + offset], heard[second + offset][1]
            if known is not None:
                right += 1
                on_time += max(abs(a - b) for a, b in zip(known, found, strict=True)) <= EXACT
    return right, on_time


@dataclass(frozen=True)
class Measured:
    """What a process has measured."""

    text: str
    words: list[tuple[str, Times]]
    seconds: float
    elapsed: float
    cpu: float
    megabytes: float


def measured(given: argparse.Namespace) -> Measured:
    """Of the recording `given.measure`. The first seconds of it are transcribed before, to compile."""
    transcriber = Transcriber.load(given.run, int8=given.int8)
    asked: dict[str, Any] = {
        "cut": given.cut,
        "pause": given.pause,
        "detector": given.detector,
        "times": True,
    }
    wave = read_audio_start(given.measure)
    list(transcriber.parts(wave, **asked))
    memory, cpu, began = peak_memory_of_host(), time.process_time(), time.monotonic()
    texts, heard, end = [], [], 0.0
    for part in transcriber.parts(given.measure, **asked):
        texts.append(part.transcript.text)
        for word in part.transcript.words:
            heard += [(text, (word.start, word.end)) for text in words_of(word.text)]
        end = part.end
    elapsed, cpu = time.monotonic() - began, time.process_time() - cpu
    return Measured(" ".join(texts), heard, end, elapsed, cpu, (peak_memory_of_host() - memory) / 2**20)


def read_audio_start(path: Path) -> np.ndarray:
    """The first half minute of a recording."""
    wave, _ = library("soundfile").read(path, frames=30 * RATE, dtype="float32")
    started: np.ndarray = wave
    return started


def row(given: argparse.Namespace, command: Sequence[str], minutes: int, folder: Path) -> str:
    """A row of the table."""
    path = folder / f"{minutes}.wav"
    clips, times = joined(recorded(given.recordings) if given.recordings else built_in(), 60 * minutes, path)
    said = [" ".join(words_of(clip.text)) for clip in clips]
    out = subprocess.run(
        [*command, "--measure", str(path)], check=True, capture_output=True, text=True
    ).stdout
    about: Json = json.loads(out.splitlines()[-1])
    whole = word_errors([" ".join(words_of(about["text"]))], [" ".join(said)]).value
    right, on_time = exact(" ".join(said).split(), times, about["words"])
    transcriber = Transcriber.load(given.run, int8=given.int8)
    heard = transcriber.transcribe([clip.wave for clip in clips])
    alone = word_errors([" ".join(words_of(text)) for text in heard], said).value
    factors = (f"{about[name] / about['seconds']:.3f}" for name in ("elapsed", "cpu"))
    share = f"{100 * on_time / right:.0f} % of {right}" if right else ""
    cells = [
        f"{minutes} min",
        f"{whole:.1f} %",
        f"{alone:.1f} %",
        share,
        *factors,
        f"{about['megabytes']:.0f} MB",
    ]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of a recogniser")
    parser.add_argument("--recordings", type=Path, help="folder of clips (the built-in digits)")
    parser.add_argument("--minutes", type=positive, nargs="+", default=[2, 20], help="lengths (2 20)")
    parser.add_argument("--cut", choices=get_args(Cut), help="as of decode.py")
    parser.add_argument("--pause", type=float, help="as of decode.py")
    parser.add_argument("--detector", choices=get_args(Detector), help="as of decode.py")
    parser.add_argument("--int8", action="store_true", help="int8 weights")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    needs("jiwer", "soundfile")
    if given.measure:
        print(json.dumps(asdict(measured(given))))
        return
    command = [sys.executable, "-m", __spec__.name, str(given.run), *["--int8"] * given.int8]
    for name in "cut", "pause", "detector":
        command += [f"--{name}", str(getattr(given, name))] if getattr(given, name) else []
    print("| length | words wrong | in its clips alone | on time | time | time of all cores | memory |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for minutes in given.minutes:
            print(row(given, command, minutes, Path(folder)), flush=True)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
