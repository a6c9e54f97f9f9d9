"""Scores of the simplest outputs for tasks of text and of pictures, to compare models with.

`python -m benchmarks.studies.baselines [NAME ...]` computes them on the test records of presets or of run
directories: the first sentence of a text, the most frequent answer, reply, label, set of labels and caption,
a tree in which every bracket holds a word and all that follows, the most frequent label of each word, and an
object of each class at its mean place.
"""

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import run
from transformer import PRESETS, Config, DataConfig, Run, UserError
from transformer.data.sources.tagged import TaggedSentence
from transformer.data.trees import Tree, linearised, read_tree
from transformer.systems.registry import system_of
from transformer.tasks.task import Evaluation

NAMES = (
    *("summarisation", "answering", "dialogue-history", "sentiment", "multi-label", "parsing"),
    *("tagging", "captioning", "detection"),
)
"""Presets of the table without others."""
Records = Sequence[Any]
Guess = Callable[[Any], Any]
"""What is put out for a record, as scores read it."""


def first_sentence(train: Records) -> Guess:
    """The first sentence of a text."""
    return lambda record: re.split(r"(?<=[.!?]) ", record.source)[0]


def most_frequent(train: Records) -> Guess:
    """The target that is most frequent in the training text."""
    return _always(record.target for record in train)


def most_frequent_caption(train: Records) -> Guess:
    """The caption that most training pictures have."""
    return _always(caption for picture in train for caption in picture.captions)


def _always(texts: Iterable[str]) -> Guess:
    ((text, _),) = Counter(texts).most_common(1)
    return lambda record: text


def right_branching(train: Records) -> Guess:
    """A tree in which each bracket holds a word and the bracket of all that follow, with the label that is
    most frequent among brackets, and for each word its most frequent part of speech."""
    labels, tags = Counter[str](), dict[str, Counter[str]]()

    def count(tree: Tree) -> None:
        for child in tree.children:
            if isinstance(child, Tree) and child.is_preterminal:
                tags.setdefault(str(child.children[0]), Counter())[child.label] += 1
            elif isinstance(child, Tree):
                labels[child.label] += 1
                count(child)

    for record in train:
        count(read_tree(record.target))
    label = labels.most_common(1)[0][0]
    frequent = {word: counts.most_common(1)[0][0] for word, counts in tags.items()}

    def guess(record: Any) -> str:
        tree: Any = None
        for word in reversed(record.source.split()):
            leaf = Tree(frequent.get(word, "NN"), (word,))
            tree = Tree(label, (leaf, tree) if tree else (leaf,))
        return linearised(tree)

    return guess


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


def most_frequent_labels(train: Records) -> Guess:
    """The label that each word has most often."""
    counted = MostFrequent.of(train)
    return lambda record: counted.tag(record.words)


def mean_boxes(train: Records) -> Guess:
    """An object of each class, where those of the training pictures are on average, with their share of all
    objects as its probability."""
    boxes = defaultdict[str, list[Any]](list)
    for picture in train:
        for label, box in zip(picture.classes, picture.boxes, strict=True):
            boxes[label].append(box)
    total = sum(map(len, boxes.values()))
    objects = [(label, len(some) / total, np.mean(some, axis=0).tolist()) for label, some in boxes.items()]
    return lambda record: objects


BASELINES: dict[str, tuple[str, Callable[[Records], Guess]]] = {
    "summaries": ("the first sentence", first_sentence),
    "answers": ("the most frequent answer", most_frequent),
    "translation": ("the most frequent output", most_frequent),
    "labels": ("the most frequent label", most_frequent),
    "label-sets": ("the most frequent set", most_frequent),
    "trees": ("a right-branching tree", right_branching),
    "tagging": ("the most frequent label of each word", most_frequent_labels),
    "captioning": ("the most frequent caption", most_frequent_caption),
    "detection": ("a mean box for each class", mean_boxes),
}
"""The simplest output of each `--data.task` and of other systems, and what makes it from training records."""


def row(name: str, config: Config) -> str:
    """A line of the table.

    Raises:
      UserError: there is no simple output for it, or no test records.
    """
    kind = config.data.task if isinstance(config.data, DataConfig) else config.system
    if kind not in BASELINES:
        raise UserError(f"{name}: there are simple outputs for {', '.join(BASELINES)}, not for {kind}")
    what, baseline = BASELINES[kind]
    task: Any = system_of(config).task
    corpus = task.open_corpus(config)
    if "test" not in corpus.splits:
        raise UserError(f"{name} was trained without a test set: give --data.test")
    guess = baseline(corpus.splits["train"])
    records = list(corpus.splits["test"])
    task = task.create(config, corpus)
    task.learn(corpus)
    task.decide(corpus)
    scores = task.scores(Evaluation(records, list(map(guess, records)), {}))
    values = ", ".join(f"{metric.title} {score.value:.1f}" for metric, score in scores.items())
    return f"| {name} | {what} | {values} |"


def config_of(name: str) -> Config:
    """That of a run directory or of a preset.

    Raises:
      UserError: it is neither.
    """
    return PRESETS[name] if name in PRESETS else Run(Path(name)).config


def main(arguments: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help="presets and run directories")
    configs = {name: config_of(name) for name in parser.parse_args(arguments).names}
    print("| | baseline | test |\n|---|---|---|")
    for name, config in configs.items():
        print(row(name, config), flush=True)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
