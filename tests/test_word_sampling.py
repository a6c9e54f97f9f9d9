"""Words sampled many at once follow the distributions that enumeration gives, whatever the text."""

import io
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import sentencepiece
from invented_text import LINES, UNSEEN
from python_calls import python_calls
from sampling_oracles import assert_frequencies, dropout_distribution, segmentations
from tiers import mostly_slow

from transformer.data.sequences import Field, Sequences
from transformer.data.tokenizers.segmentations import (
    DropoutSampler,
    Subwords,
    UnigramSampler,
    WordSampler,
    merge_with_dropout,
    uniform_draws,
)
from transformer.data.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.runtime.errors import UserError

PIECES = ["▁", *"ban", "an", "na", "ana", "ban", "▁b", "▁ban", "anan", "nana", "▁banana"]
SCORES = {piece: -0.7 * index for index, piece in enumerate(PIECES, start=1)}
STRANGE = [
    "",
    " ",
    "  two  spaces ",
    "▁a▁ \0",
    "我们 sama 👍🏽👍🏽",
    "sama我们sama 我",
    "a\u00a0b\tc",
    "</s> <unk> ☃☃",
]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(LINES, kind, 600) for kind in ("unigram", "bpe")}


def toy(kind: str) -> Subwords:
    """A vocabulary after four special ids."""
    ids = {piece: index for index, piece in enumerate(PIECES, start=4)}
    return Subwords(kind, ids, [0.0] * 4 + [SCORES[piece] for piece in PIECES])  # type: ignore[arg-type]


def toy_words(*words: str) -> Sequences:
    ids = toy("bpe").ids
    return Sequences.of([[ids[character] for character in word] for word in words], Field())


def cuts(sampled: Sequences) -> list[tuple[str, ...]]:
    return [tuple(PIECES[index - 4] for index in ids) for ids in sampled]


def encoded(tokenizer: Tokenizer, lines: list[str]) -> Sequences:
    return Sequences.of([[*tokenizer.encode(line), tokenizer.special.eos] for line in lines], Field("uint16"))


def sampled(tokenizer: Tokenizer, lines: list[str], strength: float, seed: int = 0) -> list[list[int]]:
    assert tokenizer.subwords
    sample = WordSampler(tokenizer.subwords, tokenizer.special.eos, strength)
    found = sample(encoded(tokenizer, lines), np.random.default_rng(seed))
    assert found.values.dtype == np.uint16
    assert all(ids[-1] == tokenizer.special.eos for ids in found)
    return [ids[:-1].tolist() for ids in found]


WORDS = ["▁banana", "▁", "nab", "▁bananabanana", "banana"]


@pytest.mark.by_default("3.0")
@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0, 3.0])
def test_unigram_words_follow_the_distribution_over_all_segmentations(alpha: float) -> None:
    """Also those of words with more than 64."""
    draws, random = 20_000, np.random.default_rng(1)
    chosen = random.permutation(np.repeat(np.arange(len(WORDS)), draws))
    found = cuts(UnigramSampler(toy("unigram"), alpha)(toy_words(*WORDS), chosen, random))
    for number, word in enumerate(WORDS):
        weights = {cut: np.exp(alpha * score) for cut, score in segmentations(word, SCORES)}
        expected = {cut: weight / sum(weights.values()) for cut, weight in weights.items()}
        counts = Counter(cut for cut, index in zip(found, chosen, strict=True) if index == number)
        assert_frequencies(counts, expected, draws)
    assert len(dict(segmentations(WORDS[3], SCORES))) > 64


