"""Tables of questions about lists of words, and runs for them: trained for a few updates, or hardly begun."""

import dataclasses
import json

import numpy as np
from small_run import WORDS, drawn_run, quiet, small_config

from transformer import Run
from transformer.trainer.train import train

NAMED = {"inputs": ("question", "article"), "target": ("answer", "others"), "group": "kind"}


def rows(seed, count):
    """Questions about a list of words: which is the first, or the last?"""
    random = np.random.default_rng(seed)
    for _ in range(count):
        words = random.choice(WORDS, size=random.integers(2, 5))
        which = int(random.integers(2))
        question, answer = (("first", words[0]), ("last", words[-1]))[which]
        row = {"kind": ("begin", "end")[which], "question": question, "article": " ".join(words)}
        yield row | {"answer": str(answer), "others": [f"the {answer}", "it"] if which else []}


def write(folder):
    for seed, (split, count) in enumerate((("train", 200), ("validation", 12), ("test", 12))):
        lines = (json.dumps(row) for row in rows(seed, count))
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def data_of(folder, **options):
    files = {split: folder / f"{split}.jsonl" for split in ("train", "validation", "test")}
    files |= {f"{split}_{side}": None for split in files for side in ("source", "target")}
    return dataclasses.replace(small_config(folder).data, **files, **(NAMED | options))


def config_of(folder, **options):
    return dataclasses.replace(small_config(folder), data=data_of(folder, **options))


def run_of(folder, **options):
    return Run(train(config_of(folder, **options), folder / "run", watch=quiet()))


def drawn_run_of(folder, **options):
    """Of random parameters."""
    return drawn_run(config_of(folder, **options), folder / "run")
