"""What a recogniser hears in synthetic speech.

`python -m benchmarks.synthesis WORK` trains a recogniser on the built-in spoken digits, of any speaker, and
synthesisers on those of one, with and without guided attention. The recogniser transcribes the test texts as
the built-in speaker says them; the same after the way to features and back, which no synthesiser can do
better than; and as each synthesiser says them, with the noise of the pre-net and without it. A second table
has the test of repetitions: one word, 1 to 6 times, and how often as many are heard. With `--recordings DIR
--speaker NAME` the voice is that of recorded digits (`benchmarks.digits`), and so is the recogniser's
training. Everything is in WORK: if interrupted, the same command continues.
"""

import argparse
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.command import needs, positive, run
from benchmarks.digits import MODELS as AUGMENTATION
from benchmarks.digits import Plan as Digits
from benchmarks.digits import make_strings
from benchmarks.measure import keep, machine
from transformer import PRESETS, Config, Run, Synthesizer, Transcriber, train
from transformer.config.methods import GuidanceConfig
from transformer.config.speech import RecordingsConfig
from transformer.data.features.audio import features_of, read_audio, waveform
from transformer.data.sources.recordings import Listed, digits, read_manifest
from transformer.data.sources.spoken import DIGITS
from transformer.evaluation.words import word_errors
from transformer.files import Json

MOST = 7  # digits of an utterance
TEST = 2  # number of the test split
REPEATS = range(1, 7)
LENGTHS = (200, 300, 400, 600)  # of buckets, in frames
GUIDED = {"guided": 2.0, "not guided": 0.0}
"""Weights of guided attention."""
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

    @property
    def strings(self) -> Digits:
        """The strings of recorded digits."""
        assert self.recordings
        return Digits(self.work / "digits", self.recordings, "theo", self.updates, self.small)

    def data(self, base: Config, name: str) -> RecordingsConfig:
        """The recordings of the recogniser, or of a synthesiser."""
        assert isinstance(base.data, RecordingsConfig)
        data = replace(base.data, most_digits=MOST, max_length=LENGTHS[-1], buckets=LENGTHS)
        if self.small:
            data = replace(data, built_in_size=40)
        if not self.recordings:
            return data
        folder = self.work / "digits" / "strings"
        lists = {split: folder / f"{split}.tsv" for split in ("train", "validation", "test")}
        if name != "recogniser":
            lists = {split: self.of_speaker(path) for split, path in lists.items()}
            return replace(data, **lists)
        return replace(data, **lists, **AUGMENTATION["speeds"][1])

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

    def train(self, name: str) -> Path:
        """Trains a model, unless it is there."""
        path = self.work / name.replace(" ", "-")
        if (path / "results.json").exists():
            return path
        base = PRESETS["speech" if name == "recogniser" else "synthesis"]
        steps = self.updates or base.training.steps * (1 if name == "recogniser" else 2)
        training = replace(base.training, steps=steps, evaluate_every=max(1, steps // 6))
        model: Any = base.model
        if self.small:
            model = replace(model, num_layers=1, d_model=16, d_ff=32)
        buckets = LENGTHS if name == "recogniser" else base.decoding.buckets
        train(
            replace(
                base,
                model=model,
                data=self.data(base, name),
                guidance=GuidanceConfig(weight=GUIDED.get(name, 0.0)),
                training=training,
                decoding=replace(base.decoding, buckets=buckets),
            ),
            path,
        )
        return path


def spoken_by_someone(plan: Plan) -> tuple[list[str], list[Wave]]:
    """Test texts, and the recordings of the speaker who says them."""
    if not plan.recordings:
        made = [digits(TEST, index, MOST, one=True) for index in range(plan.count)]
        return [" ".join(words) for words, _ in made], [wave for _, wave in made]
    listed: list[Listed] = read_manifest(plan.of_speaker(plan.work / "digits/strings/test.tsv"))
    return [each.text for each in listed][: plan.count], [read_audio(each.path) for each in listed][
        : plan.count
    ]


def there_and_back(wave: Wave) -> Wave:
    """The wave of its own features."""
    return np.asarray(waveform(jnp.asarray(features_of(wave))))


def measured(plan: Plan) -> Json:
    """Word error rates of the recogniser, and what it hears of repetitions."""
    hear = Transcriber.load(plan.train("recogniser"))
    texts, recordings = spoken_by_someone(plan)

    def errors(waves: list[Wave]) -> float:
        heard = hear.transcribe([wave if len(wave) else np.zeros(400, np.float32) for wave in waves])
        return word_errors(heard, texts).value

    found: Json = {
        "words": {
            "recordings": errors(recordings),
            "recordings, through features": errors([there_and_back(wave) for wave in recordings]),
        },
        "repeats": {},
        "curves": {},
    }
    for name in GUIDED:
        path = plan.train(name)
        voice = Synthesizer.load(path)
        settings: dict[str, dict[str, float]] = {"": {}, ", without noise": {"prenet_dropout": 0.0}}
        for noise, options in settings.items():
            speak = functools.partial(voice.speak, **options)
            found["words"][name + noise] = errors(speak(texts))
            found["repeats"][name + noise] = repeated(speak, hear)
        found["curves"][name] = [
            (record["step"], record["mel_error"]) for record in Run(path).log.records("evaluation")
        ]
    return found


def repeated(speak: Callable[[list[str]], list[Wave]], hear: Transcriber) -> list[float]:
    """The share of words that are heard exactly k times, of all words that are to be said k times."""
    shares = []
    for times in REPEATS:
        texts = [" ".join([word] * times) for word in DIGITS]
        heard = hear.transcribe([wave if len(wave) else np.zeros(400, np.float32) for wave in speak(texts)])
        shares.append(100 * sum(a == b for a, b in zip(heard, texts, strict=True)) / len(texts))
    return shares


def table(found: Json) -> str:
    """Markdown."""
    lines = ["| | word errors | " + " | ".join(f"{k} times" for k in REPEATS) + " |"]
    lines.append("|---" * (2 + len(REPEATS)) + "|")
    for name, rate in found["words"].items():
        shares = [f"{share:.0f} %" for share in found["repeats"].get(name, [])] or [""] * len(REPEATS)
        lines.append(f"| {name} | {rate:.1f} % | {' | '.join(shares)} |")
    return "\n".join(lines)


def plot(found: Json, path: Path) -> None:
    """Learning curves."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, curve in found["curves"].items():
        axis.plot(*zip(*curve, strict=True), label=name)
    axis.set(xlabel="update", ylabel="error of normalised features")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, measures, prints the table and writes WORK/synthesis.json and .png."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthesis", description=__doc__)
    parser.add_argument("work", type=Path, help="folder for runs, table and picture")
    parser.add_argument("--recordings", type=Path, help="folder of recorded digits (the built-in speaker)")
    parser.add_argument("--speaker", default="george", help="whose voice to learn (george)")
    parser.add_argument("--updates", type=positive, help="of each training (those of the presets, or twice)")
    parser.add_argument("--count", type=positive, default=200, help="test texts (200)")
    parser.add_argument("--quick", action="store_true", help="few recordings and small models, to test it")
    given = parser.parse_args(arguments)
    needs("matplotlib")
    given.work.mkdir(parents=True, exist_ok=True)
    plan = Plan(given.work, given.recordings, given.speaker, given.updates, given.count, given.quick)
    if plan.recordings:
        make_strings(plan.strings)
    found = measured(plan)
    written = keep(given.work / "synthesis", {"about": machine(), **found}, lambda path: plot(found, path))
    print(f"{table(found)}\n{written}")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.synthesis", main))
