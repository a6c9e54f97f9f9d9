"""Recognition of recorded digits: speakers that were heard in training, and one that was not.

`python -m benchmarks.quality.digits WORK --recordings DIR` reads recordings of single digits named
`{digit}_{speaker}_{number}.wav`, as in the Free Spoken Digit Dataset, and joins those of a speaker to strings
of 3 to 7 digits: for training, validation and test from different recordings. One speaker is held out. It
trains each model on the same strings for the same number of updates, and writes a table of word and sentence
error rates (jiwer) for the speakers that were heard and for the other one, and learning curves. Everything is
in WORK: if interrupted, the same command continues.
"""

import argparse
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import keep, machine
from benchmarks.plotting import picture
from benchmarks.runs import once
from transformer import PRESETS, Config, Run, Transcriber, train
from transformer.config.methods import GuidanceConfig
from transformer.config.ranges import Option
from transformer.config.records import RecordingsConfig
from transformer.data.built_in.spoken import DIGITS
from transformer.data.signals.audio import RATE
from transformer.data.signals.waveforms import read_audio
from transformer.data.sources.manifests import read_recording_list
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.runtime.machine import library
from transformer.tasks.metrics.error_rates import sentence_errors, word_errors

FEWEST, MOST = 3, 7  # digits of a string
TEST, VALIDATION = range(5), range(5, 10)  # numbers of the recordings of each digit and speaker
SIZES = {"train": 3_000, "validation": 150, "test": 500, "unheard": 500}  # strings
LENGTHS = (200, 300, 400, 600)  # of buckets, in frames
PAUSE = (0.02, 0.2)  # seconds between digits
NAME = re.compile(r"(?P<digit>\d)_(?P<speaker>\w+)_(?P<number>\d+)\.wav")
WORDS = list(DIGITS)
Single = tuple[str, str, int]
"""Speaker, word and number of a recording."""
AUGMENTED: dict[str, Any] = {"speeds": (0.9, 1.0, 1.1)}
MASKED: dict[str, Any] = {"masks": 1, "mask_bands": 10, "mask_frames": 10}  # a digit has 30 to 50 frames
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "plain": ({}, {}, 0.0),
    "guided": ({}, {}, 2.0),
    "monotonic": ({"cross_mechanism": "monotonic"}, {}, 0.0),
    "speeds": ({}, AUGMENTED, 0.0),
    "masks": (MASKED, {}, 0.0),
    "speeds and masks": (MASKED, AUGMENTED, 0.0),
}
"""Options of the model and of the data, and the weight of guided attention."""


@dataclass(frozen=True)
class Plan:
    """What to compare."""

    work: Path
    recordings: Path
    held_out: str
    updates: int | None
    small: bool

    @property
    def folder(self) -> Path:
        """Where the strings are."""
        return self.work / "strings"

    def config(self, name: str) -> Config:
        """The config of a run."""
        model, data, guidance = MODELS[name]
        base = config_of(self.folder, self.updates, self.small, model, data)
        return replace(base, guidance=GuidanceConfig(weight=guidance))

    def build(self, name: str) -> Json:
        """Trains and measures a model, unless it is there."""
        path = self.work / name.replace(", ", "-").replace(" ", "-")

        def trained() -> Json:
            before = time.process_time()
            train(self.config(name), path)
            return measured(path, self.folder) | {"cpu": time.process_time() - before}

        return once(path.with_suffix(".json"), trained)


