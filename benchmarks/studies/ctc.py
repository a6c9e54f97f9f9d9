"""Compares attention, CTC and both on strings of recorded words, also of a speaker not heard in training.

`python -m benchmarks.studies.ctc WORK --digits DIR --letters DIR` reads recordings of single words, named as
`7_george_12.wav` (the Free Spoken Digit Dataset) or `b_anna_nohash_1.flac` (the test assets of Moonshine),
and joins those of a speaker to strings. With each seed it trains the preset `speech` with masks on them: by
attention, by CTC (`--model.ctc-weight 1`) and by both (0.3). Each model searches in every way that it can. A
table of word and sentence error rates is written, as means over the seeds. Everything is in WORK: if
interrupted, the same command continues.
"""

import argparse
import dataclasses
import itertools
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.quality.digits import (
    FEWEST,
    MASKED,
    MOST,
    WORDS,
    Single,
    config_of,
    measured,
    split_of,
    strings_of,
    write_strings,
)
from benchmarks.runs import once
from transformer import Run, Transcriber, train
from transformer.data.sources.manifests import read_recording_list
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

NAME = re.compile(r"(?P<word>[a-z0-9]+)_(?P<speaker>[a-z]+)_(?:nohash_)?(?P<number>\d+)\.(?:wav|flac)")
WEIGHTS = {"attention": 0.0, "CTC": 1.0, "both": 0.3}
"""That of CTC in each training."""
SEARCHES: dict[str, dict[str, dict[str, Any]]] = {
    "attention": {"attention": {}},
    "CTC": {"CTC": {}, "CTC, best path": {"method": "greedy"}},
    "both": {"both": {}, "attention": {"ctc_weight": 0.0}, "CTC": {"ctc_weight": 1.0}},
}
"""By training: the searches, with their options."""


TIMED = 200  # recordings whose transcription is timed


def split_of_few(number: int) -> str:
    """What a recording is for, where there are few of each word."""
    return {0: "test", 1: "validation"}.get(number, "train")


@dataclass(frozen=True)
class Corpus:
    """Recordings of single words."""

    option: str
    held_out: str
    """The speaker that is not heard in training."""
    sizes: tuple[int, int]
    """The fewest and the most words of a string."""
    split_of: Callable[[int], str]


CORPORA = {
    "digits": Corpus("digits", "theo", (FEWEST, MOST), split_of),
    "letters": Corpus("letters", "evmaki", (2, 5), split_of_few),
}


@dataclass(frozen=True)
class Plan:
    """What to compare."""

    work: Path
    updates: int | None
    small: bool

    def strings(self, name: str, recordings: Path) -> Path:
        """The strings of a corpus, which are written once."""
        folder, corpus = self.work / name, CORPORA[name]
        if not (folder / "done").exists():
            single = singles(recordings, name)
            words = [word for word in WORDS if any(word == key[1] for key in single)]
            words += sorted({word for _, word, _ in single} - set(words))
            counts = strings_of(self.small)
            write_strings(folder, single, words, corpus.held_out, counts, corpus.sizes, corpus.split_of)
        return folder

    def build(self, name: str, strings: Path, kind: str, seed: int) -> Json:
        """Trains and measures a model, unless it is there."""
        path = self.work / f"{name}-{kind}-{seed}"
        config = config_of(strings, self.updates, self.small, {**MASKED, "ctc_weight": WEIGHTS[kind]})
        config = dataclasses.replace(config, training=dataclasses.replace(config.training, seed=seed))

        def trained() -> Json:
            before = time.process_time()
            train(config, path)
            used = time.process_time() - before
            found = {
                search: measured(path, strings, **options) | {"ms": milliseconds(path, strings, options)}
                for search, options in SEARCHES[kind].items()
            }
            return {"searches": found, "cpu": used, "steps": Run(path).config.training.steps}

        return once(path.with_suffix(".json"), trained)


def singles(folder: Path, option: str) -> dict[Single, Path]:
    """The recordings by speaker, word and number. Raises UserError if there are none."""
    found = {
        (
            name["speaker"],
            WORDS[int(name["word"])] if name["word"].isdigit() else name["word"],
            int(name["number"]),
        ): path
        for path in sorted(folder.glob("*"))
        if (name := NAME.fullmatch(path.name))
    }
    if not found:
        raise UserError(
            f"--{option} {folder}: there is no file such as 7_george_12.wav or b_anna_nohash_1.flac"
        )
    return found


def milliseconds(path: Path, strings: Path, options: dict[str, Any]) -> float:
    """CPU time of a recording that is transcribed beside others, after the programs have been compiled."""
    transcriber = Transcriber.load(path)
    heard = [transcriber.heard(each.path) for each in read_recording_list(strings / "test.tsv")][:TIMED]
    transcriber.decode(heard, **options)
    before = time.process_time()
    transcriber.decode(heard, **options)
    return 1000 * (time.process_time() - before) / len(heard)


def table(results: dict[str, list[Json]], kinds: dict[str, str]) -> str:
    """Markdown: a row for each training and search, with means over the seeds, and the range of words."""
    lines = [
        "| training | search | heard: words | sentences | not heard: words | sentences | CPU ms |",
        "|---" * 7 + "|",
    ]
    for key, seeds in results.items():
        for search in seeds[0]["searches"]:
            found = [each["searches"][search] for each in seeds]
            cells = [
                mean([each[split][what] for each in found], what == "words")
                for split, what in itertools.product(("test", "unheard"), ("words", "sentences"))
            ]
            cost = statistics.mean(each["ms"] for each in found)
            lines.append(f"| {kinds[key]} | {search} | {' | '.join(cells)} | {cost:.1f} |")
    return "\n".join(lines)


def mean(values: list[float], with_range: bool) -> str:
    """A percentage; of several seeds the mean, and the lowest and the highest."""
    spread = f" ({min(values):.1f} to {max(values):.1f})" if with_range and len(values) > 1 else ""
    return f"{statistics.mean(values):.1f} %{spread}"


def main(arguments: list[str] | None = None) -> None:
    """Trains and measures what is missing, prints a table for each corpus and writes WORK/ctc.json."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder of everything that is written")
    parser.add_argument("--digits", type=Path, help="folder of recorded digits")
    parser.add_argument("--letters", type=Path, help="folder of recorded letters")
    parser.add_argument("--updates", type=positive, help="of each training (twice those of the preset)")
    parser.add_argument("--seeds", type=positive, default=3, help="trainings of each (3)")
    parser.add_argument("--quick", action="store_true", help="few strings and small models, to test it")
    given = parser.parse_args(arguments)
    folders = {name: getattr(given, name) for name in CORPORA if getattr(given, name)}
    if not folders:
        raise UserError("no recordings: give --digits, --letters, or both")
    plan = Plan(given.work, given.updates, given.quick)
    strings = {name: plan.strings(name, folder) for name, folder in folders.items()}
    results: dict[str, dict[str, list[Json]]] = {name: {kind: [] for kind in WEIGHTS} for name in strings}
    for seed, name, kind in itertools.product(range(given.seeds), strings, WEIGHTS):
        results[name][kind].append(plan.build(name, strings[name], kind, seed))
        for search, found in results[name][kind][-1]["searches"].items():
            rates = ", ".join(f"{found[split]['words']:.1f} %" for split in ("test", "unheard"))
            print(f"{name}, seed {seed}: trained by {kind}, searched by {search}: {rates}", flush=True)
    tables = [f"{name}\n\n{table(found, {kind: kind for kind in found})}" for name, found in results.items()]
    report(given.work / "ctc", {"about": machine(), "results": results}, "\n\n".join(tables))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
