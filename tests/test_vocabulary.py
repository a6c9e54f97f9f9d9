"""Training of vocabularies: reproducible results, and errors."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from invented_text import LINES

from transformer.cli.parser import texts
from transformer.config.corpus import DataConfig
from transformer.config.model import SpecialIds
from transformer.config.records import RecordingsConfig
from transformer.data.sources.source import InMemory
from transformer.data.store import Corpus
from transformer.data.tokenizers import lossless as vocabulary
from transformer.data.tokenizers.trained import corpus_tokenizers, train_tokenizer
from transformer.runtime.errors import UserError

KINDS = ("unigram", "bpe", "char")


TRAIN_IN_BOTH_WAYS = """
import hashlib
from invented_text import LINES
from transformer.config.model import SpecialIds
from transformer.data.tokenizers import lossless as vocabulary
for vocabulary._MOST_LINES in (2_000_000, 200):
    for kind in ("unigram", "bpe", "char"):
        model = vocabulary.train_sentencepiece(iter(LINES), kind, 400, SpecialIds())
        print(hashlib.sha256(model).hexdigest())
"""


@pytest.mark.thorough
def test_same_lines_same_model_in_every_process() -> None:
    here = Path(__file__).parent
    outside = [
        subprocess.run(
            [sys.executable, "-c", TRAIN_IN_BOTH_WAYS],
            env={**os.environ, "PYTHONPATH": f"{here}:{here.parent}", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert len({*outside[0]}) == 6
    assert outside[0] == outside[1]


def test_lines_are_drawn_with_equal_chances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_MOST_LINES", 300)
    drawn = [int(line) for line in vocabulary._drawn_lines(map(str, range(3000)))]
    assert len({*drawn}) == 300
    tenths = np.histogram(drawn, bins=10, range=(0, 3000))[0]
    assert all(12 <= count <= 48 for count in tenths)  # 30, within about 3.5 deviations


def test_overlong_lines_are_learned_from() -> None:
    tokenizer = train_tokenizer([" ".join(LINES)], "bpe", 600)
    pieces = sum(len(tokenizer.encode(line)) for line in LINES)
    assert pieces < 0.5 * sum(map(len, LINES))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("asked", [100_000, 280, 100, 3, 0])
def test_an_impossible_size_names_the_nearest_possible_one(
    kind: str, asked: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=f"--data.vocab-size {asked} ") as caught:
        train_tokenizer(LINES[:300], kind, asked)
    limit = int(str(caught.value).split("set it to at ")[1].split()[1].strip(","))
    beyond = limit + 1 if asked > limit else limit - 1
    assert train_tokenizer(LINES[:300], kind, limit).vocab_size == limit
    with pytest.raises(UserError, match=f"at (most|least) {limit}"):
        train_tokenizer(LINES[:300], kind, beyond)
    bounds = [int(bound) for bound in re.findall(r"at (?:most|least) (\d+)", str(caught.value))]
    assert len(bounds) == 2
    for bound in bounds:
        assert train_tokenizer(LINES[:300], kind, bound).vocab_size == bound
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_size_that_is_named_for_a_small_text_works(kind: str) -> None:
    """Also for texts of so few words that the library names one that it then refuses."""
    for count in (1, 2, 3, 5, 9, 40):
        lines = [
            " ".join(f"{word}{'xyz'[n % 3]}" for word in line.split()) for n, line in enumerate(LINES[:count])
        ]
        with pytest.raises(UserError, match="--data.vocab-size 1600 ") as caught:
            train_tokenizer(lines, kind, 1600)
        if "no size works" not in str(caught.value):
            largest = int(str(caught.value).split("at most ")[1].split(",")[0])
            assert train_tokenizer(lines, kind, largest).vocab_size == largest


def test_one_size_is_named_for_two_vocabularies(tmp_path) -> None:
    """That of the side which yields less; if it is too small for the other, none is."""
    data = DataConfig(joint_vocabulary=False, vocab_size=100_000)

    def refused(name: str, pairs: list[tuple[str, str]]) -> tuple[str, Corpus]:
        corpus = Corpus("", {"train": InMemory(pairs)}, tmp_path / name)
        with pytest.raises(UserError) as caught:
            corpus_tokenizers(corpus, data, SpecialIds())
        return str(caught.value), corpus

    message, corpus = refused("a", list(zip(LINES[:300], LINES[:150] * 2, strict=True)))
    both = dataclasses.replace(data, vocab_size=int(message.split("at most ")[1].split(",")[0]))
    for tokenizer in corpus_tokenizers(corpus, both, SpecialIds()):
        assert tokenizer.vocab_size == both.vocab_size
    message, _ = refused("b", [(line, "ja nein"[: 2 + 5 * (n % 2)]) for n, line in enumerate(LINES[:300])])
    assert "But no size works for both sides" in message
    assert "--data.joint-vocabulary" in message


def test_sizes_that_are_upper_bounds() -> None:
    for kind, smallest in (("char", 261), ("whitespace", 5)):
        assert train_tokenizer(LINES, kind, smallest).vocab_size == smallest
        assert train_tokenizer(LINES[:20], kind, 50_000).vocab_size < 1000
        with pytest.raises(UserError, match=f"--data.vocab-size 4 .* at least {smallest}"):
            train_tokenizer(LINES, kind, 4)
        for data in (DataConfig, RecordingsConfig):  # --help says so
            assert f"at least {smallest}" in texts(data)["vocab_size"].lower()


@pytest.mark.parametrize("kind", [*KINDS, "whitespace"])
def test_an_empty_corpus(kind: str) -> None:
    for lines in ([], [""], ["", "  ", "\t"]):
        with pytest.raises(UserError, match="training text is empty"):
            train_tokenizer(lines, kind, 300)


@pytest.mark.parametrize("kind", [*KINDS, "whitespace"])
def test_a_fault_in_the_corpus_comes_through(kind: str) -> None:
    def texts() -> Iterator[str]:
        yield from LINES
        raise UserError("train.de, line 1501: not UTF-8")

    with pytest.raises(UserError, match=r"^train\.de, line 1501: not UTF-8$"):
        train_tokenizer(texts(), kind, 300)


def test_text_is_kept_where_training_saw_no_space() -> None:
    for kind in KINDS:
        tokenizer = train_tokenizer(["我们今天去公园散步" * 50] * 3, kind, 266 if kind == "char" else 271)
        for text in ("我们 去", " 公园 ", "a ▁ b"):
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_smallest_character_vocabulary_loses_nothing() -> None:
    tokenizer = train_tokenizer(["aaaa", "bbbb"], "char", 261)
    assert tokenizer.vocab_size == 261
    assert tokenizer.decode(tokenizer.encode(" a b▁ä ")) == " a b▁ä "
