"""What a recogniser hears in synthetic speech.

`python -m benchmarks.quality.synthesis WORK` trains a recogniser on the built-in spoken digits, of any
speaker, also on single ones that are repeated, so that it can count; and synthesisers on those of one: that
of the preset; without guided attention; without its own frames in training; and a non-autoregressive one,
with the durations of the first. The recogniser transcribes the test texts as the built-in speaker says them;
the same after the way to features and back, also half and twice as long, which no synthesiser can do better
than; and as each synthesiser speaks them, without the noise of the pre-net and with it, and half and twice as
long. Further columns have the test of repetitions: one word, 1 to 6 times, and how often as many are heard. A
second table has numbers, whose spelling in digits does not say how they sound: spoken from their digits, and
in two stages, over phonemes.

What is wrong, and how, is in a third table and in WORK/synthesis.json: words that are taken for others, left
out or added, where in a text, and utterances without an end. `--only` names the synthesisers of digits;
`--seed 1` trains others, for the same recogniser.

With `--recordings DIR --speaker NAME` the voice is that of recorded digits (`benchmarks.quality.digits`), and
so is the recogniser's training; there are no numbers then. Everything is in WORK: if interrupted, the same
command continues.
"""

import argparse
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import keep, machine
from benchmarks.plotting import picture
from benchmarks.quality.digits import Plan as Digits
from benchmarks.quality.digits import choices_of, joined, make_strings, recordings_of
from benchmarks.quality.wrong_words import kinds, table_of_kinds
from transformer import PRESETS, Config, Run, Synthesizer, Transcriber, Translator, train
from transformer.config.methods import GuidanceConfig
from transformer.config.records import RecordingsConfig
from transformer.data.built_in.spoken import DIGITS, ONE, Speaker, phonemes, spoken
from transformer.data.signals.audio import features_of, sound_of, stretched
from transformer.data.signals.waveforms import read_audio, write_audio
from transformer.data.sources.manifests import Listed, read_recording_list
from transformer.data.sources.recordings import digits, numbers
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, write_whole
from transformer.tasks.metrics.error_rates import word_errors

MOST = 6  # digits of an utterance
TEST = 2  # number of the test split
REPEATS = range(1, 7)
LENGTHS = (200, 300, 400, 600)  # of buckets, in frames
LONGER = (*LENGTHS, 1000)  # of those that are heard
HEARD: dict[str, Any] = {"speeds": (0.9, 1.0, 1.1), "tempi": (0.4, 2.5), "max_text": 50}
"""How the recogniser's training is spoken: it shall understand any tempo."""
TEMPI = {", half as long": 0.5, ", twice as long": 2.0}
RATES: dict[str, dict[str, float]] = {
    name: {"length_scale": scale, "max_length": round(LENGTHS[-1] * scale)} for name, scale in TEMPI.items()
}
NOISE: dict[str, dict[str, float]] = {"": {}, ", with noise": {"prenet_dropout": 0.5}}
VOICES: dict[str, dict[str, dict[str, float]]] = {
    "autoregressive": NOISE | RATES,
    "not guided": NOISE,
    "only teacher forcing": NOISE,
    "non-autoregressive": {"": {}} | RATES,
}
"""The synthesisers of digits, each with the search options that are tried."""
NUMBERS: dict[str, dict[str, str]] = {
    "number recogniser": {},
    "from digits": {"writing": "digits"},
    "from phonemes": {"writing": "phonemes"},
    "pronunciation": {},
}
"""The systems of numbers, and what their recordings differ in."""
RECOGNISERS = ("recogniser", "number recogniser")
LONGER_TRAINED = {"recogniser": 2, "number recogniser": 2, "pronunciation": 1}
"""How many times the updates of the preset; the voices 1.5 times."""
Wave = np.ndarray