@pytest.mark.slow
@pytest.mark.parametrize("dropout", mostly_slow([0.0, 0.1, 0.5, 0.9, 1.0], [0.1]))
def test_dropout_of_words_follows_the_paper(dropout: float) -> None:
    draws, random = 20_000, np.random.default_rng(2)
    chosen = random.permutation(np.repeat(np.arange(len(WORDS)), draws))
    found = cuts(DropoutSampler(toy("bpe"), dropout)(toy_words(*WORDS), chosen, random))
    for number, word in enumerate(WORDS):
        counts = Counter(cut for cut, index in zip(found, chosen, strict=True) if index == number)
        expected = dropout_distribution((*word,), SCORES, dropout)
        assert_frequencies(counts, {cut: p for cut, p in expected.items() if p}, draws)


def test_pieces_of_the_same_score_are_merged_from_the_left() -> None:
    scores = [0.0] * 4 + [-1.0 if len(piece) > 1 else -9.0 for piece in PIECES]
    sample = DropoutSampler(Subwords("bpe", toy("bpe").ids, scores), 0.4)
    found = cuts(sample(toy_words("banana"), np.zeros(20_000, np.int64), np.random.default_rng(0)))
    equal = {piece: -1.0 for piece in PIECES if len(piece) > 1}
    assert_frequencies(Counter(found), dropout_distribution((*"banana",), equal, 0.4), 20_000)


def test_words_and_occurrences_are_independent() -> None:
    """Two occurrences of a word and another word of a sentence: the joint frequencies are products."""
    ids = toy("bpe").ids
    for kind, strength in ("unigram", 0.3), ("bpe", 0.4):
        draws = 30_000
        sentence = [ids["▁b"], ids["an"], ids["▁ban"], ids["▁b"], ids["an"], 2]
        sentences = Sequences.of([sentence] * draws, Field())
        found = WordSampler(toy(kind), 2, strength)(sentences, np.random.default_rng(4))
        weights = {cut: np.exp(strength * score) for cut, score in segmentations("▁ban", SCORES)}
        one = (
            {cut: weight / sum(weights.values()) for cut, weight in weights.items()}
            if kind == "unigram"
            else dropout_distribution((*"▁ban",), SCORES, strength)
        )
        expected = {
            (*a, *b, *c): p * q * r for a, p in one.items() for b, q in one.items() for c, r in one.items()
        }
        counts = Counter(tuple(PIECES[index - 4] for index in each[:-1]) for each in found)
        assert len(expected) == len(one) ** 3
        assert_frequencies(counts, expected, draws)


def test_dropout_as_of_one_sentence_after_another(tokenizers: dict[str, Tokenizer]) -> None:
    """The frequencies of a trained vocabulary are those of the method for single words."""
    tokenizer, draws = tokenizers["bpe"], 4000
    assert tokenizer.subwords
    merges = {piece: tokenizer.subwords.scores[index] for piece, index in tokenizer.subwords.ids.items()}
    word = max((word for line in LINES for word in line.split()), key=len)
    uniform = uniform_draws(np.random.default_rng(0))
    slow = Counter(tuple(merge_with_dropout(f"▁{word}", merges, 0.2, uniform)) for _ in range(draws))
    fast = Counter(tuple(tokenizer.pieces(ids)) for ids in sampled(tokenizer, [word] * draws, 0.2))
    assert len(fast) > 10
    for outcome in slow | fast:
        share = (slow[outcome] + fast[outcome]) / draws / 2
        assert abs(slow[outcome] - fast[outcome]) <= 4 * np.sqrt(2 * draws * share * (1 - share))


def test_the_best_segmentation_is_that_of_the_library(tokenizers: dict[str, Tokenizer]) -> None:
    """Probabilities to a high power, and a negligible dropout, leave nothing else."""
    for kind, strength in ("unigram", 1e6), ("bpe", 1e-300), ("bpe", 0.0):
        lines = [*UNSEEN, *STRANGE]
        expected = [tokenizers[kind].encode(line) for line in lines]
        assert sampled(tokenizers[kind], lines, strength) == expected


def test_full_dropout_leaves_characters(tokenizers: dict[str, Tokenizer]) -> None:
    [ids] = sampled(tokenizers["bpe"], ["sama bin"], 1.0)
    assert tokenizers["bpe"].pieces(ids) == [*"▁sama▁bin"]


