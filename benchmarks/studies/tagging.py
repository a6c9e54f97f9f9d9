"""Compares trained taggers with the most frequent label of each word.

`python -m benchmarks.studies.tagging RUN [RUN ...]` reads the test scores of runs of the system `tagging`,
and computes those of a baseline that only counts: a word has the label that it has most often in the training
sentences, and a word that none of them has the most frequent label of all.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import run
from transformer import Run, UserError
from transformer.data.sources.tagged import TaggedSentence
from transformer.systems.tagging.system import Tagging
from transformer.tasks.task import Evaluation


@dataclass(frozen=True)
class MostFrequent:
    """The most frequent label of each word."""

    labels: dict[str, str]
    unknown: str
    """That of other words."""

    @classmethod
    def of(cls, sentences: Iterable[TaggedSentence]) -> "MostFrequent":
        """Of training sentences. Of labels that are as frequent, the first one of the alphabet."""
        counts = defaultdict[str, Counter[str]](Counter)
        for words, labels in sentences:
            for word, label in zip(words, labels, strict=True):
                counts[word][label] += 1
        every = sum(counts.values(), Counter[str]())
        return cls({word: _first(of_word) for word, of_word in counts.items()}, _first(every))

    def tag(self, words: Sequence[str]) -> list[str]:
        """The labels of the words of a sentence."""
        return [self.labels.get(word, self.unknown) for word in words]


def _first(counts: Counter[str]) -> str:
    return min(counts, key=lambda label: (-counts[label], label))


def rows_of(path: Path) -> list[str]:
    """The rows of a run: names, and each score of the baseline and of the run.

    Raises:
      UserError: it labels no words, or has not ended.
    """
    trained = Run(path)
    task = trained.task
    if not isinstance(task, Tagging):
        raise UserError(f"{path} holds a {trained.config.system} model, which labels no words")
    try:
        results = json.loads((path / "results.json").read_text())
    except OSError as error:
        raise UserError(f"{path} has no results.json: train it to the end") from error
    corpus = task.open_corpus(trained.config)
    baseline = MostFrequent.of(corpus.splits["train"])
    records = list(corpus.splits["test" if "test" in corpus.splits else "validation"])
    words = [word for record in records for word in record.words]
    unknown = 100 * sum(word not in baseline.labels for word in words) / len(words)
    scores = task.scores(Evaluation(records, [baseline.tag(record.words) for record in records], {}))
    title = f"{path.name} ({len(words):,} words, {unknown:.1f} % unknown)"
    titles = " | ".join(metric.title for metric in scores)
    counted = " | ".join(f"{score.value:.2f}" for score in scores.values())
    learned = " | ".join(f"{results[metric.name]['value']:.2f}" for metric in scores)
    rule = "---|" * (len(scores) + 1)
    return [
        f"| {title} | {titles} |",
        f"|{rule}",
        f"| most frequent label of each word | {counted} |",
        f"| tagger | {learned} |",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Prints a table for each run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.tagging", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory of a tagger")
    for path in parser.parse_args(arguments).runs:
        print("\n".join([*rows_of(path), ""]))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
