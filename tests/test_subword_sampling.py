"""Samples follow the documented distribution, and come only from the given generator."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sentencepiece
from invented_text import LINES, UNSEEN
from sampling_oracles import assert_frequencies, dropout_distribution, segmentations

from transformer.config.corpus import DataConfig
from transformer.data.tokenizers.sampled_examples import SentenceDraw, with_method
from transformer.data.tokenizers.segmentations import choose_candidate, merge_with_dropout, uniform_draws
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.runtime.errors import UserError


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(LINES, kind, 600) for kind in ("unigram", "bpe", "char")}


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_samples_repeat_with_their_generator_and_vary_without(
    kind: str, tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers[kind]

    def samples(seed: int) -> list[list[int]]:
        sentencepiece.SetRandomGeneratorSeed(seed + 100 * len(seen))
        seen.append(seed)
        rng = np.random.default_rng(seed)
        return [tokenizer.sample(line, rng, 0.2) for line in UNSEEN[:50]]

    seen: list[int] = []
    assert samples(1) == samples(1)
    assert sum(a != b for a, b in zip(samples(1), samples(2), strict=True)) > 40
    rng = np.random.default_rng(0)
    assert len({tuple(tokenizer.sample(UNSEEN[0], rng, 0.2)) for _ in range(50)}) > 10


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_strength_0_is_the_best_segmentation(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[kind]
    for line in UNSEEN[:100]:
        assert tokenizer.sample(line, np.random.default_rng(0), 0) == tokenizer.encode(line)


def test_a_negligible_dropout_gives_the_librarys_own_merges(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["bpe"]
    for line in [*UNSEEN, "", "  two  spaces ", "▁a▁ \0", "我们 sama 👍🏽"]:
        assert tokenizer.sample(line, np.random.default_rng(0), 1e-300) == tokenizer.encode(line)


def test_full_dropout_leaves_characters(tokenizers: dict[str, Tokenizer]) -> None:
    ids = tokenizers["bpe"].sample("sama bin", np.random.default_rng(0), 1)
    assert tokenizers["bpe"].pieces(ids) == [*"▁sama▁bin"]


def test_more_dropout_means_more_pieces(tokenizers: dict[str, Tokenizer]) -> None:
    def pieces(strength: float) -> int:
        rng = np.random.default_rng(0)
        return sum(len(tokenizers["bpe"].sample(line, rng, strength)) for line in UNSEEN[:200])

    counts = [pieces(strength) for strength in (0, 0.1, 0.3, 0.6, 1)]
    assert counts == sorted(set(counts))


def test_characters_have_nothing_to_sample(tokenizers: dict[str, Tokenizer]) -> None:
    for line in UNSEEN[:50]:
        ids = tokenizers["char"].sample(line, np.random.default_rng(0), 0.5)
        assert ids == tokenizers["char"].encode(line)


def test_a_strength_that_makes_no_sense(tokenizers: dict[str, Tokenizer]) -> None:
    for kind, strength in (("unigram", -0.1), ("bpe", -0.1), ("bpe", 1.5)):
        with pytest.raises(UserError, match=r"--data\.subword-sampling"):
            tokenizers[kind].sample("sama", np.random.default_rng(0), strength)


def test_unigram_samples_follow_the_model(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer, strength, draws = tokenizers["unigram"], 0.3, 4000
    tokenizer.save(tmp_path / "tokenizer.model")
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    scores = {library.IdToPiece(i): library.GetScore(i) for i in range(260, len(library))}
    every = max(
        (dict(segmentations(f"▁{word}", scores)) for word in {*" ".join(LINES).split()}),
        key=lambda every: len(every) if len(every) <= 64 else 0,
    )
    assert len(every) > 10  # otherwise the test would be weak
    weights = {cut: np.exp(strength * score) for cut, score in every.items()}
    expected = {cut: weight / sum(weights.values()) for cut, weight in weights.items()}
    word = "".join(next(iter(every)))[1:]
    rng = np.random.default_rng(0)
    counts = Counter(tuple(tokenizer.pieces(tokenizer.sample(word, rng, strength))) for _ in range(draws))
    assert_frequencies(counts, expected, draws)


def test_candidates_are_chosen_in_proportion() -> None:
    rng = np.random.default_rng(0)
    counts = Counter(choose_candidate(np.log([0.64, 0.04, 0.32]), 0.5, rng) for _ in range(5000))
    roots = np.sqrt([0.64, 0.04, 0.32])
    assert_frequencies(counts, dict(enumerate(roots / roots.sum())), 5000)
    far = [choose_candidate([-2000.0, -1000.0, -9000.0], 5.0, rng) for _ in range(20)]
    assert far == [1] * 20


def test_dropout_follows_the_paper() -> None:
    scores = {"an": -1.0, "na": -2.0, "ban": -3.0, "anan": -4.0, "bana": -5.0, "nana": -6.0}
    draws = uniform_draws(np.random.default_rng(0))
    counts = Counter(tuple(merge_with_dropout("banana", scores, 0.3, draws)) for _ in range(20_000))
    expected = dropout_distribution((*"banana",), scores, 0.3)
    assert len(expected) > 10
    assert_frequencies(counts, expected, 20_000)


PAIRS = list(zip(LINES, reversed(LINES), strict=True))


@pytest.mark.thorough
@pytest.mark.by_default("bpe")
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_each_sentence_is_sampled_by_a_seed_of_its_own(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    """As runs did that sampled sentences in processes of their own: the same draws, in parts of any size."""
    tokenizer = tokenizers[kind]
    data = DataConfig(tokenizer=kind, subword_sampling=0.2, seed=3)  # type: ignore[arg-type]
    records: Any = SimpleNamespace(__getitems__=lambda indices: [PAIRS[index] for index in indices])
    draw = SentenceDraw(data, {"source": tokenizer, "target": tokenizer}, records, {})
    draw.part = 7
    indices = np.random.default_rng(0).permutation(len(PAIRS))
    parts = list(draw(5, 0, indices))
    assert [len(sides["source"]) for sides in parts[:-1]] == [7] * (len(parts) - 1)
    for number, side in enumerate(("source", "target")):
        sampled = [ids.tolist() for sides in parts for ids in sides[side]]
        assert sampled == [
            [*tokenizer.sample(PAIRS[index][number], np.random.default_rng((3, 5, index, number)), 0.2), 2]
            for index in indices
        ]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_vocabulary_of_another_kind_is_not_sampled(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    data = DataConfig(tokenizer=kind, subword_sampling=0.1)  # type: ignore[arg-type]
    assert with_method(data, [tokenizers[kind]] * 2).sampling_by == "word"
    other = {"unigram": "bpe", "bpe": "unigram"}[kind]
    for by in (None, "sentence"):
        with pytest.raises(UserError, match=f"is a {other} model, .* give --data.tokenizer {other}"):
            with_method(replace(data, sampling_by=by), [tokenizers[other]] * 2)
