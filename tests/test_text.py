"""Lines without a visible character are empty lines: in corpora, vocabularies, decoding, rescoring, pages."""

import dataclasses
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_run import small_config
from small_translator import small_translator, stored

from transformer import Config, SpecialIds, UserError
from transformer.commands.decode import decode_main
from transformer.config.corpus import DataConfig
from transformer.config.decoding import BeamConfig
from transformer.config.records import StreamConfig
from transformer.data.sequences import side_lengths
from transformer.data.sources.corpora import open_corpus
from transformer.data.sources.recordings import Recording
from transformer.data.sources.texts import open_texts
from transformer.data.sources.tfds_sets import tfds_folder
from transformer.data.store import Corpus
from transformer.data.tokenizers.trained import corpus_tokenizers, train_tokenizer
from transformer.explorer import explore
from transformer.runtime.text import has_text
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.language_model.task import LanguageModelling
from transformer.systems.registry import find_system
from transformer.systems.synthesis.task import TextToSpeech
from transformer.tasks.preparation import examples_of
from transformer.tasks.texts.glossary import Glossary
from transformer.tasks.texts.translation import Translation
from transformer.trainer.checks import check_filled
from transformer.translator.rescoring import rescored

INVISIBLE = ("\u200b", "\u2060", "\ufeff", "\u00ad", "\0", "\u200b \u200d\ufe0f", "\u3164", "\U000e0001")
WHITE = ("", " ", "\u3000", "\t\x1f\u2028")


