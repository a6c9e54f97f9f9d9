"""Compares runs of `--data.task summaries` with each other and with the first sentence of each text.

`python -m benchmarks.studies.summaries WORK RUN [RUN ...]` decodes the test text of each run. It prints ROUGE
with the 95 % interval of a bootstrap over the texts, how long outputs are and how many of their words the
text has; of a run that reads `target-length`, also how many outputs have as many words as were asked for: as
many as the first reference, and with `--lengths 4 8` also 4 and 8 for every text. With `--suppress 3` the
token of that id, such as <unk>, is not written. Outputs are kept in WORK.
"""

import argparse
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report, table
from benchmarks.runs import once
from benchmarks.studies.baselines import first_sentence
from transformer import Run, Translator, UserError
from transformer.config.options import text_data
from transformer.config.ranges import Option
from transformer.data.sources.corpora import open_corpus
from transformer.data.sources.tables import TARGET_LENGTH
from transformer.data.store import TextRecord
from transformer.tasks.metrics.answers import rouge_of_each

SAMPLES = 1000  # of the bootstrap
KINDS = ("L", "1", "2")
_ASKED = re.compile(rf"{TARGET_LENGTH}: (\d+) ")


def test_records(path: Path) -> list[TextRecord]:
    """The test text of a run.

    Raises:
      UserError: it writes no summaries, it has no test text, or its files are not there.
    """
    data = text_data(Run(path).config)
    if data.task != "summaries":
        raise UserError(f"{path} writes no summaries: train it with --data.task summaries")
    splits = open_corpus(data).splits
    if "test" not in splits:
        raise UserError(f"{path} was trained without a test text: give --data.test")
    return list(splits["test"])


def row(records: Sequence[TextRecord], outputs: Sequence[str]) -> dict[str, float]:
    """The scores of outputs by title, in percent, and of each ROUGE half the width of its interval."""
    references = [[record.target, *record.references] for record in records]
    draws = np.random.default_rng(0).integers(len(records), size=(SAMPLES, len(records)))
    scores = {}
    for kind in KINDS:
        values = 100 * np.array(rouge_of_each(outputs, references, kind)[0])
        low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
        scores |= {f"ROUGE-{kind}": float(values.mean()), f"± ROUGE-{kind}": float(high - low) / 2}
    words = [output.lower().split() for output in outputs]
    count = sum(map(len, words))
    sources = (set(record.source.lower().split()) for record in records)
    copied = sum(word in known for known, several in zip(sources, words, strict=True) for word in several)
    scores |= {"words": count / len(words), "of the text": 100 * copied / max(count, 1)}
    if all(asked := [_ASKED.match(record.source) for record in records]):
        lengths = [int(match[1]) for match in asked if match]
        off = np.array([abs(len(several) - n) for several, n in zip(words, lengths, strict=True)])
        scores["as long as asked"] = float(100 * (off == 0).mean())
        scores["one word off"] = float(100 * (off == 1).mean())
    return scores


def asking_for(words: int, records: Sequence[TextRecord]) -> list[TextRecord]:
    """Records that ask for this number of words."""
    begin = f"{TARGET_LENGTH}: {words} "
    return [record._replace(source=_ASKED.sub(begin, record.source, count=1)) for record in records]


def _outputs(path: Path, sources: Sequence[str], suppress: Sequence[int]) -> dict[str, list[str]]:
    options: dict[str, Option] = {"suppress": tuple(suppress)} if suppress else {}
    return {"outputs": Translator.load(path).translate(sources, **options)}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table and writes WORK/summaries.json and summaries.md."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for outputs and the table")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    parser.add_argument("--lengths", nargs="+", type=positive, default=[], help="words to ask for")
    parser.add_argument("--suppress", nargs="+", type=int, default=[], help="ids that are not written")
    given = parser.parse_args(arguments)
    texts = {path: test_records(path) for path in given.runs}
    given.work.mkdir(parents=True, exist_ok=True)
    records = [record._replace(source=_ASKED.sub("", record.source)) for record in texts[given.runs[0]]]
    guess = first_sentence(records)
    rows = {"first sentence": row(records, list(map(guess, records)))}
    for path, records in texts.items():
        asked = {path.name: records}
        if _ASKED.match(records[0].source):
            asked |= {f"{path.name}-{words}": asking_for(words, records) for words in given.lengths}
        for name, some in asked.items():
            sources = [record.source for record in some]
            make = functools.partial(_outputs, path, sources, given.suppress)
            name += "".join(f" without {index}" for index in given.suppress)
            rows[name] = row(some, once(given.work / f"{name}.json", make)["outputs"])
    report(given.work / "summaries", {"about": machine(), "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
