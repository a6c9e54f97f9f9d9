"""Built-in corpora are named by versions, so what a version generates never changes."""

import hashlib
import itertools
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer import Run
from transformer.data.built_in import drawings, spoken, treebank
from transformer.data.sources import recordings
from transformer.data.sources.corpora import BUILT_IN
from transformer.data.sources.source import SPLITS
from transformer.runs.config_json import EARLIER
from transformer.runtime.errors import UserError

GENERATED = {
    "built-in": (1, "27d9a617a70b419e"),
    "dialogue-en": (1, "a2fec612c387935b"),
    "dialogue-zh": (1, "122da248ff28093e"),
    "sorting": (1, "25d2603b6feca35e"),
    "convex-hull": (1, "08ba8f3faded5099"),
    "spelling": (1, "3197eb14087b5d80"),
    "pronunciation": (1, "8fa732e4385283f8"),
    "reports": (1, "335020140644a1c3"),
    "stories": (1, "579d15da07e249b2"),
    "conversations": (1, "96de0d891b8efaf2"),
    "opinions": (1, "08a4be626e9ce255"),
    "topics": (1, "071bfe96e633515a"),
    "treebank": (1, "59760ac429ccd6d1"),
    "pronouns": (1, "d811c8bad7b390c5"),
}
"""By corpus: its version, and a hash of the first 300 pairs of each split."""


def hash_of(records: Iterable[Any]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for record in records:
        digest.update(repr(record).encode())
    return digest.hexdigest()


def fails_unless(version: int, found: str, expected: tuple[int, str], module: str) -> None:
    assert (version, found) == expected, (
        f"{module} generates other text: if this is meant, raise its VERSION, and store both here. Runs on "
        "the old text are then not resumed"
    )


@pytest.mark.parametrize("corpus", BUILT_IN)
def test_pairs(corpus: str) -> None:
    built_in = BUILT_IN[corpus]
    pairs = (itertools.islice(built_in.pairs(seed=0, split=split), 300) for split in SPLITS)
    fails_unless(built_in.version, hash_of(itertools.chain(*pairs)), GENERATED[corpus], corpus)


def test_labels_of_words() -> None:
    records = (itertools.islice(treebank.records(split), 300) for split in SPLITS)
    found = hash_of((record.words, record.tags) for record in itertools.chain(*records))
    fails_unless(treebank.VERSION, found, (1, "8d531f8e3d539bf2"), "treebank")


def test_drawings() -> None:
    made = [drawings.drawing(split, index, 32, 1, 3) for split in range(3) for index in range(40)]
    found = hash_of((d.pixels.tobytes(), d.boxes.tolist(), drawings.captions(d.shapes)) for d in made)
    fails_unless(drawings.VERSION, found, (1, "27a1a39e22658c1f"), "drawings")


@pytest.mark.parametrize(
    ("corpus", "expected", "loudness"),
    [("spoken-digits", "909ccc9fe72c185e", 0.0782964), ("spoken-numbers", "13b468129d2eaaed", 0.0825938)],
)
def test_recordings(corpus: str, expected: str, loudness: float) -> None:
    """What is said and when, exactly; the sound up to the rounding of another processor."""
    make = recordings.BUILT_IN[corpus]
    made = [make(split, index, 3, one) for split in range(3) for index in range(10) for one in (False, True)]
    found = hash_of((one.words, one.values, one.times, len(one.wave)) for one in made)
    fails_unless(spoken.VERSION, found, (1, expected), "spoken")
    assert np.mean([np.abs(one.wave).mean() for one in made]) == pytest.approx(loudness, rel=1e-5)


def test_runs_that_began_before_there_were_versions(
    untrained_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their corpora were called by a hash of code. The runs of `test_older_runs.py` are such."""
    (tmp_path / "config.json").write_text((untrained_run / "config.json").read_text())
    run = Run(tmp_path)
    for corpus, earlier in EARLIER.items():
        (tmp_path / "corpus").write_text(earlier)
        run.check_corpus(corpus)
    assert not caplog.text
    (tmp_path / "corpus").write_text("stories-0123456789abcdef")  # of another size
    with caplog.at_level(logging.WARNING, "transformer"):
        run.check_corpus("stories-v1-0000000000000000")
    assert "its text cannot be compared" in caplog.text
    for other in ("stories-v2-0000000000000000", "topics-v1-0000000000000000", "text-0000000000000000"):
        with pytest.raises(UserError, match="the training data has changed"):
            run.check_corpus(other)


def test_earlier_names_are_of_first_versions() -> None:
    assert all(re.fullmatch(r"[a-z-]+-v1-[0-9a-f]{16}", corpus) for corpus in EARLIER)
    assert all(corpus.partition("-v1-")[0] == name[:-17] for corpus, name in EARLIER.items())
