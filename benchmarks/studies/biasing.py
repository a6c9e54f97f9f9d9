"""Speech recognition with a list of names in its search, on digits: the names are codes of three digits.

`python -m benchmarks.studies.biasing WORK` trains the preset `speech` for few updates on random digits. The
recordings of one set say a code of a list among other digits, those of another set no code of any list, all
by voices that are heard nowhere else. The list of the search has these codes alone, or also others that
nobody says. The weight is the one with the fewest word errors in both sets of the validation. Everything
is in WORK: if interrupted, the same command continues.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.runs import once
from benchmarks.studies.fusion import UPDATES, recogniser, recordings, text_of
from transformer import Transcriber
from transformer.tasks.metrics.words import word_errors

COUNT = 200  # recordings of each set
SAID = 20  # codes that recordings have
LISTS = (20, 100, 400)  # codes of a list, of which the first 20 are said
SIZE = 3  # digits of a code
WEIGHTS = (0.25, 0.5, 1.0, 2.0)
CODES, VALIDATION, TEST, OTHERS = 41, 42, 43, 44  # seeds; one more: others of the test
Digits = list[int]


def codes() -> list[Digits]:
    """Those of the longest list, the ones that are said first."""
    numbers = np.random.default_rng(CODES).permutation(10**SIZE)[: LISTS[-1]]
    return [list(map(int, f"{number:0{SIZE}d}")) for number in numbers]


def with_code(random: np.random.Generator) -> Digits:
    """One or two digits, one of them at the beginning, with a code between them or after it."""
    code = codes()[int(random.integers(SAID))]
    first, *last = map(int, random.integers(10, size=1 + int(random.integers(2))))
    return [first, *code, *last]


def without_code(random: np.random.Generator) -> Digits:
    """Four digits without a code."""
    every = codes()
    while True:
        digits = list(map(int, random.integers(10, size=4)))
        if not any(digits[at : at + SIZE] in every for at in range(2)):
            return digits


def has_code(text: str, heard: str) -> bool:
    """Whether an output has the code of a text, which begins with its second word."""
    code = " ".join(text.split()[1 : 1 + SIZE])
    return f" {code} " in f" {heard} "


def outputs(transcriber: Transcriber, waves: list[Any]) -> tuple[list[str], float]:
    """What is heard, and CPU milliseconds for a recording."""
    transcriber.transcribe(waves)  # compiles
    start = time.process_time()
    heard = transcriber.transcribe(waves)
    return heard, 1000 * (time.process_time() - start) / len(waves)


def measured(transcriber: Transcriber, size: int, weight: float, *sets: tuple[list[Any], list[str]]) -> Any:
    """Error rates of a set with codes, and of one without."""
    names = [text_of(code) for code in codes()[:size]]
    transcriber.use_names(names or None, weight)
    (waves, texts), (other_waves, other_texts) = sets
    heard, spent = outputs(transcriber, waves)
    wrong = 100 * np.mean([not has_code(*pair) for pair in zip(texts, heard, strict=True)])
    others = word_errors(outputs(transcriber, other_waves)[0], other_texts).value
    words = word_errors(heard, texts).value
    return {"list": size, "weight": weight, "codes": wrong, "words": words, "others": others, "ms": spent}


def results(work: Path, updates: int, count: int) -> dict[str, Any]:
    """Error rates of the validation by weight, and of the test by list."""
    transcriber = recogniser(work, updates)
    validation, test = (
        (recordings(seed, count, with_code), recordings(other, count, without_code))
        for seed, other in ((VALIDATION, OTHERS), (TEST, OTHERS + 1))
    )
    rows = [measured(transcriber, 0, 0.0, *validation)]
    rows += [measured(transcriber, LISTS[0], weight, *validation) for weight in WEIGHTS]
    best = min(rows[1:], key=lambda row: row["words"] + row["others"])["weight"]
    tested = [measured(transcriber, size, best if size else 0.0, *test) for size in (0, *LISTS)]
    return {"validation": rows, "test": tested}


def main(arguments: list[str]) -> None:
    """`python -m benchmarks.studies.biasing WORK`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.biasing", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for the run and the results")
    parser.add_argument("--updates", type=positive, default=UPDATES, help=f"of the recogniser ({UPDATES})")
    parser.add_argument("--count", type=positive, default=COUNT, help=f"recordings of each set ({COUNT})")
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    found = once(given.work / "biasing.json", lambda: results(given.work, given.updates, given.count))
    lines = [
        "| | names | weight | codes missed | word errors | word errors without codes | CPU ms |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {split} | {row['list']} | {row['weight']:g} | {row['codes']:.1f} % | {row['words']:.2f} % | "
        f"{row['others']:.2f} % | {row['ms']:.1f} |"
        for split, rows in found.items()
        for row in rows
    ]
    settings = {"updates": given.updates, "count": given.count}
    report(given.work / "table", {"about": machine() | settings, **found}, "\n".join(lines))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
