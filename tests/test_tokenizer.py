"""Tokenizers are lossless, never produce special ids from text, and sample as documented."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_text import LINES, UNSEEN

from transformer.config.model import SpecialIds
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.trained import load_tokenizer, train_tokenizer
from transformer.runtime.errors import UserError

KINDS = ("unigram", "bpe", "char")
LITERALS = ["<s>", "</s>", "<pad>", "<unk>", "<0x41>", "<s></s>", "a<s>b", " </s> ", "<0xFF>"]
TROUBLE = [
    *LITERALS,
    *("", " ", "  ", " a", "a ", "a  b", "\t", "a\tb", "\0", "a\0b", "\x1b", "\x7f", "\r", "\r\n"),
    *("\n", "a\nb", "\x85", "\u2028", "\u2029", "\ufeff", "\u00a0", "\u200b", "\u200d", "\u3000"),
    *(
        "e\u0301",
        "\u0301",
        "é",
        "שלום עולם",
        "مرحبا",
        "👍🏽",
        "👩‍👩‍👧",
        "我们去公园",
        "\u2047",
        "\ufffd",
    ),
    *("▁", "a▁b", "▁▁ ▁", "▅", "\ufdd0", "\ufdd00", "\ufdd01", "\ufdd0▁0", "\U0010ffff", "@@ a@@"),
]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(LINES + LITERALS * 50, kind, 600) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers[request.param]


@pytest.mark.parametrize("kind", [*KINDS, "character", "byte", "whitespace", "word", "open-word"])
def test_what_a_vocabulary_lacks(kind: str) -> None:
    """Characters where they are tokens, words where these are; nothing where all can be spelled."""
    text = "the old cat sleeps"
    tokenizer = train_tokenizer((LINES + LITERALS * 50) if kind in KINDS else [text] * 50, kind, 600)
    unknown = {
        "character": ["{", ",", "x", "{"],
        "whitespace": ["{cat,", "ox{"],
        "word": [" ", "{", ",", "ox", "{"],
    }
    assert tokenizer.unknown("the old {cat, ox{") == unknown.get(kind, [])
    assert tokenizer.unknown("the old cat") == tokenizer.unknown("") == []


PHRASE = "bin da bin da"  # frequent enough for a piece with a space inside, if that is allowed


def train_elsewhere(path: Path, **options: object) -> Path:
    """A model trained with the library's own defaults."""
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES + [PHRASE] * 300), model_writer=model, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())
    return path


def assert_kept(tokenizer: Tokenizer, text: str) -> None:
    for ids in (
        tokenizer.encode(text),
        tokenizer.sample(text, np.random.default_rng(len(text)), 0.3),
    ):
        assert tokenizer.decode(ids) == text
        assert not {*astuple(tokenizer.special)} & {*ids}
        assert all(0 <= index < tokenizer.vocab_size for index in ids)


@pytest.mark.parametrize("text", TROUBLE)
def test_awkward_text_is_kept_and_never_special(tokenizer: Tokenizer, text: str) -> None:
    for whole in (text, f"{text} sama", f"sama{text}", f"sama {text} {text}"):
        assert_kept(tokenizer, whole)


@settings(max_examples=150)
@given(st.lists(st.one_of(st.text(), st.sampled_from(TROUBLE))).map("".join))
def test_any_text_is_kept_and_never_special(tokenizers: dict[str, Tokenizer], text: str) -> None:
    for tokenizer in tokenizers.values():
        assert_kept(tokenizer, text)


@pytest.mark.parametrize("kind", [*KINDS, "whitespace", "character"])
def test_many_texts_are_encoded_as_one_by_one(kind: str) -> None:
    tokenizer = train_tokenizer(LINES, kind, 500)
    texts = [*TROUBLE, *LINES[:300], *UNSEEN, ""]
    assert tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_all([]) == []
    with pytest.raises(UserError, match="lone surrogate"):
        tokenizer.encode_all(["a", "abc\ud800"])