@dataclass(frozen=True)
class Plan:
    """What to train and to measure."""

    work: Path
    recordings: Path | None
    speaker: str
    updates: int | None
    count: int
    small: bool
    voices: Sequence[str] = tuple(VOICES)
    seed: int = 0
    """Of the synthesisers of digits; the recogniser is the same for all."""

    @property
    def strings(self) -> Digits:
        """The strings of recorded digits."""
        assert self.recordings
        return Digits(self.work / "digits", self.recordings, "theo", self.updates, self.small)

    def base(self, name: str) -> Config:
        """The preset of a system, with its method."""
        if name == "pronunciation":
            return PRESETS["pronunciation"]
        if name in RECOGNISERS:
            return PRESETS["speech"]
        if name == "non-autoregressive":
            config = PRESETS["nonautoregressive-synthesis"]
            model: Any = config.model
            return replace(config, model=replace(model, teacher=self.path("autoregressive")))
        config = PRESETS["synthesis"]
        model = config.model
        if name == "not guided":
            return replace(config, guidance=GuidanceConfig())
        own = 0.0 if name == "only teacher forcing" else model.own_frames
        return replace(config, model=replace(model, own_frames=own))

    def data(self, base: Config, name: str) -> RecordingsConfig:
        """The recordings of the recogniser, or of a synthesiser."""
        assert isinstance(base.data, RecordingsConfig)
        lengths = LONGER if name in RECOGNISERS else LENGTHS
        data = replace(base.data, most_digits=MOST, max_length=lengths[-1], buckets=lengths)
        if self.small:
            data = replace(data, built_in_size=40)
        data = replace(data, **(HEARD if name in RECOGNISERS else {"max_text": 60}))
        if name in NUMBERS:
            given: dict[str, Any] = NUMBERS[name]
            return replace(data, dataset="spoken-numbers", **given)
        if name == "recogniser":
            return replace(data, train=self.heard(data.built_in_size))
        if not self.recordings:
            return data
        lists = {
            split: self.of_speaker(self.strings.folder / f"{split}.tsv")
            for split in ("train", "validation", "test")
        }
        return replace(data, **lists)

    def heard(self, size: int) -> Path:
        """A manifest of what the recogniser learns from: digits, and words that are repeated, so that it can
        count."""
        folder, several = self.work / "heard", self.strings_of_all(size)
        manifest, lines = folder / "train.tsv", list[str]()
        if not manifest.exists():
            folder.mkdir(exist_ok=True)
            for index, (words, wave) in enumerate(itertools.chain(several, self.repeated(size // 4))):
                write_audio(folder / f"{index}.wav", wave)
                lines.append(f"{index}.wav\t{' '.join(words)}\n")
            write_whole(manifest, "".join(lines))
        return manifest

    def strings_of_all(self, size: int) -> Iterator[tuple[Sequence[str], Wave]]:
        """Strings of digits by all speakers."""
        if not self.recordings:
            yield from (digits(0, index, MOST)[:2] for index in range(size))
            return
        for each in read_recording_list(self.strings.folder / "train.tsv"):
            yield each.text.split(), read_audio(each.path)

    def repeated(self, size: int) -> Iterator[tuple[Sequence[str], Wave]]:
        """Words that are said two to six times."""
        random, words = np.random.default_rng(0), list(DIGITS)
        single = recordings_of(self.recordings) if self.recordings else {}
        choices = choices_of(single, "train")
        keys = [key for key in choices if key[0] != self.strings.held_out] if single else []
        for _ in range(size):
            times = int(random.integers(2, REPEATS[-1] + 1))
            if not single:
                word = words[random.integers(len(words))]
                yield [word] * times, spoken(phonemes([word] * times), Speaker.drawn(random), random)
                continue
            speaker, word = keys[random.integers(len(keys))]
            taken = [single[speaker, word, int(x)] for x in random.choice(choices[speaker, word], times)]
            yield [word] * times, joined([read_audio(path) for path in taken], random)

    def of_speaker(self, path: Path) -> Path:
        """A manifest with the strings of the speaker; they are written in turns."""
        speakers = json.loads((path.parent / "speakers.json").read_text())
        lines = path.read_text().splitlines(keepends=True)
        kept = path.with_name(f"{path.stem}-{self.speaker}.tsv")
        heard = speakers[path.stem]
        kept.write_text(
            "".join(x for index, x in enumerate(lines) if heard[index % len(heard)] == self.speaker)
        )
        return kept

    def path(self, name: str) -> Path:
        """Its run."""
        seed = f"-{self.seed}" if name in VOICES and self.seed else ""
        return self.work / (name.replace(" ", "-") + seed)

    def train(self, name: str) -> Path:
        """Trains a system, unless it is there."""
        path, config = self.path(name), self.base(name)
        if (path / "results.json").exists():
            return path
        steps = self.updates or round(config.training.steps * LONGER_TRAINED.get(name, 1.5))
        changed: dict[str, Any] = {
            "training": replace(config.training, steps=steps, evaluate_every=max(1, steps // 6))
        }
        if name in VOICES:
            changed["training"] = replace(changed["training"], seed=self.seed)
        if self.small:
            model: Any = config.model
            changed["model"] = replace(model, num_layers=1, d_model=16, d_ff=32)
        if isinstance(config.data, RecordingsConfig):
            buckets = LONGER if name in RECOGNISERS else (16, 48, 60)
            changed |= {
                "data": self.data(config, name),
                "decoding": replace(config.decoding, buckets=buckets),
            }
        elif self.small:
            changed["data"] = replace(config.data, built_in_size=400)
        train(replace(config, **changed), path)
        return path


def there_and_back(wave: Wave, factor: float = 1.0) -> Wave:
    """The wave of its own features, which may take longer by a factor."""
    return sound_of(stretched(features_of(wave), factor))


def built_in_speaker(texts: list[str]) -> list[Wave]:
    """What the speaker of the synthesisers' recordings says."""
    random = np.random.default_rng(0)
    return [spoken(phonemes(text.split()), ONE, random) for text in texts]


@dataclass(frozen=True)
class Ear:
    """A recogniser, and what it is to hear."""

    hear: Transcriber
    texts: list[str]
    """What is said."""
    recordings: list[Wave]
    """Somebody who says it."""

    def errors(self, waves: Sequence[Wave]) -> dict[str, Json]:
        """The word error rate of waves, and which words are wrong."""
        heard = self.heard(waves)
        return {"errors": word_errors(heard, self.texts).value, "wrong": kinds(heard, self.texts)}

    def heard(self, waves: Sequence[Wave]) -> list[str]:
        """What is heard; in waves that are empty, nothing."""
        found: list[str] = self.hear.transcribe(
            [wave if len(wave) else np.zeros(400, np.float32) for wave in waves]
        )
        return found

    def floor(self, tempi: dict[str, float]) -> dict[str, Json]:
        """How well it hears the recordings, and what is left of them after the way to features and back."""
        through, found = (
            "recordings, through features",
            {"recordings": self.errors(self.recordings)},
        )
        for name, factor in {"": 1.0, **tempi}.items():
            back = [there_and_back(wave, factor) for wave in self.recordings]
            found[through + name] = self.errors(back)
        return found

    def judged(self, speak: Callable[[list[str]], Any], texts: list[str]) -> Json:
        """What it hears of a synthesiser, how long that speaks compared with the recordings, and the CPU
        seconds that it takes for one second."""
        speak(texts)  # compiles
        start = time.process_time()
        said = speak(texts)
        taken = time.process_time() - start
        seconds = sum(each.seconds for each in said)
        real = sum(map(len, self.recordings)) / 16_000
        errors = self.errors([each.wave for each in said])
        errors["wrong"]["without an end"] = sum(not each.stopped for each in said)
        return {**errors, "length": seconds / real, "cost": taken / max(seconds, 0.01)}

    def repeated(self, speak: Callable[[list[str]], list[Wave]]) -> list[float]:
        """The share of words that are heard exactly k times, of all words that are to be said k times."""
        shares = []
        for times in REPEATS:
            texts = [" ".join([word] * times) for word in DIGITS]
            heard = self.heard(speak(texts))
            shares.append(100 * sum(a == b for a, b in zip(heard, texts, strict=True)) / len(texts))
        return shares


def spoken_by_someone(plan: Plan) -> tuple[list[str], list[Wave]]:
    """Test texts, and the recordings of the speaker who says them."""
    if not plan.recordings:
        made = [digits(TEST, index, MOST, one=True) for index in range(plan.count)]
        return [" ".join(each.words) for each in made], [each.wave for each in made]
    listed: list[Listed] = read_recording_list(plan.of_speaker(plan.strings.folder / "test.tsv"))[
        : plan.count
    ]
    return [each.text for each in listed], [read_audio(each.path) for each in listed]


def measured(plan: Plan) -> Json:
    """What the recogniser hears of digits."""
    ear = Ear(Transcriber.load(plan.train("recogniser")), *spoken_by_someone(plan))
    words = sum(len(text.split()) for text in ear.texts)
    found: Json = {"rows": ear.floor(TEMPI), "curves": {}, "words": words}
    if not plan.recordings:
        found["rows"]["recordings"]["repeats"] = ear.repeated(built_in_speaker)
    for name in plan.voices:
        path, settings = plan.train(name), VOICES[name]
        voice = Synthesizer.load(path)
        for what, options in settings.items():
            speak = functools.partial(voice.utterances, **options)
            waves = functools.partial(voice.speak, **options)
            found["rows"][name + what] = {**ear.judged(speak, ear.texts), "repeats": ear.repeated(waves)}
        curve = [(record["step"], record["mel_error"]) for record in Run(path).log.records("evaluation")]
        found["curves"][name] = curve
    return found


def measured_numbers(plan: Plan) -> dict[str, Json]:
    """What the recogniser of numbers hears."""
    runs = {name: plan.train(name) for name in NUMBERS}
    made = [numbers(TEST, index, MOST, True) for index in range(plan.count)]
    words, written = [" ".join(each.words) for each in made], [str(each.values[0]) for each in made]
    ear = Ear(Transcriber.load(runs["number recogniser"]), words, [each.wave for each in made])
    voices = {"in one stage": Synthesizer.load(runs["from digits"])}
    voices["in two stages"] = Synthesizer.load(runs["from phonemes"])
    voices["in two stages"].pronunciation = Translator.load(runs["pronunciation"])
    return ear.floor({}) | {name: ear.judged(voice.utterances, written) for name, voice in voices.items()}


def table(rows: dict[str, Json], repeats: bool) -> str:
    """Markdown."""
    times = [f"{k} times" for k in REPEATS] if repeats else []
    lines = ["| | word errors | length | CPU ms per s | " + "".join(f"{each} | " for each in times)]
    lines.append("|---" * (4 + len(times)) + "|")
    for name, row in rows.items():
        cells = [f"{row['errors']:.1f} %", *("" for _ in range(2 + len(times)))]
        if "length" in row:
            cells[1:3] = [f"{row['length']:.2f}", f"{1000 * row['cost']:.1f}"]
        if "repeats" in row:
            cells[3:] = [f"{share:.0f} %" for share in row["repeats"]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(line.rstrip() for line in lines)


def plot(found: Json, path: Path) -> None:
    """Learning curves."""
    with picture(path, size=(6, 4)) as (_, [axis]):
        for name, curve in found["curves"].items():
            axis.plot(*zip(*curve, strict=True), label=name)
        axis.set(xlabel="update", ylabel="error of normalised features")
        axis.grid(alpha=0.3)
        axis.legend()


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, measures, prints the table and writes WORK/synthesis.json and .png."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs, table and picture")
    parser.add_argument("--recordings", type=Path, help="folder of recorded digits (the built-in speaker)")
    parser.add_argument("--speaker", default="george", help="whose voice to learn (george)")
    parser.add_argument("--updates", type=positive, help="of each training (those of the presets, or twice)")
    parser.add_argument("--count", type=positive, default=200, help="test texts (200)")
    parser.add_argument("--quick", action="store_true", help="few recordings and small models, to test it")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {'; '.join(VOICES)}")
    parser.add_argument("--seed", type=int, default=0, help="of the synthesisers of digits (0)")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.only or ()) - set(VOICES)):
        raise UserError(f"--only {unknown[0]!r}: there is no such voice; there are {'; '.join(VOICES)}")
    needs("matplotlib")
    given.work.mkdir(parents=True, exist_ok=True)
    voices = tuple(given.only or VOICES)
    sizes = given.updates, given.count, given.quick
    plan = Plan(given.work, given.recordings, given.speaker, *sizes, voices, given.seed)
    if plan.recordings:
        make_strings(plan.strings)
    found = measured(plan)
    if not plan.recordings and not given.only:
        found["numbers"] = measured_numbers(plan)
    written = keep(given.work / "synthesis", {"about": machine(), **found}, lambda path: plot(found, path))
    print(table(found["rows"], repeats=True) + "\n\n" + table_of_kinds(found["rows"], found["words"]))
    if "numbers" in found:
        print("\n" + table(found["numbers"], repeats=False))
    print(written)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
