"""A corpus of two directions: one "language" is a copy of the source, and another the source reversed."""

import dataclasses

import numpy as np
from small_run import WORDS, small_config

DIRECTIONS = ("x:same", "x:back")


def sentences(seed, count):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=random.integers(2, 6))) for _ in range(count)]


def reversed_words(line):
    return " ".join(line.split()[::-1])


def write(folder, split, count, seed, languages=("x", "same", "back")):
    lines = sentences(seed, count)
    for language in languages:
        texts = map(reversed_words, lines) if language == "back" else lines
        (folder / f"{split}.{language}").write_text("".join(f"{text}\n" for text in texts))


def files_of(folder, splits=("train", "validation", "test")):
    return {
        f"{split}_{side}": folder / f"{split}.{{{side}}}" for split in splits for side in ("source", "target")
    }


def config_of(folder, train=200, **data):
    """The texts written, and a config of both directions."""
    for seed, (split, count) in enumerate((("train", train), ("validation", 12), ("test", 12))):
        write(folder, split, count, seed)
    config = small_config(folder)
    options = {**files_of(folder), "directions": DIRECTIONS, **data}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **options))