def test_a_lone_surrogate_is_no_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"lone surrogate at character 4, near 'abc\\ud800'"):
        tokenizer.encode("abc\ud800")
    with pytest.raises(UserError, match="lone surrogate"):
        train_tokenizer([*LINES, "\udfff"], "bpe", 400)


def test_special_ids(tokenizer: Tokenizer) -> None:
    special = tokenizer.special
    assert special == SpecialIds()
    assert tokenizer.pieces(astuple(special)) == ["<pad>", "<s>", "</s>", "<unk>"]
    text = tokenizer.encode(LINES[0])
    framed = [special.bos, *text[:3], special.pad, special.eos, *text[3:], special.eos, special.pad]
    assert tokenizer.decode(framed) == LINES[0]
    assert tokenizer.decode(np.array(framed, np.int32)) == LINES[0]


@pytest.mark.parametrize("kind", [*KINDS, "whitespace"])
def test_special_ids_may_be_others(kind: str, tmp_path: Path) -> None:
    special = SpecialIds(pad=7, bos=2, eos=0, unk=1)
    train_tokenizer(LINES, kind, 500, special).save(tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer", special)
    assert tokenizer.special == special
    assert tokenizer.pieces([7, 2, 0, 1]) == ["<pad>", "<s>", "</s>", "<unk>"]
    ids = tokenizer.encode(LINES[3])
    assert tokenizer.decode(ids) == LINES[3]
    assert not {*ids} & {7, 2, 0, 1}
    with pytest.raises(UserError, match="tokenizer: its special ids are pad 7, bos 2, eos 0, unk"):
        load_tokenizer(tmp_path / "tokenizer")


def test_special_ids_must_differ() -> None:
    for special in (SpecialIds(pad=1), SpecialIds(pad=-1)):
        with pytest.raises(UserError, match="four different special ids"):
            train_tokenizer(LINES, "bpe", 400, special)
    with pytest.raises(UserError, match="below 6, the size of this vocabulary"):
        train_tokenizer(["a b"], "whitespace", 100, SpecialIds(pad=50))


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    for index in (-1, tokenizer.vocab_size):
        for method in (tokenizer.decode, tokenizer.pieces):
            with pytest.raises(ValueError, match=rf"\[{index}\]"):
                method([5, index])


@pytest.mark.parametrize("kind", [*KINDS, "whitespace"])
def test_save_and_load(kind: str, tmp_path: Path) -> None:
    lines = [*LINES, "\u2028 \ufeff \u00a0 {\"'\\ 👍🏽 \U0010ffff"]
    trained = train_tokenizer(lines, kind, 900)
    path = tmp_path / "deep" / "tokenizer.model"
    trained.save(path)
    trained.save(path)
    assert [*path.parent.iterdir()] == [path]
    loaded = load_tokenizer(path)
    copy = pickle.loads(pickle.dumps(loaded))  # data workers are sent a copy
    for other in (loaded, copy):
        assert other.vocab_size == trained.vocab_size
        assert other.pieces(range(other.vocab_size)) == trained.pieces(range(other.vocab_size))
        for line in [*lines[-20:], *UNSEEN[:20]]:
            assert other.encode(line) == trained.encode(line)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_a_failed_save_leaves_the_old_file(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        tokenizer.save(path)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\n" * 50,
        b"{}",
        b'{"kind": "whitespace"}',
        b'{"kind": "x", "words": []}',
        b"{\xff",
    ],
)
def test_a_file_that_is_no_tokenizer(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"vocabulary\.json: neither a SentencePiece model nor"):
        load_tokenizer(path)
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_cut_short(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    tokenizer.save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"tokenizer\.model: neither"):
        load_tokenizer(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.model", tmp_path):
        with pytest.raises(UserError, match=f"{path.name}: the tokenizer cannot be read: "):
            load_tokenizer(path)


def test_a_foreign_model_with_other_ids(tmp_path: Path) -> None:
    path = train_elsewhere(tmp_path / "other.model", vocab_size=400)
    with pytest.raises(UserError, match=r"other.model: .* are pad -1, bos 1, eos 2, unk 0 .* pad 0"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "options",
    [{}, {"split_by_whitespace": False}, {"add_dummy_prefix": False}, {"byte_fallback": True}],
)
def test_a_foreign_model_behaves_as_in_the_library(options: dict[str, object], tmp_path: Path) -> None:
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    path = train_elsewhere(
        tmp_path / "m",
        model_type="bpe",
        vocab_size=500,
        treat_whitespace_as_suffix=False,
        **ids,
        **options,
    )
    tokenizer = load_tokenizer(path)
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for line in [*UNSEEN[:200], PHRASE, "", "sama 我们 ９ sama", "  two  spaces "]:
        assert tokenizer.encode(line) == library.Encode(line)
        assert tokenizer.sample(line, np.random.default_rng(0), 1e-300) == library.Encode(line)
        assert tokenizer.decode(library.Encode(line)) == library.Decode(library.Encode(line))


@pytest.mark.parametrize("kind", ["word", "char"])
def test_a_foreign_model_without_subwords_samples_what_it_encodes(kind: str, tmp_path: Path) -> None:
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    path = train_elsewhere(tmp_path / "m", model_type=kind, vocab_size=200, hard_vocab_limit=False, **ids)
    tokenizer = load_tokenizer(path)
    for line in LINES[:50]:
        assert tokenizer.sample(line, np.random.default_rng(0), 0.5) == tokenizer.encode(line)


def test_threads_may_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    def both(line: str) -> tuple[list[int], list[int]]:
        return tokenizer.encode(line), tokenizer.sample(line, np.random.default_rng(1), 0.2)

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(both, UNSEEN[:300])] == [*map(both, UNSEEN[:300])]


