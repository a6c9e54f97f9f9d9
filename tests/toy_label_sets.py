"""Texts that name their labels, in files."""

import dataclasses
import json

import numpy as np
from small_run import small_config

LABELS = ("tired", "glad", "calm", "sad", "proud")
"""By frequency."""


def write(folder, count=60):
    """Texts that name their labels. The n-th label is in about 1 / n of them."""
    random = np.random.default_rng(0)
    for split, size in (("train", count), ("validation", 8), ("test", 8)):
        lines = []
        for number in range(size):
            labels = [label for n, label in enumerate(LABELS, start=1) if random.random() < 1 / n] or ["sad"]
            text = " ".join(["we are", *random.permutation(labels)])
            labels = LABELS if number == 0 else labels  # each label is in some text
            lines.append(json.dumps({"text": text, "labels": list(random.permutation(labels))}))
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def config_of(folder, **options):
    config = small_config(folder)
    files = {split: folder / f"{split}.jsonl" for split in ("train", "validation", "test")}
    files |= {f"{split}_{side}": None for split in files for side in ("source", "target")}
    data = {"task": "label-sets", "tokenizer": "word", "inputs": ("text",), "target": ("labels",)}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **files, **(data | options)))