def config_of(
    strings: Path,
    updates: int | None,
    small: bool,
    model: Mapping[str, Any],
    data: Mapping[str, Any] = MappingProxyType({}),
) -> Config:
    """The config of a run on strings, with these options of model and data."""
    base = PRESETS["speech"]
    assert isinstance(base.data, RecordingsConfig)
    files: dict[str, Any] = {split: strings / f"{split}.tsv" for split in ("train", "validation", "test")}
    sizes: dict[str, Any] = {"num_layers": 1, "d_model": 16, "d_ff": 32} if small else {}
    steps = updates or 2 * base.training.steps
    return replace(
        base,
        model=replace(base.model, **model, **sizes),
        data=replace(base.data, **files, **data, max_length=LENGTHS[-1], buckets=LENGTHS),
        decoding=replace(base.decoding, buckets=LENGTHS),
        training=replace(base.training, steps=steps, evaluate_every=max(1, steps // 12)),
    )


def measured(path: Path, strings: Path, **options: Option) -> Json:
    """Error rates of both kinds of speakers, and the learning curve. The options are those of the search."""
    transcriber, found = Transcriber.load(path), {}
    for split in ("test", "unheard"):
        listed = read_recording_list(strings / f"{split}.tsv")
        heard = transcriber.transcribe([each.path for each in listed], **options)
        texts = [each.text for each in listed]
        found[split] = {
            "words": word_errors(heard, texts).value,
            "sentences": sentence_errors(heard, texts).value,
            "wrong": [[theirs, ours] for ours, theirs in zip(heard, texts, strict=True) if ours != theirs],
        }
    curve = [(each["step"], each["word_error_rate"]) for each in Run(path).log.records("evaluation")]
    return {**found, "curve": curve}


# Strings of digits


def strings_of(small: bool) -> dict[str, int]:
    """How many of each split; few, for tests."""
    return {split: count // 50 if small else count for split, count in SIZES.items()}


def split_of(number: int) -> str:
    """What a recording is for."""
    return "test" if number in TEST else "validation" if number in VALIDATION else "train"


def make_strings(plan: Plan) -> None:
    """Writes the strings and their manifests, unless they are there."""
    if not (plan.folder / "done").exists():
        write_strings(
            plan.folder, recordings_of(plan.recordings), WORDS, plan.held_out, strings_of(plan.small)
        )


def write_strings(
    folder: Path,
    single: Mapping[Single, Path],
    words: Sequence[str],
    held_out: str,
    counts: Mapping[str, int],
    sizes: tuple[int, int] = (FEWEST, MOST),
    split_of: Callable[[int], str] = split_of,
) -> None:
    """Writes strings of recordings of single words, and their manifests.

    Args:
      folder: where they are written.
      single: the recordings by speaker, word and number.
      words: all of them.
      held_out: the speaker of the split that is not heard in training.
      counts: strings of each split.
      sizes: the fewest and the most words of a string.
      split_of: what a recording with a number is for.

    Raises:
      UserError: there is no such speaker, or no other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    speakers = sorted({speaker for speaker, _, _ in single})
    if held_out not in speakers or len(speakers) < 2:
        raise UserError(f"--held-out {held_out}: the recordings have {', '.join(speakers)}")
    waves, who = {key: read_audio(path) for key, path in single.items()}, dict[str, list[str]]()
    for place, (split, count) in enumerate(counts.items()):
        random, lines = np.random.default_rng(place), []
        heard = [speaker for speaker in speakers if (speaker == held_out) == (split == "unheard")]
        who[split] = heard
        choices = choices_of(waves, split, split_of)
        for index in range(count):
            speaker = heard[index % len(heard)]
            said = random.integers(0, len(words), random.integers(sizes[0], sizes[1] + 1)).tolist()
            taken = [waves[speaker, words[i], int(random.choice(choices[speaker, words[i]]))] for i in said]
            library("soundfile").write(folder / f"{split}-{index}.wav", joined(taken, random), RATE)
            lines.append(f"{split}-{index}.wav\t{' '.join(words[i] for i in said)}\n")
        (folder / f"{split}.tsv").write_text("".join(lines))
    (folder / "speakers.json").write_text(json.dumps(who))  # the strings of a split are theirs in turns
    (folder / "done").touch()


def recordings_of(folder: Path) -> dict[Single, Path]:
    """The recordings by speaker, digit and number. Raises UserError if there are none."""
    found = {
        (name["speaker"], WORDS[int(name["digit"])], int(name["number"])): path
        for path in sorted(folder.glob("*.wav"))
        if (name := NAME.fullmatch(path.name))
    }
    if not found:
        raise UserError(f"--recordings {folder}: there is no file such as 7_george_12.wav")
    return found


def choices_of(
    keys: Iterable[Single], split: str, split_of: Callable[[int], str] = split_of
) -> dict[tuple[str, str], list[int]]:
    """The numbers of the recordings for a split, by speaker and word."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for speaker, word, number in keys:
        if split == "unheard" or split_of(number) == split:
            found[speaker, word].append(number)
    return found


def joined(waves: list[np.ndarray], random: np.random.Generator) -> np.ndarray:
    """Recordings one after the other, with pauses as quiet as their quietest part."""

    def pieces() -> Iterator[np.ndarray]:
        for wave in waves:
            level = float(np.sort(np.abs(wave))[: max(1, len(wave) // 10)].mean())
            pause = random.standard_normal(int(RATE * random.uniform(*PAUSE))) * level
            yield from (pause, wave)

    return np.clip(np.concatenate(list(pieces())), -1, 1).astype(np.float32)


# What is written


def table(found: dict[str, Json]) -> str:
    """Markdown: a row for each model."""
    lines = ["| | heard: words | sentences | not heard: words | sentences | CPU min |", "|---" * 6 + "|"]
    for name, each in found.items():
        rates = [each[split][kind] for split in ("test", "unheard") for kind in ("words", "sentences")]
        lines.append(f"| {name} | {' | '.join(f'{x:.1f} %' for x in rates)} | {each['cpu'] / 60:.1f} |")
    return "\n".join(lines)


def plot(found: dict[str, Json], path: Path) -> None:
    """Learning curves."""
    with picture(path, size=(6, 4)) as (_, [axis]):
        for name, each in found.items():
            axis.plot(*zip(*each["curve"], strict=True), label=name)
        axis.set(xlabel="update", ylabel="word error rate of validation strings, %", ylim=(0, 100))
        axis.grid(alpha=0.3)
        axis.legend()


def main(arguments: list[str] | None = None) -> None:
    """Trains and measures what is missing, prints the table and writes WORK/digits.json and .png."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for strings, runs, table and picture")
    parser.add_argument("--recordings", type=Path, required=True, help="folder of recorded digits")
    parser.add_argument("--held-out", default="theo", help="the speaker that is not heard in training (theo)")
    parser.add_argument("--updates", type=positive, help="of each training (twice those of the preset)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {'; '.join(MODELS)}")
    parser.add_argument("--quick", action="store_true", help="few strings and small models, to test it")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.only or ()) - set(MODELS)):
        raise UserError(f"--only {unknown[0]!r}: there is no such model; there are {'; '.join(MODELS)}")
    needs("matplotlib")
    plan = Plan(given.work, given.recordings, given.held_out, given.updates, given.quick)
    make_strings(plan)
    found = {name: plan.build(name) for name in given.only or MODELS}
    results = {"about": machine(), "models": found}
    written = keep(given.work / "digits", results, lambda path: plot(found, path))
    print(f"{table(found)}\n{written}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
