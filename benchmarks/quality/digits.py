"""Recognition of strings of recorded words: speakers that were heard in training, and one that was not.

`python -m benchmarks.quality.digits WORK --recordings DIR` reads recordings of single words, named as
`7_george_12.wav` (the Free Spoken Digit Dataset) or, with `--letters`, `b_anna_nohash_1.flac` (the test
assets of Moonshine), and joins those of a speaker to strings: for training, validation and test from
different recordings. One speaker is held out. It trains the preset `speech` in several ways on the same
strings for the same number of updates: by attention, by CTC and by both. Each model searches in every way
that it can. A table has word and sentence error rates (jiwer), as means over the seeds, for the speakers that
were heard and for the other one; a picture has learning curves. Everything is in WORK: if interrupted, the
same command continues.
"""

import argparse
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import keep, machine, picture
from benchmarks.runs import once
from transformer import PRESETS, Config, Run, Transcriber, train
from transformer.config.methods import GuidanceConfig
from transformer.config.ranges import Option
from transformer.config.records import RecordingsConfig
from transformer.data.built_in.spoken import DIGITS
from transformer.data.signals.audio import RATE
from transformer.data.signals.waveforms import read_audio
from transformer.data.sources.recordings import read_recording_list
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.runtime.machine import library
from transformer.tasks.metrics.error_rates import sentence_errors, word_errors

FEWEST, MOST = 3, 7  # digits of a string
TEST, VALIDATION = range(5), range(5, 10)  # numbers of the recordings of each digit and speaker
SIZES = {"train": 3_000, "validation": 150, "test": 500, "unheard": 500}  # strings
LENGTHS = (200, 300, 400, 600)  # of buckets, in frames
PAUSE = (0.02, 0.2)  # seconds between words
NAME = re.compile(r"(?P<word>[a-z]+|\d)_(?P<speaker>\w+?)_(?:nohash_)?(?P<number>\d+)\.(?:wav|flac)")
WORDS = list(DIGITS)
TIMED = 200  # recordings whose transcription is timed
Single = tuple[str, str, int]
"""Speaker, word and number of a recording."""
AUGMENTED: dict[str, Any] = {"speeds": (0.9, 1.0, 1.1)}
MASKED: dict[str, Any] = {"masks": 1, "mask_bands": 10, "mask_frames": 10}  # a digit has 30 to 50 frames
Searches = dict[str, dict[str, Option]]
"""Options by name."""


@dataclass(frozen=True)
class Way:
    """A way to train, and those to search with the model."""

    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    guidance: float = 0.0
    """The weight of guided attention."""
    searches: Searches = field(default_factory=lambda: {"attention": {}})


BY_BOTH: Searches = {"both": {}, "attention": {"ctc_weight": 0.0}, "CTC": {"ctc_weight": 1.0}}
WAYS = {
    "plain": Way(),
    "guided": Way(guidance=2.0),
    "monotonic": Way({"cross_mechanism": "monotonic"}),
    "speeds": Way(data=AUGMENTED),
    "masks": Way(MASKED),
    "speeds and masks": Way(MASKED, AUGMENTED),
    "CTC": Way({**MASKED, "ctc_weight": 1.0}, searches={"CTC": {}, "CTC, best path": {"method": "greedy"}}),
    "both": Way({**MASKED, "ctc_weight": 0.3}, searches=BY_BOTH),
}


def split_of(number: int) -> str:
    """What a recording is for."""
    return "test" if number in TEST else "validation" if number in VALIDATION else "train"


def split_of_few(number: int) -> str:
    """What a recording is for, where there are few of each word."""
    return {0: "test", 1: "validation"}.get(number, "train")


@dataclass(frozen=True)
class Corpus:
    """How recordings of a kind are divided and joined."""

    held_out: str
    """The speaker that is not heard in training."""
    sizes: tuple[int, int]
    """The fewest and the most words of a string."""
    split_of: Callable[[int], str]


