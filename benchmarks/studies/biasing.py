"""Speech recognition with a list of names in its search, on digits: the names are codes of three digits.

`python -m benchmarks.studies.biasing WORK` trains the preset `speech` for few updates on random digits. The
recordings of one set say a code of a list among other digits, those of another set no code of any list, all
by voices that are heard nowhere else. The list of the search has these codes alone, or also others that
nobody says. The weight is the one with the fewest word errors in both sets of the validation. Everything
is in WORK: if interrupted, the same command continues.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import run
from benchmarks.studies.fusion import recogniser, recordings, study, text_of
from transformer import Transcriber
from transformer.tasks.metrics.error_rates import word_errors

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


COLUMNS = {
    "names": lambda row: str(row["list"]),
    "weight": lambda row: f"{row['weight']:g}",
    "codes missed": lambda row: f"{row['codes']:.1f} %",
    "word errors": lambda row: f"{row['words']:.2f} %",
    "word errors without codes": lambda row: f"{row['others']:.2f} %",
    "CPU ms": lambda row: f"{row['ms']:.1f}",
}


def main(arguments: list[str]) -> None:
    """`python -m benchmarks.studies.biasing WORK`."""
    study("benchmarks.studies.biasing", __doc__, arguments, results, COLUMNS)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