# Presegmented text


def test_whitespace_words_by_frequency_and_first_appearance() -> None:
    tokenizer = train_tokenizer(["b c a", "c  a\tc", "z"], "whitespace", 100)
    assert tokenizer.pieces(range(tokenizer.vocab_size))[4:] == ["c", "a", "b", "z"]
    bounded = train_tokenizer(["b c a", "c  a\tc", "z"], "whitespace", 7)
    assert bounded.pieces(range(7)) == ["<pad>", "<s>", "</s>", "<unk>", "c", "a", "b"]
    assert bounded.encode(" z  c\tq ") == [3, 4, 3]


def test_whitespace_joints_are_undone() -> None:
    text = "ein Haus@@ boot mit K@@ a@@ jüte @@x a@b @@"
    tokenizer = train_tokenizer([text, "En@@"], "whitespace", 100)
    assert tokenizer.decode(tokenizer.encode(text)) == "ein Hausboot mit Kajüte @@x a@b "
    assert tokenizer.decode(tokenizer.encode("ein En@@")) == "ein En"
    assert tokenizer.decode([1, *tokenizer.encode("ein Haus@@"), 2, 0]) == "ein Haus"
    assert tokenizer.pieces(tokenizer.encode("Haus@@ boot")) == ["Haus@@", "boot"]


def test_whitespace_words_are_never_special(tmp_path: Path) -> None:
    line = "<s> </s> <pad> <unk> a\u00a0b \u3000 \u2028"
    train_tokenizer([line], "whitespace", 100).save(tmp_path / "words.json")
    tokenizer = load_tokenizer(tmp_path / "words.json")
    assert min(tokenizer.encode(line)) > 3
    assert tokenizer.decode(tokenizer.encode(line)) == line
    assert tokenizer.encode("new") == [3]
    for index in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=rf"\[{index}\]"):
            tokenizer.decode([index])


def test_whitespace_words_are_not_sampled() -> None:
    with pytest.raises(UserError, match=r"choose --data\.tokenizer unigram or bpe"):
        train_tokenizer(["a"], "whitespace", 9).sample("a", np.random.default_rng(0), 0.1)


def test_the_whitespace_file_is_plain_json(tmp_path: Path) -> None:
    train_tokenizer(["groß klein"], "whitespace", 9).save(tmp_path / "words.json")
    saved = json.loads((tmp_path / "words.json").read_text(encoding="utf-8"))
    assert saved["words"] == ["groß", "klein"]
