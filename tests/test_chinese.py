"""Chinese words by jieba, and characters (tests/make_jieba_golden.py)."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from transformer import PRESETS, UserError
from transformer.data.tokenizers import words as chinese
from transformer.data.tokenizers.trained import load_tokenizer, train_tokenizer
from transformer.systems.registry import find_system
from transformer.trainer.train import train

GOLDEN = json.loads((Path(__file__).parent / "data" / "jieba.json").read_text(encoding="utf-8"))
MIXED = [
    "他用 Python 3 写程序。",
    "Tokyo 和 北京, 1,000 公里",
    "none  at all!",
    "かな と 漢字",
    "",
    "北京 大学",
]
with_jieba = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("jieba") is None, reason="pip install '.[chinese]'"
)


@with_jieba
@pytest.mark.parametrize("sentence", GOLDEN)
def test_words_are_those_of_jieba(sentence):
    tokenizer = train_tokenizer(list(GOLDEN), "jieba", 200)
    pieces = tokenizer.pieces(tokenizer.encode(sentence))
    assert [piece for piece in pieces if piece != "<glue>"] == GOLDEN[sentence]


@with_jieba
def test_any_text_is_restored_and_saved(tmp_path):
    texts = [*GOLDEN, *MIXED]
    tokenizer = train_tokenizer(texts, "jieba", 500)
    tokenizer.save(tmp_path / "words.model")
    loaded = load_tokenizer(tmp_path / "words.model")
    for text in texts:
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
    assert "Python" in tokenizer.pieces(tokenizer.encode(MIXED[0]))
    characters = train_tokenizer(texts, "word", 500)
    assert characters.pieces(characters.encode("北京"))[::2][:1] == ["北"]
    assert tokenizer.pieces(tokenizer.encode("北京")) == ["北京"]


@with_jieba
def test_long_texts_without_signs_are_segmented_in_parts(monkeypatch):
    """In a single part, time may grow as the square of the text."""
    segmenter = chinese._segmenter()
    texts = list[str]()
    monkeypatch.setattr(segmenter, "lcut", lambda text: texts.append(text) or [text])
    text = "北" * 2_500 + "。" + "京" * 1_000
    assert "".join(chinese.JiebaTokenizer.pieces_of(text)) == text
    assert [len(part) for part in texts] == [1_000, 1_000, 500, 1_000]


@with_jieba
def test_no_cache_is_read_or_written(tmp_path, monkeypatch):
    """A file in the folder of temporary files may be a stranger's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "jieba.cache").write_bytes(b"not a cache")
    chinese._segmenter.cache_clear()
    assert chinese.JiebaTokenizer.pieces_of("我来到北京") == ["我", "来到", "北京"]
    assert (tmp_path / "jieba.cache").read_bytes() == b"not a cache"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["tiny", "masked-lm"])
def test_without_jieba_nothing_is_prepared(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jieba", None)
    config = PRESETS[name]
    config = replace(config, data=replace(config.data, tokenizer="jieba", cache_dir=tmp_path / "cache"))
    assert list(find_system(config.system).task.libraries(config)) == ["jieba"]
    with pytest.raises(UserError, match=r"needs jieba: pip install '.\[chinese\]'"):
        train(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_only_a_text_with_chinese_asks_for_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    chinese._segmenter.cache_clear()
    tokenizer = train_tokenizer(["a dog runs"], "jieba", 20)
    with pytest.raises(UserError, match="this needs jieba"):
        tokenizer.encode("北京")