DIGITS_OF_PEOPLE = Corpus("theo", (FEWEST, MOST), split_of)
LETTERS_OF_PEOPLE = Corpus("evmaki", (2, 5), split_of_few)


@dataclass(frozen=True)
class Plan:
    """What to compare."""

    work: Path
    updates: int | None
    small: bool

    @property
    def strings(self) -> Path:
        """Where the strings are."""
        return self.work / "strings"

    def write_strings(self, recordings: Path, corpus: Corpus) -> None:
        """Writes the strings and their manifests, unless they are there."""
        if not (self.strings / "done").exists():
            single = recordings_of(recordings)
            counts = {split: count // 50 if self.small else count for split, count in SIZES.items()}
            write_strings(self.strings, single, counts, corpus)

    def build(self, name: str, seed: int) -> Json:
        """Trains and measures a model, unless it is there."""
        path, way = self.work / f"{name.replace(' ', '-')}-{seed}", WAYS[name]
        config = config_of(self.strings, self.updates, self.small, way.model, way.data)
        training = replace(config.training, seed=seed)
        config = replace(config, training=training, guidance=GuidanceConfig(weight=way.guidance))

        def trained() -> Json:
            before = time.process_time()
            train(config, path)
            used = time.process_time() - before
            found = {
                search: measured(path, self.strings, **options)
                | {"ms": milliseconds(path, self.strings, options)}
                for search, options in way.searches.items()
            }
            curve = [(each["step"], each["word_error_rate"]) for each in Run(path).log.records("evaluation")]
            return {"searches": found, "curve": curve, "cpu": used}

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
    """Error rates of both kinds of speakers. The options are those of the search."""
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
    return found


def milliseconds(path: Path, strings: Path, options: dict[str, Option]) -> float:
    """CPU time of a recording that is transcribed beside others, after the programs have been compiled."""
    transcriber = Transcriber.load(path)
    heard = [transcriber.heard(each.path) for each in read_recording_list(strings / "test.tsv")][:TIMED]
    transcriber.decode(heard, **options)
    before = time.process_time()
    transcriber.decode(heard, **options)
    return 1000 * (time.process_time() - before) / len(heard)


# Strings of words


def write_strings(
    folder: Path,
    single: Mapping[Single, Path],
    counts: Mapping[str, int],
    corpus: Corpus,
) -> None:
    """Writes strings of recordings of single words, and their manifests.

    Args:
      folder: where they are written.
      single: the recordings by speaker, word and number.
      counts: strings of each split.
      corpus: how recordings are divided and joined.

    Raises:
      UserError: there is no such speaker, or no other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    speakers, held_out = sorted({speaker for speaker, _, _ in single}), corpus.held_out
    known = {word for _, word, _ in single}
    words = [*(word for word in WORDS if word in known), *sorted(known - set(WORDS))]
    if held_out not in speakers or len(speakers) < 2:
        raise UserError(f"--held-out {held_out}: the recordings have {', '.join(speakers)}")
    waves = {key: read_audio(path) for key, path in single.items()}
    for place, (split, count) in enumerate(counts.items()):
        random, lines = np.random.default_rng(place), []
        heard = [speaker for speaker in speakers if (speaker == held_out) == (split == "unheard")]
        choices = choices_of(waves, split, corpus.split_of)
        for index in range(count):
            speaker = heard[index % len(heard)]
            size = random.integers(corpus.sizes[0], corpus.sizes[1] + 1)
            said = random.integers(0, len(words), size).tolist()
            taken = [waves[speaker, words[i], int(random.choice(choices[speaker, words[i]]))] for i in said]
            library("soundfile").write(folder / f"{split}-{index}.wav", joined(taken, random), RATE)
            lines.append(f"{split}-{index}.wav\t{' '.join(words[i] for i in said)}\n")
        (folder / f"{split}.tsv").write_text("".join(lines))
    (folder / "done").touch()


def recordings_of(folder: Path) -> dict[Single, Path]:
    """The recordings by speaker, word and number. Raises UserError if there are none."""
    found = {
        (name["speaker"], WORDS[int(word)] if word.isdigit() else word, int(name["number"])): path
        for path in sorted(folder.glob("*"))
        if (name := NAME.fullmatch(path.name)) and (word := name["word"])
    }
    if not found:
        raise UserError(
            f"--recordings {folder}: there is no file such as 7_george_12.wav or b_anna_nohash_1.flac"
        )
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


def table(found: dict[str, list[Json]]) -> str:
    """Markdown: a row for each training and search, with means over the seeds, and the range of words."""
    titles = "heard: words", "sentences", "not heard: words", "sentences", "CPU ms", "training, CPU min"
    lines = [f"| training | search | {' | '.join(titles)} |", "|---" * (len(titles) + 2) + "|"]
    for name, seeds in found.items():
        minutes = statistics.mean(each["cpu"] for each in seeds) / 60
        for search in seeds[0]["searches"]:
            runs = [each["searches"][search] for each in seeds]
            rates = [
                mean([each[split][what] for each in runs], what == "words")
                for split in ("test", "unheard")
                for what in ("words", "sentences")
            ]
            cost = statistics.mean(each["ms"] for each in runs)
            lines.append(f"| {name} | {search} | {' | '.join(rates)} | {cost:.1f} | {minutes:.1f} |")
    return "\n".join(lines)


def mean(values: list[float], with_range: bool) -> str:
    """A percentage; of several seeds the mean, and the lowest and the highest."""
    spread = f" ({min(values):.1f} to {max(values):.1f})" if with_range and len(values) > 1 else ""
    return f"{statistics.mean(values):.1f} %{spread}"


def plot(found: dict[str, list[Json]], path: Path) -> None:
    """Learning curves of the first seed."""
    with picture(path, size=(6, 4)) as (_, [axis]):
        for name, seeds in found.items():
            axis.plot(*zip(*seeds[0]["curve"], strict=True), label=name)
        axis.set(xlabel="update", ylabel="word error rate of validation strings, %", ylim=(0, 100))
        axis.grid(alpha=0.3)
        axis.legend()


def main(arguments: list[str] | None = None) -> None:
    """Trains and measures what is missing, prints the table and writes WORK/digits.json and .png."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for strings, runs, table and picture")
    parser.add_argument("--recordings", type=Path, required=True, help="folder of recorded words")
    parser.add_argument("--letters", action="store_true", help="few recordings of each word: shorter strings")
    parser.add_argument("--held-out", help="the speaker that is not heard in training (theo; evmaki)")
    parser.add_argument("--updates", type=positive, help="of each training (twice those of the preset)")
    parser.add_argument("--seeds", type=positive, default=1, help="trainings of each (1)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {'; '.join(WAYS)}")
    parser.add_argument("--quick", action="store_true", help="few strings and small models, to test it")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.only or ()) - set(WAYS)):
        raise UserError(f"--only {unknown[0]!r}: there is no such model; there are {'; '.join(WAYS)}")
    needs("matplotlib")
    corpus = LETTERS_OF_PEOPLE if given.letters else DIGITS_OF_PEOPLE
    corpus = replace(corpus, held_out=given.held_out or corpus.held_out)
    plan = Plan(given.work, given.updates, given.quick)
    plan.write_strings(given.recordings, corpus)
    found: dict[str, list[Json]] = {name: [] for name in given.only or WAYS}
    for seed in range(given.seeds):
        for name, seeds in found.items():
            seeds.append(plan.build(name, seed))
            for search, rates in seeds[-1]["searches"].items():
                words = ", ".join(f"{rates[split]['words']:.1f} %" for split in ("test", "unheard"))
                print(f"{name}, seed {seed}, searched by {search}: {words}", flush=True)
    results = {"about": machine(), "models": found}
    written = keep(given.work / "digits", results, lambda path: plot(found, path))
    print(f"{table(found)}\n{written}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
