"""Tokenizers of pretrained models make the ids and texts of `transformers`
(tests/make_tokenizers_golden.py)."""

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest

from transformer.config.model import SpecialIds
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.pieces import PiecesTokenizer
from transformer.data.tokenizers.trained import load_tokenizer
from transformer.interop.folders.pieces import read_pieces, written_pieces
from transformer.interop.pretrained import detect
from transformer.runtime.errors import UserError

DATA = Path(__file__).parent / "data" / "tokenizers"
KINDS = sorted(path.name for path in DATA.iterdir())
MARK = "\u2581"


def golden_of(name):
    return json.loads((DATA / name / "golden.json").read_text())


def pieces_of(folder):
    return read_pieces(folder, detect(folder).older)


def read(name, folder=None, size=600):
    return pieces_of(folder or DATA / name).tokenizer(size, SpecialIds(**golden_of(name)["special"]))


def copied(name, path):
    return Path(shutil.copytree(DATA / name, path / "folder"))


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return read(request.param), golden_of(request.param)


def test_ids_are_those_of_the_reference(tokenizer):
    ours, golden = tokenizer
    assert ours.encode_all(golden["lines"]) == golden["ids"]
    assert [ours.encode(line) for line in golden["lines"]] == golden["ids"]


def test_texts_are_those_of_the_reference(tokenizer):
    ours, golden = tokenizer
    assert [ours.decode(row) for row in golden["ids"]] == golden["texts"]
    assert [ours.decode(row) for row in golden["drawn"]] == golden["texts_of_drawn"]


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    ours, golden = tokenizer
    ours.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved", ours.special)
    assert loaded.encode_all(golden["lines"]) == golden["ids"]
    assert [loaded.decode(row) for row in golden["ids"]] == golden["texts"]


def test_a_tokenizer_can_be_sent_to_another_process(tokenizer):
    ours, golden = tokenizer
    assert pickle.loads(pickle.dumps(ours)).encode_all(golden["lines"]) == golden["ids"]


def test_pieces_are_what_a_text_is_spelled_with(tokenizer):
    ours, _ = tokenizer
    text = "a dog runs"
    ids = ours.encode(text)
    assert ours.knows(text)
    assert ours.spelled(text).lstrip(MARK) == text.replace(" ", MARK)
    by_id = {index: piece for piece, index in ours.ids_by_piece.items()}
    assert "".join(by_id[index] for index in ids) == ours.spelled(text)


@pytest.mark.parametrize("name", ["bert", "m2m", "mbart", "nllb", "pegasus", "t5"])
def test_a_vocabulary_knows_the_characters_that_it_has(name):
    assert not read(name).knows("a \u0e44 dog")


@pytest.mark.parametrize("name", ["bart", "whisper"])
def test_pieces_of_bytes_are_shown_as_text(name):
    ours = read(name)
    ids = ours.encode("é \u0e44")
    shown = ours.pieces(ids)
    assert shown[0] == "é"
    assert set("".join(shown[2:])) == {"\ufffd"}  # three bytes, none of them a character
    assert ours.stored_pieces(ids)[0] == "Ã©"
    assert "\ufffd" not in "".join(ours.ids_by_piece)


@pytest.mark.parametrize("name", ["bart", "bert", "mbart", "nllb", "pegasus", "t5"])
def test_older_files_are_the_same_vocabulary(name, tmp_path):
    """In SentencePiece's own reading, a space at an end or before a special piece is no piece."""
    folder = copied(name, tmp_path)
    (folder / "tokenizer.json").unlink()
    ours, golden = read(name, folder), golden_of(name)
    special = re.compile("<|en_XX|eng_Latn|\x85|\u2028")
    plain = [" ".join(line.split()) for line in golden["lines"] if not special.search(line)]
    assert len(plain) > 8
    assert ours.encode_all(plain) == read(name).encode_all(plain)
    assert [ours.decode(ours.encode(line)) for line in plain] == [
        read(name).decode(read(name).encode(line)).strip(" ") for line in plain
    ]
    assert isinstance(ours, PiecesTokenizer) == (name not in ("bart", "bert"))


def test_languages_of_m2m_100_are_numbered_after_its_pieces():
    ours = read("m2m")
    count = len(json.loads((DATA / "m2m" / "vocab.json").read_text()))
    assert ours.codes["af"] == count
    assert ours.codes["en"] == count + 18
    assert ours.codes["zu"] == count + 99
    assert ours.pieces([ours.codes["en"]]) == ["__en__"]


def test_codes_of_older_files_are_numbered_as_in_the_published_models(tmp_path):
    folder = copied("nllb", tmp_path)
    (folder / "tokenizer.json").unlink()
    count = read("m2m").codes["af"]  # the same pieces
    assert read("nllb", folder).codes == {"eng_Latn": count, "deu_Latn": count + 1}