@pytest.mark.parametrize(("kind", "strength"), [("unigram", 0.1), ("bpe", 0.3)])
def test_samples_decode_to_the_text_and_vary_with_the_seed(
    kind: str, strength: float, tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizer, lines = tokenizers[kind], [*STRANGE, *UNSEEN[:300]]
    found, again, other = (sampled(tokenizer, lines, strength, seed) for seed in (1, 1, 2))
    assert [tokenizer.decode(ids) for ids in found] == lines
    assert found == again
    assert sum(a != b for a, b in zip(found, other, strict=True)) > 250


def trained_elsewhere(kind: str, **options: object) -> SentencePieceTokenizer:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        model_type=kind,
        vocab_size=400,
        minloglevel=2,
        **{f"{name}_id": index for index, name in enumerate(("pad", "bos", "eos", "unk"))},
        **options,
    )
    return SentencePieceTokenizer(model.getvalue())


@pytest.mark.parametrize(("kind", "strength"), [("unigram", 1e6), ("bpe", 1e-300)])
@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False}, {"byte_fallback": True}])
def test_a_foreign_model(kind: str, strength: float, options: dict[str, object]) -> None:
    """Unknown characters stay, where sentences begin without a space too."""
    tokenizer, lines = trained_elsewhere(kind, **options), [*UNSEEN, *STRANGE]
    assert sampled(tokenizer, lines, strength) == [tokenizer.encode(line) for line in lines]
    varied = sampled(tokenizer, lines, 0.3)
    assert [tokenizer.decode(ids) for ids in varied] == [
        tokenizer.decode(tokenizer.encode(line)) for line in lines
    ]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [
        {"split_by_whitespace": False},
        {"treat_whitespace_as_suffix": True},
        {"user_defined_symbols": ["<x>"]},
        {"user_defined_symbols": ["sam"]},
    ],
)
def test_words_that_are_not_independent(kind: str, options: dict[str, object]) -> None:
    assert trained_elsewhere(kind, **options).subwords is None


def test_a_strength_that_makes_no_sense(tokenizers: dict[str, Tokenizer]) -> None:
    for kind, strength in ("unigram", -0.1), ("bpe", 1.5), ("unigram", np.inf), ("unigram", np.nan):
        subwords = tokenizers[kind].subwords
        assert subwords
        with pytest.raises(UserError, match=r"--data\.subword-sampling"):
            WordSampler(subwords, 2, strength)


def test_memory_grows_as_the_pieces() -> None:
    """Not as the square of their lengths."""
    letters = [chr(0x4E00 + number) for number in range(20)]
    pieces = [*letters, *(letter * 2_000 for letter in letters)]
    subwords = Subwords("unigram", {piece: index for index, piece in enumerate(pieces)}, [-1.0] * len(pieces))
    tracemalloc.start()
    sample = UnigramSampler(subwords, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000 * sum(map(len, pieces))
    words = Sequences.of([[0] * 1_999, [0] * 2_001, [3] * 2_000], Field())
    found = sample(words, np.array([0, 1, 2]), np.random.default_rng(0))
    assert [len(ids) + 1_999 * sum(index >= 20 for index in ids) for ids in found] == [1_999, 2_001, 2_000]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_no_python_runs_for_each_example(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    """Four times as many sentences take about as many calls of functions: more of them have more steps."""
    subwords = tokenizers[kind].subwords
    assert subwords
    sample, lines = WordSampler(subwords, 2, 0.1), LINES[:1000]
    few, many = encoded(tokenizers[kind], lines), encoded(tokenizers[kind], lines * 4)
    calls = [
        python_calls(lambda given=given: sample(given, np.random.default_rng(0))) for given in (few, many)
    ]
    assert calls[1] < calls[0] + 200
