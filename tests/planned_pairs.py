"""Pairs of sentences, their tokenizer, and the plans and batches of them."""

from collections import Counter

import numpy as np

from transformer.config.options import Config
from transformer.data.plans import Batcher
from transformer.data.sequences import Sequences, arrays_of, sides
from transformer.data.sources.source import InMemory
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.tasks.texts.translation import Translation


def some_pairs(count: int) -> InMemory:
    random = np.random.default_rng(0)
    words = ["sun", "moon", "star", "sea", "sand", "wind", "rain", "snow"]

    def sentence() -> str:
        return " ".join(random.choice(words, size=random.integers(1, 16)))

    return InMemory((sentence(), sentence()) for _ in range(count))


PAIRS = some_pairs(157)
TOKENIZER = train_tokenizer((text for pair in PAIRS for text in pair), "whitespace", 100)
TOKENIZERS = (TOKENIZER, TOKENIZER)
LENGTHS = np.array([[len(text.split()) + 1 for text in pair] for pair in PAIRS], np.int32)


def task_of(data, tokenizers=TOKENIZERS):
    return Translation(Config(data=data), tokenizers)


IDS = Translation(Config(), TOKENIZERS).fields


def examples_with(lengths, fields=IDS):
    """Examples of which only the lengths matter."""
    found = {}
    for name, side in zip(sides(fields), lengths.T, strict=True):
        values = np.zeros((side.sum(), *fields[name].shape), fields[name].dtype)
        found[name] = Sequences(values, np.cumsum([0, *side]))
    return found


def make_plan(pairs, tokenizers, lengths, data):
    return task_of(data, tokenizers).plan(pairs, examples_with(lengths))


def batcher_of(pairs, tokenizers, plan, data, host=0, hosts=1):
    task = task_of(data, tokenizers)
    return Batcher(arrays_of(task.examples(pairs), task.fields), task.fields, plan, host, hosts)


def epoch_of(plan, epoch: int) -> list:
    return [plan(epoch * plan.steps_per_epoch + step) for step in range(plan.steps_per_epoch)]


def members(batches) -> Counter:
    return Counter(pair for batch in batches for row in batch.members for pair in row)