def test_texts_are_neither_cut_nor_filled(tmp_path):
    """A tokenizer.json may have been saved with a length."""
    folder = copied("bart", tmp_path)
    saved = json.loads((folder / "tokenizer.json").read_text())
    saved["truncation"] = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    saved["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    lines = golden_of("bart")["lines"]
    assert read("bart", folder).encode_all(lines) == read("bart").encode_all(lines)


def test_spaces_before_signs_are_taken_out_if_a_folder_asks_for_it(tmp_path):
    folder = copied("t5", tmp_path)
    about = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**about, "clean_up_tokenization_spaces": True}))
    ids = read("t5").encode("a dog runs , and the ball .")
    assert read("t5").decode(ids) == "a dog runs , and the ball ."
    assert read("t5", folder).decode(ids) == "a dog runs, and the ball."


MISTAKES = {
    "vocab.json: the id of 'a' is 2, not one": lambda f: (f / "vocab.json").write_text('{"<s>": 0, "a": 2}'),
    "'<s>' and 'a' have the same id 0": lambda f: (f / "vocab.json").write_text('{"<s>": 0, "a": 0}'),
    "additional_special_tokens has 3, which is no token": lambda f: (
        (f / "vocab.json").unlink(),  # as NLLB, whose codes of languages are these
        (f / "tokenizer_config.json").write_text('{"additional_special_tokens": ["eng_Latn", 3]}'),
    ),
    "additional_special_tokens is 5, not a list": lambda f: (
        (f / "vocab.json").unlink(),
        (f / "tokenizer_config.json").write_text('{"additional_special_tokens": 5}'),
    ),
    "is not a SentencePiece model": lambda f: (f / "sentencepiece.bpe.model").write_bytes(b"nothing"),
    "language_codes is 'ours'; known are m2m100, wmt21": lambda f: (f / "tokenizer_config.json").write_text(
        '{"language_codes": "ours"}'
    ),
    "tokenizer.json: no such file": lambda f: (f / "sentencepiece.bpe.model").unlink(),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message, tmp_path):
    folder = copied("m2m", tmp_path)
    MISTAKES[message](folder)
    with pytest.raises(UserError, match=re.escape(message)):
        pieces_of(folder)


def without_tokenizer_json(name, path):
    folder = copied(name, path)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize("name", ["m2m", "mbart", "nllb", "pegasus", "t5"])
def test_a_vocabulary_of_sentencepiece_is_written_as_its_family_had_it(tmp_path, name):
    """Also with rows that have no word, of which models have some."""
    folder = without_tokenizer_json(name, tmp_path)
    ours = read(name, folder, size=700)
    files, about = written_pieces(ours)
    (tmp_path / "again").mkdir()
    described = {"config.json": (folder / "config.json").read_bytes(), **files}
    for file, content in {**described, "tokenizer_config.json": json.dumps(about).encode()}.items():
        (tmp_path / "again" / file).write_bytes(content)
    again = read(name, tmp_path / "again", size=700)
    assert (again.words, again.apart, again.model) == (ours.words, ours.apart, ours.model)
    kinds = json.loads((folder / "tokenizer_config.json").read_text())
    assert about["tokenizer_class"] == kinds["tokenizer_class"].removesuffix("Fast")


def test_words_in_the_order_of_no_family_are_not_written():
    ours = read("m2m")
    ours.words[5], ours.words[9] = ours.words[9], None
    assert written_pieces(ours) is None


def test_bytes_are_the_tokens_of_byt5(tmp_path):
    """Ids as in Xue et al. 2022: three special tokens, the 256 bytes, then the sentinels."""
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    sentinels = {}
    for listed in ({}, {"additional_special_tokens": ["<extra_id_0>", "<extra_id_1>"]}):
        about = {"tokenizer_class": "ByT5Tokenizer", **listed}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
        tokenizer = pieces_of(tmp_path).tokenizer(384, SpecialIds(0, 0, 1, 2))
        for text in ("a b", " \n\t\0", "Größe, 中文", "😀\u0301"):
            assert tokenizer.encode(text) == [byte + 3 for byte in text.encode()]
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode("a<extra_id_1>") == [ord("a") + 3, 260]
        sentinels[len(listed)] = pieces_of(tmp_path).id_of("<extra_id_124>")
    assert sentinels == {0: 383, 1: None}


def test_a_word_that_has_two_ids():
    """The library would take the last."""
    vocabulary = '{"a": 0, "b": 1, "a": 2}'
    model = f'{{"version": "1.0", "model": {{"type": "WordLevel", "vocab": {vocabulary}, "unk_token": "b"}}}}'
    with pytest.raises(UserError, match=r"not a tokenizer\.json: a: it is given twice"):
        HubTokenizer(model, 10, SpecialIds(0, 0, 0, 1))
