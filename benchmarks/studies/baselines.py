"""Scores of the simplest outputs for the text tasks, to compare models with.

`python -m benchmarks.studies.baselines` computes them on the test texts of the built-in corpora: the first
sentence of a report, the most frequent answer, reply, label and set of labels, and a tree in which every
bracket holds a word and all that follows.
"""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.command import run
from transformer import PRESETS
from transformer.config import text_data
from transformer.data.sources.corpora import open_corpus
from transformer.data.store import TextRecord
from transformer.data.trees import Tree, linearised, read_tree
from transformer.systems.registry import system_of
from transformer.tasks.task import Evaluation

Records = Sequence[TextRecord]
Guess = Callable[[str], str]


def first_sentence(train: Records) -> Guess:
    """The first sentence of a text."""
    return lambda source: re.split(r"(?<=[.!?]) ", source)[0]


def most_frequent(train: Records) -> Guess:
    """The target that is most frequent in the training text."""
    (target, _), *_ = Counter(record.target for record in train).most_common(1)
    return lambda source: target


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

    def guess(source: str) -> str:
        tree: Any = None
        for word in reversed(source.split()):
            leaf = Tree(frequent.get(word, "NN"), (word,))
            tree = Tree(label, (leaf, tree) if tree else (leaf,))
        return linearised(tree)

    return guess


BASELINES: dict[str, tuple[str, Callable[[Records], Guess]]] = {
    "summarisation": ("the first sentence", first_sentence),
    "answering": ("the most frequent answer", most_frequent),
    "dialogue-history": ("the most frequent reply", most_frequent),
    "sentiment": ("the most frequent label", most_frequent),
    "multi-label": ("the most frequent set", most_frequent),
    "parsing": ("a right-branching tree", right_branching),
}
"""The simplest output of each preset, and what makes it from the training text."""


def row(name: str) -> str:
    """A line of the table."""
    what, baseline = BASELINES[name]
    config = PRESETS[name]
    corpus = open_corpus(text_data(config))
    guess = baseline(list(corpus.splits["train"]))
    records = list(corpus.splits["test"])
    task: Any = system_of(config).task.create(config, corpus)
    task.learn(corpus)
    task.decide(corpus)
    outputs = [guess(record.source) for record in records]
    scores = task.scores(Evaluation(records, outputs, {}))
    values = ", ".join(f"{metric.title} {score.value:.1f}" for metric, score in scores.items())
    return f"| {name} | {what} | {values} |"


def main(arguments: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.parse_args(arguments)
    print("| preset | baseline | test |\n|---|---|---|")
    for name in BASELINES:
        print(row(name), flush=True)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
