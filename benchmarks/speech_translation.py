"""Speech translation: directly, or recognition and then translation.

`python -m benchmarks.speech_translation WORK` trains on the built-in digits, which are spoken in English: a
model that writes them in German; one that writes them in English; and a translator of the same texts. It
writes a table with the error rates of the direct model and of the cascade on the test recordings, which all
have other voices. Everything is in WORK: if interrupted, the same command continues.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, save
from transformer import PRESETS, DataConfig, Transcriber, Translator, train
from transformer.config.recordings import RecordingsConfig
from transformer.data.sources.built_in.inflection import number
from transformer.data.sources.recordings import digits, open_recordings
from transformer.data.sources.spoken import DIGITS
from transformer.evaluation.words import sentence_errors, word_errors
from transformer.files import Json

TEST = 2  # number of the test split


def models(work: Path, updates: int | None, size: int | None) -> None:
    """Trains what is missing."""
    base = PRESETS["speech"]
    assert isinstance(base.data, RecordingsConfig)
    data = replace(base.data, built_in_size=size or base.data.built_in_size)
    for name, language in (("direct", "de"), ("recogniser", "en")):
        steps = updates or base.training.steps
        training = replace(base.training, steps=steps, evaluate_every=max(1, steps // 4))
        config = replace(base, data=replace(data, language=language), training=training)
        if not (work / name / "results.json").exists():
            train(config, work / name)
    pairs = work / "pairs.tsv"
    texts = [each.text for each in open_recordings(data).splits["train"]]
    pairs.write_text("".join(f"{text}\t{german(text)}\n" for text in texts))
    quick = PRESETS["quickstart"]
    steps = min(updates or 400, 400)
    config = replace(
        quick,
        data=DataConfig(
            train_tsv=pairs, tokenizer="word", vocab_size=40, max_length=16, buckets=(16,), batch_tokens=1024
        ),
        training=replace(quick.training, steps=steps, evaluate_every=steps),
    )
    if not (work / "translator" / "results.json").exists():
        train(config, work / "translator")


def german(text: str) -> str:
    """The same digits in German."""
    return " ".join(number([*DIGITS].index(word))[1] for word in text.split(" "))


def measured(work: Path, count: int) -> dict[str, Json]:
    """Error rates, and seconds of a recording, of both ways."""
    most = RecordingsConfig().most_digits
    made = [digits(TEST, index, most) for index in range(count)]
    waves, references = [each.wave for each in made], [german(" ".join(each.words)) for each in made]
    direct, recogniser = Transcriber.load(work / "direct"), Transcriber.load(work / "recogniser")
    translator = Translator.load(work / "translator")

    def cascade(recordings: list) -> list[str]:
        return translator.translate(recogniser.transcribe(recordings))

    found = {}
    for name, way in (("direct", direct.transcribe), ("cascade", cascade)):
        way(waves)  # compiles
        start = time.perf_counter()
        said = way(waves)
        seconds = (time.perf_counter() - start) / count
        rates = [score(said, references).value for score in (word_errors, sentence_errors)]
        found[name] = {"words": rates[0], "sentences": rates[1], "seconds": seconds}
    return found


def table(found: dict[str, Json]) -> str:
    """Markdown."""
    lines = ["| | word errors | sentences with errors | ms per recording |", "|---|---|---|---|"]
    for name, each in found.items():
        rates = f"{each['words']:.2f} % | {each['sentences']:.1f} %"
        lines.append(f"| {name} | {rates} | {1000 * each['seconds']:.1f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, measures both ways, prints the table and writes
    WORK/speech_translation.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speech_translation", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs and the table")
    parser.add_argument("--updates", type=positive, help="of each training (those of the presets)")
    parser.add_argument("--size", type=positive, help="training recordings (those of the preset)")
    parser.add_argument("--count", type=positive, default=400, help="test recordings (400)")
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    models(given.work, given.updates, given.size)
    found = measured(given.work, given.count)
    path = given.work / "speech_translation.json"
    save(str(path), json.loads(json.dumps({"about": machine(), "found": found})))
    print(f"{table(found)}\nwritten to {path}")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.speech_translation", main))