class Listed(list[Any]):
    """Records in a list."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]


def test_what_is_visible_agrees_with_the_categories_of_unicode() -> None:
    blank = {"Mn": ("VARIATION", "MONGOLIAN FREE", "KHMER VOWEL INHERENT", "COMBINING GRAPHEME JOINER")}
    blank["Lo"] = ("HANGUL FILLER", "HANGUL CHOSEONG F", "HANGUL JUNGSEONG F", "HALFWIDTH HANGUL FILLER")
    blank["So"] = ("BRAILLE PATTERN BLANK",)
    for character in map(chr, range(0x110000)):
        category, name = unicodedata.category(character), unicodedata.name(character, "")
        if category == "Cn":
            continue  # another version of Unicode may assign it
        has_glyph = (
            name.startswith(("ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN")) and name != "ARABIC LETTER MARK"
        )
        invisible = category in ("Cc", "Zs", "Zl", "Zp") or (category == "Cf" and not has_glyph)
        invisible |= name.startswith(blank.get(category, ("\n",)))
        assert has_text(character) is not invisible, (hex(ord(character)), name)


def test_a_text_has_text_wherever_a_visible_character_stands() -> None:
    for text in (*INVISIBLE, *WHITE, "".join(INVISIBLE + WHITE)):
        assert not has_text(text)
        assert has_text(f"{text}a{text}")
    assert all(map(has_text, ("\u0301", "\ud800", "\ufffd", "\ue000", "٣", "。", "🙂\ufe0f")))


# --- corpora ---


def files(folder: Path, lines: tuple[str, ...], others: tuple[str, ...]) -> DataConfig:
    folder.mkdir(exist_ok=True)
    given = {}
    for side, some in ("source", lines), ("target", others):
        for split in "train", "validation":
            given[f"{split}_{side}"] = folder / f"{split}.{side}"
            given[f"{split}_{side}"].write_text("".join(f"{line}\n" for line in some), encoding="utf-8")
    return DataConfig(**given, cache_dir=folder.parent / "cache", tokenizer="word", vocab_size=50)


def test_a_corpus_reads_lines_of_invisible_characters_as_empty(tmp_path: Path) -> None:
    sources = ("ein\u200bs", *INVISIBLE, "zwei\ufeff", "drei")
    targets = ("one", *"abcdefgh", "\u00ad", "three\0")
    corpus = open_corpus(data := files(tmp_path / "a", sources, targets))
    expected = [
        ("ein\u200bs", "one"),
        *(("", x) for x in "abcdefgh"),
        ("zwei\ufeff", ""),
        ("drei", "three\0"),
    ]
    assert list(corpus.splits["train"]) == expected
    empty = open_corpus(files(tmp_path / "b", *map(tuple, zip(*expected, strict=True))))
    assert empty.folder == corpus.folder  # no older cache, nor a run of it, is taken for this corpus
    vocabulary = corpus_tokenizers(corpus, data, SpecialIds())[0]
    assert set(vocabulary.ids_by_piece) & set(INVISIBLE) == {"\u200b", "\0"}  # beside letters
    assert "zwei\ufeff" in vocabulary.ids_by_piece  # a joiner of no width belongs to its word (UAX #29, WB4)
    task = Translation(Config(data=data), (vocabulary, vocabulary))
    lengths = side_lengths(examples_of(task, corpus))
    assert (lengths.min(axis=1) > 0).tolist() == [True, *[False] * 9, True]
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("a\tb\n\u200b\tc\n", encoding="utf-8")
    read = open_corpus(DataConfig(train_tsv=tsv, validation_tsv=tsv, cache_dir=tmp_path / "cache"))
    assert list(read.splits["train"]) == [("a", "b"), ("", "c")]


def test_other_corpora_keep_their_names(tmp_path: Path) -> None:
    """These are the names that earlier versions gave to the same text."""
    lines = ("one", "", " ", "zwei\u200b", "\u3000", "end")
    assert open_corpus(files(tmp_path / "a", lines, ("1", "2", "3", "4", "", "6"))).folder.name == (
        "text-24c7fe9a8a79abd1"
    )
    text = tmp_path / "a" / "train.source"
    data = StreamConfig(train=text, validation=text, cache_dir=tmp_path / "cache")
    assert open_texts(data).folder.name == "texts-3088511b01258dbb"


def test_a_dataset_with_such_lines_has_another_folder(tmp_path: Path) -> None:
    data = DataConfig(cache_dir=tmp_path)

    def folder(identity: str, *records: str) -> Path:
        return tfds_folder(data, "tfds", identity, {"train": Listed(records)}, lambda x: x == "\u200b")

    assert folder("1", "a", "") == folder("1", "a", "")
    assert folder("2", "a", "\u200b") == folder("2") != folder("3")  # counted once
    pairs = Listed([("red cat", "x"), *((line, line) for line in INVISIBLE)])
    for kind in "word", "whitespace", "char":
        corpus = Corpus("toy", {"train": pairs}, tmp_path / kind)
        learned, _ = corpus_tokenizers(corpus, dataclasses.replace(data, tokenizer=kind), SpecialIds())
        assert not set(learned.ids_by_piece) & set("".join(INVISIBLE)) - {" "}


def test_documents_without_text_are_left_out(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one\n\u200b\nmore\n--\n\u200b\n\n--\ntwo\n", encoding="utf-8")
    data = StreamConfig(train=text, validation=text, cache_dir=tmp_path / "cache", separator="--")
    assert list(open_texts(data).splits["train"]) == ["one\n\u200b\nmore\n", "two\n"]
    task = language_task(data)
    examples = task.stored_examples(["one", *INVISIBLE, *WHITE])
    assert [len(example["ids"]) > 0 for example in examples] == [True, *[False] * 12]
    assert task.prompts(["x\n\u200b\ntwo words\n"], 1) == ["two words"]
    text.write_text("\u200b\n\ufeff\n", encoding="utf-8")
    with pytest.raises(UserError, match="is empty: there is no text in it"):
        open_texts(data)


def language_task(data: StreamConfig) -> LanguageModelling:
    config = Config(
        system="language-model",
        model=LanguageModelConfig(vocab_size=260),
        data=data,
    )
    return LanguageModelling(config, train_tokenizer([], "byte", 260))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_vocabularies_do_not_learn_from_such_lines(kind: str) -> None:
    lines = ["red cat runs", "blue bird sings"] * 5
    size = 275
    assert train_tokenizer([*lines, *INVISIBLE * 9], kind, size).content() == (
        train_tokenizer(lines, kind, size).content()
    )


# --- validation ---


def test_a_validation_with_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    def check(task: Any, *records: Any) -> None:
        corpus = Corpus("toy", {"validation": Listed(records)}, tmp_path)
        check_filled(find_system("transformer"), task, corpus)

    pairs, text = small_translator().task, language_task(StreamConfig())
    check(pairs, *[("a", "\u200b")] * 150, ("", "b"), ("\0", ""))
    for part, records in {
        "source": [("\u200b", "a"), (" ", "b")],
        "reference": [("a", "\ufeff"), ("b", "")],
    }.items():
        with pytest.raises(UserError, match=f"every {part} of its validation split is empty"):
            check(pairs, *records)
    check(text, "\0", "a")
    with pytest.raises(UserError, match="every document of its validation split is empty"):
        check(text, "\u00ad", " ")
    spoken, frames = object.__new__(TextToSpeech), np.zeros((2, 8), np.float32)
    check(spoken, Recording("a", frames, "\u200b"), Recording("b", frames, "b"))
    with pytest.raises(UserError, match="every text of its validation split is empty"):
        check(spoken, Recording("a", frames, "\u200b"))


def test_training_refuses_it(tmp_path: Path) -> None:
    from transformer import train

    config = small_config(tmp_path)
    config.data.validation_target.write_text("\u200b\n" * 12, encoding="utf-8")
    with pytest.raises(UserError, match="every reference of its validation split is empty"):
        train(config, tmp_path / "run")
    config = small_config(tmp_path)
    config.data.test_source.write_text("\u200b\n" * 12, encoding="utf-8")
    with pytest.raises(UserError, match="every source of its test split is empty"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- decoding ---


SYSTEMS = ("transformer", "copying", "nonautoregressive", "recurrent", "convolutional", "fast-autoregressive")


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_leaves_such_lines_empty(system: str) -> None:
    if system == "convolutional":
        task = find_system(system).task
        assert task.is_empty is Translation.is_empty
        return
    translator = small_translator(system)
    found = translator.translate([*INVISIBLE, "red cat", *WHITE])
    assert (found[: len(INVISIBLE)], found[-len(WHITE) :]) == ([""] * len(INVISIBLE), [""] * len(WHITE))
    assert translator.submit("\u200b").result()[0].text == ""


def test_texts_that_say_nothing_are_not_spoken() -> None:
    task = object.__new__(TextToSpeech)
    records = [Recording("", np.zeros((0, 8), np.float32), text) for text in (*INVISIBLE, *WHITE, "one")]
    assert [task.is_empty(record) for record in records] == [True] * (len(records) - 1) + [False]


@pytest.mark.slow
def test_the_command_writes_empty_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run, lines = stored(small_translator(), tmp_path / "run"), tmp_path / "lines"
    lines.write_text("red cat\n" + "".join(f"{line}\n" for line in INVISIBLE), encoding="utf-8")

    def decoded(*words: object, stream: int = 0) -> str:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("sys.argv", ["decode.py", *map(str, (run, "--input", lines, *words))])
            status, written = decode_main(), capfd.readouterr()
        assert status == 0, written.err
        return written[stream]

    assert decoded().splitlines()[1:] == [""] * len(INVISIBLE)
    assert decoded("--rescore", run).splitlines()[1:] == [""] * len(INVISIBLE)
    each = [json.loads(line) for line in decoded("--format", "json").splitlines()][1:]
    assert {(x["hypotheses"][0]["text"], len(x["source_tokens"])) for x in each} == {("", 0)}
    decoded("--explore", tmp_path / "page.html")
    assert "\\u200b" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    lines.write_text("".join(f"{line}\n" for line in INVISIBLE), encoding="utf-8")
    caplog.clear()
    assert f"exact match = 100.00 ({len(INVISIBLE)} of {len(INVISIBLE)})" in decoded(
        "--reference", lines, stream=1
    )
    assert not caplog.records  # no advice about languages without spaces
    lines.write_text("\u200b\t\u2060\n\u200b\tred\nred\t\u200b\t\u200b|cat\n", encoding="utf-8")
    caplog.clear()
    assert [*map(bool, decoded("--tsv").splitlines())] == [False, False, True]
    assert [record.message for record in caplog.records] == [
        "line 2: an empty sentence stays empty; its prefix and terms do not count"
    ]


def test_rescoring_leaves_them_as_they_are() -> None:
    translator = small_translator()
    found = translator.search(["red cat", "\u200b"])
    again = list(rescored(["red cat", "\u200b"], found, translator))
    assert again[1] == found[1]
    assert again[1][0].log_probability == 0


# --- what is asked for ---


def test_terms_prefixes_and_phrases_need_a_visible_character(tmp_path: Path) -> None:
    translator = small_translator()
    with pytest.raises(UserError, match="a term is empty: leave it out"):
        translator.task.text_steering.term("\u200b")
    assert translator.task.text_steering.split_prefix("\u200b") == ([], "")
    with pytest.raises(UserError, match="--decoding.forbidden: a phrase is empty"):
        BeamConfig(forbidden=("\u200b",))
    with pytest.raises(UserError, match="must be a term and its translation"):
        Glossary({"\u200b": "cat"})
    terms = tmp_path / "terms"
    terms.write_text("dog\tcat\n\u200b\n", encoding="utf-8")
    assert Glossary.read(terms, keep="\u200b|red").terms("dog \u200b red") == ("cat", "red")
    terms.write_text("dog\t\u200b\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 1: must be a term, a tab and its translation"):
        Glossary.read(terms)


def test_nothing_invisible_is_explored() -> None:
    with pytest.raises(UserError, match="an empty sentence has no attention"):
        explore(small_translator(), ["red cat", "\u200b"])


def test_a_teachers_corpus_keeps_them_empty(tmp_path: Path) -> None:
    """A distilled corpus has one line for each."""
    from transformer.translator.distill import distill

    translator = small_translator()
    data = files(tmp_path / "text", ("red cat", "\u200b", "dog"), ("cat red", "x", "dog"))
    translator.config = dataclasses.replace(translator.config, data=data)
    run = stored(translator, tmp_path / "run")
    (run / "corpus").write_text(open_corpus(data).folder.name)
    distill(run, tmp_path / "new", "last", translator.config.decoding, data)
    written = {path.name: path.read_text().split("\n") for path in (tmp_path / "new").glob("train.*")}
    assert [lines[1] for lines in written.values()] == ["", ""]
    assert {len(lines) for lines in written.values()} == {4}
