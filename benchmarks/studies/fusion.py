"""Speech recognition with a language model in its search, on digits that follow a grammar.

`python -m benchmarks.studies.fusion WORK` trains the preset `speech` for few updates on random digits, and
two language models, an n-gram model and a small Transformer, on texts in which only three digits can follow
each. Validation and test recordings say such texts, by voices that are heard nowhere else. The weight of a
language model is the one with the fewest word errors of the validation recordings. Everything is in WORK: if
interrupted, the same command continues.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.runs import once
from transformer import PRESETS, Transcriber, train
from transformer.config.records import StreamConfig
from transformer.data.built_in import pronunciation, spoken
from transformer.decoding.beside.arpa import estimated
from transformer.runtime.files import write_whole
from transformer.tasks.metrics.error_rates import sentence_errors, word_errors
from transformer.translator.fusion import named_tokens, output_tokenizer, token_names

UPDATES = 600
COUNT = 200  # validation recordings, and test recordings
SENTENCES = 2_000  # of the language model
SUCCESSORS = (1, 2, 5)  # what is added to a digit, modulo 10, for the digits that can follow it
WEIGHTS = (0.1, 0.2, 0.4, 0.8, 1.6)
ORDER = 3
END = "<|endoftext|>"  # between two texts
TEXTS, VALIDATION, TEST = 31, 32, 33  # seeds


def digits(random: np.random.Generator) -> list[int]:
    """Three to five digits of the grammar."""
    said = [int(random.integers(10))]
    while len(said) < 3 or (len(said) < 5 and random.random() < 0.6):
        said.append((said[-1] + int(random.choice(SUCCESSORS))) % 10)
    return said


def text_of(values: list[int]) -> str:
    """The words of digits."""
    return " ".join(word for value in values for word in pronunciation.words_of(value))


def recordings(
    seed: int, count: int, draw: Callable[[np.random.Generator], list[int]] = digits
) -> tuple[list[Any], list[str]]:
    """Waveforms of digits by other voices each, and what is said in them."""
    waves, texts = [], []
    for index in range(count):
        random = np.random.default_rng((seed, index))
        texts.append(text_of(draw(random)))
        speaker, signs = spoken.Speaker.drawn(random), spoken.phonemes(texts[-1].split())
        waves.append(spoken.spoken(signs, speaker, random, spoken.durations(signs, speaker, random)))
    return waves, texts


def recogniser(work: Path, updates: int) -> Transcriber:
    """The recogniser, trained unless it is there."""
    preset = PRESETS["speech"]
    training = replace(preset.training, steps=updates, evaluate_every=updates, keep_last=1)
    return Transcriber.load(train(replace(preset, training=training), work / "run"))


def texts_of_grammar() -> list[str]:
    """What the language models learn from."""
    random = np.random.default_rng(TEXTS)
    return [text_of(digits(random)) for _ in range(SENTENCES)]


def ngrams(transcriber: Transcriber, work: Path) -> Path:
    """The n-gram model of texts of the grammar."""
    tokenizer = output_tokenizer(transcriber.system, transcriber.task, "the recogniser")
    names = token_names(tokenizer)
    texts = [named_tokens(tokenizer, names, text) for text in texts_of_grammar()]
    path = work / "lm.arpa"
    estimated(texts, ORDER, sum(map(bool, names))).write(path)
    return path


def small_transformer(transcriber: Transcriber, work: Path) -> Path:
    """A run of the preset `language-model`, made smaller, on texts of the grammar; trained unless it is
    there."""
    preset, documents = PRESETS["language-model"], work / "documents.txt"
    model: Any = preset.model
    write_whole(documents, f"{END}\n".join(f"{text}\n" for text in texts_of_grammar()))
    data = StreamConfig(
        train=documents, separator=END, source_tokenizer=work / "run" / "text.model", max_length=64
    )
    small = replace(model, num_layers=2, d_model=64, d_ff=128)
    return train(replace(preset, model=small, data=data), work / "lm")


def measured(transcriber: Transcriber, waves: list[Any], texts: list[str]) -> dict[str, float]:
    """Error rates, and CPU milliseconds for a recording."""
    transcriber.transcribe(waves)  # compiles
    start = time.process_time()
    heard = transcriber.transcribe(waves)
    spent = time.process_time() - start
    return {
        "words": word_errors(heard, texts).value,
        "sentences": sentence_errors(heard, texts).value,
        "ms": 1000 * spent / len(waves),
    }


def results(work: Path, updates: int, count: int) -> dict[str, Any]:
    """Error rates of the validation recordings by language model and weight, and of the test without one and
    with the best weight of each."""
    transcriber = recogniser(work, updates)
    validation, test = (recordings(seed, count) for seed in (VALIDATION, TEST))

    def row(kind: str, path: Path | None, weight: float, said: tuple[list[Any], list[str]]) -> dict[str, Any]:
        transcriber.use_language_model(path, weight)
        return {"model": kind, "weight": weight, **measured(transcriber, *said)}

    rows, tested = [row("none", None, 0.0, validation)], [row("none", None, 0.0, test)]
    for kind, model_of in LANGUAGE_MODELS.items():
        path = model_of(transcriber, work)
        rows += [row(kind, path, weight, validation) for weight in WEIGHTS]
        best = min((each for each in rows if each["model"] == kind), key=lambda each: each["words"])
        tested.append(row(kind, path, best["weight"], test))
    return {"validation": rows, "test": tested}


LANGUAGE_MODELS = {"trigrams": ngrams, "Transformer": small_transformer}
Rows = list[dict[str, Any]]


def study(
    module: str,
    about: str | None,
    arguments: list[str],
    results: Callable[[Path, int, int], dict[str, Rows]],
    columns: Mapping[str, Callable[[dict[str, Any]], str]],
) -> None:
    """The command of a study that trains a recogniser and searches with something beside it.

    Args:
      module: its name.
      about: its description.
      arguments: of the command line.
      results: (folder, updates, recordings of each split) -> rows by split.
      columns: what the table says of a row, by title.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("work", type=work_folder, help="folder for the run and the results")
    parser.add_argument("--updates", type=positive, default=UPDATES, help=f"of the recogniser ({UPDATES})")
    parser.add_argument("--count", type=positive, default=COUNT, help=f"recordings of each split ({COUNT})")
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    made = given.work / f"{module.rpartition('.')[2]}.json"
    found = once(made, lambda: results(given.work, given.updates, given.count))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {split} | {' | '.join(column(row) for column in columns.values())} |"
        for split, rows in found.items()
        for row in rows
    ]
    settings = {"updates": given.updates, "count": given.count}
    report(given.work / "table", {"about": machine() | settings, **found}, "\n".join(lines))


COLUMNS = {
    "language model": lambda row: row["model"],
    "weight": lambda row: f"{row['weight']:g}",
    "word errors": lambda row: f"{row['words']:.2f} %",
    "recordings with errors": lambda row: f"{row['sentences']:.1f} %",
    "CPU ms per recording": lambda row: f"{row['ms']:.1f}",
}


def main(arguments: list[str]) -> None:
    """`python -m benchmarks.studies.fusion WORK`."""
    study("benchmarks.studies.fusion", __doc__, arguments, results, COLUMNS)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
