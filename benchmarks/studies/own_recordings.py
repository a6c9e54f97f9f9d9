"""What Whisper writes of one's own recordings, before and after an adapter has learned from them.

`python -m benchmarks.studies.own_recordings WORK --whisper RUN --recordings DIR` reads recordings of single
digits named `{digit}_{speaker}_{number}.wav`, as in the Free Spoken Digit Dataset, and joins those of a
speaker to recordings of about 20 seconds, whose texts are words: "five three nine". One speaker is held out.
An adapter (`--adapter.rank 8`) of an imported model is trained on 60 of them, once each: 20 minutes. A table
has the words that are wrong as they are written, and those that are other digits ("5," and "five" are the
same). Everything is in WORK: if interrupted, the same command continues.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.quality.digits import WORDS, recordings_of, write_strings
from benchmarks.quality.long_recordings import words_of
from benchmarks.runs import once
from transformer import PRESETS, Config, Run, Transcriber, UserError, train
from transformer.config.methods import AdapterConfig
from transformer.config.records import RecordingsConfig
from transformer.data.sources.manifests import read_recording_list
from transformer.runtime.files import Json
from transformer.tasks.metrics.error_rates import word_errors

COUNTS = {"train": 60, "validation": 6, "test": 12, "unheard": 12}
LENGTHS = (32, 38)  # digits of a recording
TOGETHER = 2  # recordings of a batch
SPLITS = {"test": "heard in training", "unheard": "not heard"}


def config_of(whisper: Path, strings: Path, updates: int) -> Config:
    """The training of an adapter."""
    base = Run(whisper).config
    if not isinstance(base.data, RecordingsConfig):
        raise UserError(f"--whisper {whisper}: it hears no recordings; give an imported Whisper")
    files: dict[str, Any] = {split: strings / f"{split}.tsv" for split in ("train", "validation")}
    tuned = PRESETS["fine-tune"]
    training = replace(
        tuned.training,
        init_from=whisper,
        label_smoothing=0.0,
        steps=updates,
        evaluate_every=max(1, updates // 2),
        log_every=max(1, updates // 12),
    )
    return replace(
        base,
        data=replace(base.data, **files, batch_tokens=TOGETHER * base.data.max_length),
        optimizer=replace(tuned.optimizer, peak=1e-3, warmup_steps=max(1, updates // 4)),
        training=training,
        adapter=AdapterConfig(rank=8),
    )


def measured(whisper: Path, strings: Path, adapter: Path | None = None) -> Json:
    """Word error rates of both kinds of speakers, as texts are written and of the digits in them."""
    transcriber, found = Transcriber.load(whisper, adapter=adapter), {}
    for split in SPLITS:
        listed = read_recording_list(strings / f"{split}.tsv")
        texts, heard = [each.text for each in listed], transcriber.transcribe([each.path for each in listed])
        plain = [[" ".join(words_of(text)) for text in some] for some in (heard, texts)]
        found[split] = {
            "written": word_errors(heard, texts).value,
            "digits": word_errors(*plain).value,
            "words": sum(len(text.split()) for text in texts),
            "example": heard[0],
        }
    return found


def table(results: dict[str, Json]) -> str:
    """Markdown: a row for each model and kind of speakers."""
    lines = ["| | speakers | words wrong, as written | other digits |", "|---" * 4 + "|"]
    for name, found in results.items():
        for split, title in SPLITS.items():
            count, *rates = (found[split][key] for key in ("words", "written", "digits"))
            lines.append(f"| {name} | {title} ({count} words) | {rates[0]:.1f} % | {rates[1]:.1f} % |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Trains and measures what is missing, prints the table and writes WORK/own_recordings.json."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder of everything that is written")
    parser.add_argument("--whisper", type=Path, required=True, help="run of an imported Whisper")
    parser.add_argument("--recordings", type=Path, required=True, help="folder of recorded digits")
    parser.add_argument("--held-out", default="theo", help="the speaker that is not heard in training (theo)")
    parser.add_argument("--updates", type=positive, default=30, help="of the adapter (30)")
    given = parser.parse_args(arguments)
    strings = given.work / "strings"
    config = config_of(given.whisper, strings, given.updates)
    if not (strings / "done").exists():
        single = recordings_of(given.recordings)
        write_strings(strings, single, WORDS, given.held_out, COUNTS, LENGTHS)

    def tuned() -> Json:
        before = time.perf_counter(), time.process_time()
        train(config, given.work / "adapter")
        seconds = time.perf_counter() - before[0], time.process_time() - before[1]
        return measured(given.whisper, strings, given.work / "adapter") | {
            "seconds": seconds[0],
            "cpu": seconds[1],
        }

    results = {
        "imported": once(given.work / "imported.json", lambda: measured(given.whisper, strings)),
        "adapted": once(given.work / "adapted.json", tuned),
    }
    report(given.work / "own_recordings", {"about": machine(), "results": results}, table(results))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
