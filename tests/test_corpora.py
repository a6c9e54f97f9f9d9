"""Text files become a corpus, once; messages name files with errors."""

import bz2
import dataclasses
import gzip
import io
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from transformer.config.corpus import DataConfig
from transformer.data import store
from transformer.data.sources import exchange, own_text
from transformer.data.sources.corpora import open_corpus
from transformer.data.sources.tables import read_table
from transformer.data.sources.text_files import read_lines, reading
from transformer.data.store import PAIRS
from transformer.runtime.errors import UserError

AWKWARD = [
    "plain",
    "",
    "  spaces  ",
    "tab\there",
    "\u2028 line separator",
    "\x85next",
    "\r in a line",
    "\x0b\x0c",
    "日本語",
    "🙂e\u0301",
]


def write(path, lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


def text_config(folder, **changes) -> DataConfig:
    files = {
        f"{split}_{side}": write(folder / f"{split}.{side}", [f"{side} {split} {i}" for i in range(5)])
        for split in ("train", "validation")
        for side in ("source", "target")
    }
    return DataConfig(**(files | {"cache_dir": folder / "cache"} | changes))


def test_ends_of_lines_and_byte_order_marks_are_no_text(tmp_path):
    (tmp_path / "a").write_bytes("\ufeffein Haus\r\n\r\nzwei\r\n\ufeffdrei".encode())
    assert list(read_lines(tmp_path / "a")) == ["ein Haus", "", "zwei", "\ufeffdrei"]


def test_text_files_come_back_line_by_line(tmp_path):
    source = write(tmp_path / "a", AWKWARD)
    target = write(tmp_path / "b", AWKWARD[::-1])
    corpus = open_corpus(text_config(tmp_path, train_source=source, train_target=target))
    pairs = corpus.splits["train"]
    assert list(pairs) == list(zip(AWKWARD, AWKWARD[::-1], strict=True))
    assert pairs.__getitems__([3, 0]) == [(AWKWARD[3], AWKWARD[6]), (AWKWARD[0], AWKWARD[9])]
    assert set(corpus.splits) == {"train", "validation"}


def test_a_last_line_without_a_newline_counts(tmp_path):
    (tmp_path / "file").write_bytes(b"one\ntwo")
    assert list(read_lines(tmp_path / "file")) == ["one", "two"]


def test_tsv(tmp_path):
    tsv = write(tmp_path / "t.tsv", ["a b\tc d", "\t", "e\tf"])
    corpus = open_corpus(DataConfig(train_tsv=tsv, validation_tsv=tsv, cache_dir=tmp_path / "cache"))
    assert list(corpus.splits["train"]) == [("a b", "c d"), ("", ""), ("e", "f")]


def test_prepared_once_and_anew_when_a_file_changes(tmp_path):
    config = text_config(tmp_path)
    first = open_corpus(config)
    files = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*") if path.is_file()}
    assert open_corpus(config).folder == first.folder
    assert files == {path: path.stat().st_mtime_ns for path in first.folder.rglob("*") if path.is_file()}
    write(config.train_target, [f"other {i}" for i in range(5)])
    changed = open_corpus(config)
    assert changed.folder != first.folder
    assert changed.splits["train"].__getitems__([1]) == [("source train 1", "other 1")]


def test_an_interrupted_preparation_is_no_corpus(tmp_path):
    def broken():
        yield "one", "two"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.prepare(tmp_path / "store", {"train": broken}, PAIRS)
    whole = store.prepare(tmp_path / "store", {"train": lambda: iter([("three", "four")])}, PAIRS)
    assert list(whole["train"]) == [("three", "four")]


def test_two_processes_may_prepare_the_same_corpus(tmp_path):
    def slowly():
        # the other one starts and ends while this one reads
        store.prepare(tmp_path / "store", {"train": lambda: iter([("one", "two")])}, PAIRS)
        yield "one", "two"

    for _ in range(2):
        assert list(store.prepare(tmp_path / "store", {"train": slowly}, PAIRS)["train"]) == [("one", "two")]


@pytest.mark.thorough
def test_built_in_splits_share_no_source(tmp_path):
    corpus = open_corpus(DataConfig(built_in_size=3000, cache_dir=tmp_path))
    assert {name: len(pairs) for name, pairs in corpus.splits.items()} == {
        "train": 3000,
        "validation": 1000,
        "test": 1000,
    }
    sources = [{source for source, _ in pairs} for pairs in corpus.splits.values()]
    assert sum(map(len, sources)) == len(set.union(*sources)) == 5000


@pytest.mark.thorough
def test_tensorflow_is_never_imported(tmp_path):
    config = text_config(tmp_path)
    program = (
        "import sys\nfrom pathlib import PosixPath\nfrom transformer.config.corpus import DataConfig\n"
        "from transformer.config.model import SpecialIds\n"
        "from transformer.data.sources.corpora import open_corpus\n"
        f"corpus = open_corpus({config!r})\n"
        "assert len(list(corpus.splits['train'])) == 5\n"
        "import transformer.trainer.train, transformer.translator.translator\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_target": None}, "--data.train-target is missing"),
        ({"train_source": "nowhere.en"}, "cannot read nowhere.en: No such file"),
        (
            {"train_source": None, "train_target": None},
            "no training text: give --data.train-source",
        ),
        ({"train_tsv": "x.tsv"}, "either --data.train-tsv or --data.train-source"),
    ],
)
def test_options_that_do_not_fit(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        open_corpus(text_config(tmp_path, **changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\ntwo\n", r"train.target has 5: line i .* \(line 3 has no partner\)"),
        (b"1\n2\n3\n4\n5\n6\n", r"has 6 lines and .*train.target has 5"),
        (b"1\n2\n3\xff\n4\n5\n", r"bad, line 3: not UTF-8 \(byte 2 of the line\)"),
        pytest.param(
            b"PK\3\4\xff",
            "bad: it is compressed, and text is read: unpack it, with unzip",
            id="compressed",
        ),
        (b"RIFF\xa4\0\0\0WAVEfmt ", "bad: it is a recording, and text is read: name another file"),
    ],
)
def test_files_that_are_wrong_are_named(tmp_path, content, message):
    bad = tmp_path / "bad"
    bad.write_bytes(content)
    with pytest.raises(UserError, match=message):
        open_corpus(text_config(tmp_path, train_source=bad))
    assert not (tmp_path / "cache").exists()


def test_without_validation_text_some_of_the_training_text_is_held_out(tmp_path):
    lines = [f"line {number % 250}" for number in range(300)]  # some come twice
    config = text_config(
        tmp_path,
        train_source=write(tmp_path / "a", lines),
        train_target=write(tmp_path / "b", [line.upper() for line in lines]),
        validation_source=None,
        validation_target=None,
    )
    splits = {name: list(pairs) for name, pairs in open_corpus(config).splits.items()}
    train, validation = splits["train"], splits["validation"]
    assert 15 <= len(validation) <= 17  # 5 %, and those that are equal to the last one
    assert len(train) + len(validation) == 300
    assert not {source for source, _ in train} & {source for source, _ in validation}
    elsewhere = dataclasses.replace(config, cache_dir=tmp_path / "elsewhere")
    assert list(open_corpus(elsewhere).splits["validation"]) == validation
    same = write(tmp_path / "same", ["one"] * 9)
    with pytest.raises(UserError, match="too few different sentences .* --data.validation-source"):
        open_corpus(dataclasses.replace(config, train_source=same, train_target=same))


def test_empty_files_and_torn_tsv(tmp_path):
    empty = write(tmp_path / "empty", [])
    with pytest.raises(UserError, match="empty is empty"):
        open_corpus(text_config(tmp_path, train_source=empty, train_target=empty))
    torn = write(tmp_path / "torn.tsv", ["a\tb", "no tab"])
    with pytest.raises(UserError, match=r"torn.tsv, line 2: 1 column;"):
        open_corpus(DataConfig(train_tsv=torn, validation_tsv=torn, cache_dir=tmp_path))


def test_a_cache_that_cannot_be_written(tmp_path):
    write(tmp_path / "file", ["in the way"])
    with pytest.raises(UserError, match="cannot store the corpus in .*--data.cache-dir"):
        open_corpus(text_config(tmp_path, cache_dir=tmp_path / "file"))


# Compressed files, and patterns that name several.


PACK = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


def packed_parts(folder, pack, ending):
    """Two files of each side, compressed, and the pairs in them."""
    pairs = [(f"quelle {number}", f"target {number}") for number in range(9)]
    for side, name in enumerate(("de", "en")):
        for part, some in (("a", pairs[:4]), ("b", pairs[4:])):
            text = "".join(f"{pair[side]}\n" for pair in some).encode()
            (folder / f"part-{part}.{name}.{ending}").write_bytes(pack(text))
    return pairs


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("shard_pairs", [0, 4])
def test_compressed_parts_are_read_as_their_text(tmp_path, ending, shard_pairs, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "cache"))
    pairs = packed_parts(tmp_path, PACK[ending], ending)
    files = {
        f"train_{side}": tmp_path / f"part-*.{name}.{ending}"
        for side, name in (("source", "de"), ("target", "en"))
    }
    data = text_config(tmp_path, shard_pairs=shard_pairs, **files)
    assert data.languages == ("de", "en")
    assert list(open_corpus(data).splits["train"]) == pairs
    (tmp_path / f"part-a.de.{ending}").write_bytes(PACK[ending](b"neu 1\nneu 2\nneu 3\nneu 4\n"))
    assert open_corpus(data).splits["train"].__getitems__([0]) == [("neu 1", "target 0")]


@pytest.mark.parametrize("ending", PACK)
def test_damaged_and_bottomless_compressed_files_are_refused(tmp_path, ending, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "cache"))
    path = tmp_path / f"text.{ending}"
    path.write_bytes(PACK[ending](b"one\ntwo\n" * 50)[:-9])
    with pytest.raises(UserError, match=f"text.{ending}: the compressed file is damaged|cannot unpack"):
        list(read_lines(path))
    one = PACK[ending](b"one\ntwo\n")
    padding = bytes(64) if ending != "zst" else b"P*M\x18\4\0\0\0skip"  # as tapes, and pzstd, have it
    path.write_bytes(one + padding + one)
    assert list(read_lines(path)) == ["one", "two"] * 2
    path.write_bytes(one + b"?" + one[1:])  # text that a reader could leave out without a word
    with pytest.raises(UserError, match="is damaged|cannot unpack"):
        list(read_lines(path))
    path.write_bytes(PACK[ending](b"0" * 30_000_000))
    with pytest.raises(UserError, match="it unpacks to more than 200 times its size"):
        list(read_lines(path))
    assert len(list((tmp_path / "cache").glob("unpacked/*/*"))) == 1


def test_patterns_name_as_many_files_of_each_side(tmp_path):
    packed_parts(tmp_path, bytes, "txt")
    files = {"train_source": tmp_path / "part-*.de.txt", "train_target": tmp_path / "part-a.en.txt"}
    with pytest.raises(UserError, match="--data.train-source names 2 files and --data.train-target 1: "):
        open_corpus(text_config(tmp_path, **files))
    with pytest.raises(UserError, match=r"--data.train-source .*none-\*.de: no file has such a name"):
        open_corpus(text_config(tmp_path, train_source=tmp_path / "none-*.de"))


def test_patterns_pair_no_files_of_different_names(tmp_path):
    """One file of each side is missing, and another one would be in its position."""
    packed_parts(tmp_path, bytes, "txt")
    (tmp_path / "part-c.de.txt").write_text("text\n")
    (tmp_path / "part-a.en.txt").rename(tmp_path / "part-d.en.txt")
    (tmp_path / "part-c.en.txt").write_text("text\n")
    files = {"train_source": tmp_path / "part-*.de.txt", "train_target": tmp_path / "part-*.en.txt"}
    with pytest.raises(UserError, match=r"part-a.de.txt would be translated by .*/part-b.en.txt"):
        open_corpus(text_config(tmp_path, **files))


def test_the_name_of_a_folder_is_no_pattern(tmp_path):
    folder = tmp_path / "corpus [2]*"
    folder.mkdir()
    pairs = packed_parts(folder, bytes, "txt")
    files = {"train_source": folder / "part-*.de.txt", "train_target": folder / "part-*.en.txt"}
    assert list(open_corpus(text_config(tmp_path, **files)).splits["train"]) == pairs


def test_shards_are_named_where_they_are_worth_it(tmp_path, monkeypatch):
    assert "shard-pairs" not in open_corpus(text_config(tmp_path)).note
    monkeypatch.setattr(own_text, "LARGE", 5)
    assert "a new run with --data.shard-pairs 5 prepares" in open_corpus(text_config(tmp_path)).note
    assert "shard-pairs" not in open_corpus(text_config(tmp_path, context=1)).note


# Files of other programs, as tables.


TEXTS = [
    ("a house", "ein Haus"),
    ("two & three", "zwei & drei"),
    ("a\ttab", "ein\tTabulator"),
    ("end", "Ende"),
]
MEMORY = """<?xml version="1.0" encoding="utf-16"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4">
<body>{}<tu><tuv xml:lang="FR"><seg>une fin</seg></tuv></tu></body></tmx>"""
TEST_SET = """<dataset id="x"><doc id="1"><src lang="en"><p>{}</p></src>
<ref lang="de" translator="A"><p>{}</p></ref><ref lang="de" translator="B"><p>{}</p></ref>
<hyp lang="de" system="c"><p><seg id="1">no</seg></p></hyp></doc></dataset>"""


def write_table(path, pairs=TEXTS):
    """Pairs as other programs write them."""
    marked = [[text.replace("&", "&amp;") for text in pair] for pair in pairs]
    rows = [{"id": 1, "translation": {"en": source, "de": target}} for source, target in pairs]
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".tmx":
        units = (
            f"<tu><tuv xml:lang='en-US'><seg><bpt i='1'>{{code}}</bpt><hi>{source}</hi></seg></tuv>"
            f"<tuv xml:lang='DE'><seg>\n {target} </seg></tuv></tu>"
            for source, target in marked
        )
        path.write_text(MEMORY.format("\n".join(units)), encoding="utf-16")
    elif path.suffix == ".xml":
        sides = (
            "".join(f"<seg id='{number}'>{pair[side]}</seg>" for number, pair in enumerate(marked))
            for side in (0, 1, 1)
        )
        path.write_text(TEST_SET.format(*sides))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        new = pa.ipc.new_file if path.stem == "file" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table, 3)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow", "a.jsonl", "a.tmx", "a.xml"])
@pytest.mark.parametrize("shard_pairs", [0, 2])
def test_tables_of_other_programs(tmp_path, name, shard_pairs):
    (tmp_path / "train").mkdir()
    write_table(tmp_path / "train" / name)
    files = {
        "train": tmp_path / "train" / f"*{name[1:]}",
        "shard_pairs": shard_pairs,
        "cache_dir": tmp_path / "cache",
    }
    expected = [*TEXTS, *[("", "")] * (name == "a.tmx")]  # its last unit lacks a language
    by_languages = {"source_language": "en", "target_language": "de"}
    by_columns = {"inputs": ("en",), "target": ("de",)} if name != "a.tmx" else by_languages
    validations = [
        {"validation": write_table(tmp_path / "more.parquet", [("one", "eins")])},
        {"validation_tsv": write(tmp_path / "more.tsv", ["one\teins"])},
    ]
    for options, validation in zip((by_languages, by_columns), validations, strict=True):
        data = DataConfig(**files, **options, **validation)
        assert data.languages == ("en", "de")
        for _ in range(2):  # once stored
            corpus = open_corpus(data)
            assert [tuple(record[:2]) for record in corpus.splits["train"]] == expected
            assert [tuple(record[:2]) for record in corpus.splits["validation"]] == [("one", "eins")]


def test_further_references_of_a_test_set(tmp_path):
    path = write_table(tmp_path / "a.xml")
    data = DataConfig(train=path, inputs=("en",), target=("de", "de-B"))
    assert [(*record[:2], *record.references) for record in read_table(path, data)] == [
        (source, target, target) for source, target in TEXTS
    ]


def damaged_offsets():
    """An Arrow file whose first text ends after the second one, which the library reads unchecked."""
    offsets, texts = (pa.py_buffer(x) for x in (np.array([0, 5, 2], np.int32), b"abcde"))
    return arrow_file(source=pa.Array.from_buffers(pa.string(), 2, [None, offsets, texts]))


def arrow_file(**columns):
    table = pa.table(columns)
    with io.BytesIO() as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return file.getvalue()


def damaged_name():
    """A Parquet file with the name of a column that is not UTF-8."""
    with io.BytesIO() as file:
        pyarrow.parquet.write_table(pa.table({"source": ["a"]}), file, store_schema=False)
        return file.getvalue().replace(b"source", b"sour\xffe")


def written(column, kind):
    """A file of one column; `kind` writes it."""
    with io.BytesIO() as file:
        table = pa.table({"source": column})
        if kind == "parquet":
            pyarrow.parquet.write_table(table, file)
        else:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        return file.getvalue()


BEYOND_PYTHON = {
    "date": pa.array([2**31 - 1], pa.date32()),
    "duration": pa.array([2**62], pa.duration("s")),
    "two of a name": pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], ["x", "x"]),
}
"""What has no value in Python."""


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("column", BEYOND_PYTHON.values(), ids=BEYOND_PYTHON)
def test_values_that_python_has_not(tmp_path, column, kind):
    (tmp_path / f"a.{kind}").write_bytes(written(column, kind))
    with pytest.raises(UserError, match=rf"a\.{kind} is damaged: "):
        list(read_table(tmp_path / f"a.{kind}", DataConfig()))


def test_a_short_file_that_repeats_a_long_text(tmp_path):
    """Few rows are in memory at once."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["a" * 2**20]))
    pyarrow.parquet.write_table(pa.table({"source": text, "target": ["b"] * 2000}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 2**17
    before = pa.total_allocated_bytes()
    rows = exchange.parquet_rows(tmp_path / "a.parquet", ["source", "target"])
    assert len(next(rows)[1]["source"]) == 2**20
    assert pa.total_allocated_bytes() - before < 2**26


def test_a_short_file_of_many_columns(tmp_path):
    """What they unpack to is in memory together. Of those of a language, the first one is read."""
    path, text = tmp_path / "a.parquet", ["a" * 2**20] * 16
    pyarrow.parquet.write_table(pa.table({f"en-{index}": text for index in range(50)}), path)
    for columns, read, most in (["en"], 1, 2**26), (None, 50, 2**29):
        before = pa.total_allocated_bytes()
        rows = exchange.parquet_rows(path, columns)
        assert sum(value is not None for value in next(rows)[1].values()) == read
        assert pa.total_allocated_bytes() - before < most
    pyarrow.parquet.write_table(pa.table({f"en-{index}": text[:1] for index in range(300)}), path)
    with pytest.raises(
        UserError, match="column en-25.: a page unpacks to 1,048,... bytes, with those of oth"
    ):
        next(exchange.parquet_rows(path, None))
    lists = nulls(2**23 + 1).cast(pa.list_(pa.string()))
    pyarrow.parquet.write_table(pa.table({"a": lists, "b": lists}), path)
    with pytest.raises(UserError, match="column b: the lists of a group of rows have more than 16,777,216"):
        next(exchange.parquet_rows(path, None))


def nulls(number):
    """A list of as many nulls, which takes no memory."""
    return pa.ListArray.from_arrays(pa.array([0, number], pa.int32()), pa.nulls(number))


SHORT_FILES = {
    "a list of nulls": ("arrow", nulls(2**31 - 1), "row 1: longer than 64 MiB"),
    "lists of as many nulls": (
        "arrow",
        pa.FixedSizeListArray.from_arrays(pa.nulls(2**27), 2**27),
        "row 1: longer than 64 MiB",
    ),
    "a value that is repeated": (
        "arrow",
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"])),
        "column source is of type run_end_encoded",
    ),
    "a list that is repeated": (
        "arrow",
        pa.ListViewArray.from_arrays(pa.array([0], pa.int32()), pa.array([1], pa.int32()), pa.array(["a"])),
        "column source is of type list_view",
    ),
    "a list of nulls in pages": (
        "parquet",
        nulls(2**25).cast(pa.list_(pa.string())),
        "column source: the lists of a group of rows have more than 16,777,216 items",
    ),
    "a long list in pages": (
        "parquet",
        nulls(2**23 + 1).cast(pa.list_(pa.string())),
        "row 1: longer than 64 MiB",
    ),
    "texts of a dictionary in a list": (
        "parquet",
        pa.ListArray.from_arrays(
            pa.array([0, 2**20], pa.int32()),
            pa.DictionaryArray.from_arrays(pa.array([0] * 2**20, pa.int32()), pa.array(["a" * 2**16])),
        ),
        "row 1: longer than 64 MiB",
    ),
    "a list of long values": (
        "parquet",
        pa.ListArray.from_arrays(pa.array([0, 300], pa.int32()), pa.nulls(300, pa.binary(2**20))),
        "column source: lists of values of 1,048,576 bytes, of which a group of rows may have 256",
    ),
    "a long value": ("parquet", pa.nulls(1, pa.binary(2**27)), "column source: values of 134,217,728 bytes"),
}


@pytest.mark.parametrize(("kind", "column", "message"), SHORT_FILES.values(), ids=SHORT_FILES)
def test_short_files_whose_rows_would_take_the_memory(tmp_path, kind, column, message):
    path = tmp_path / f"a.{kind}"
    table = pa.table({"source": column, "target": ["b"]})
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path, compression="zstd")
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    assert path.stat().st_size < 2**14
    before = pa.total_allocated_bytes()
    with pytest.raises(UserError, match=f"a.{kind}.*{message}"):
        list(read_table(path, DataConfig()))
    assert pa.total_allocated_bytes() - before < 2**28


def test_the_end_of_a_parquet_file_is_not_believed(tmp_path):
    """The library decodes what the header of a page says."""
    column = nulls(2**25).cast(pa.list_(pa.string()))
    pyarrow.parquet.write_table(pa.table({"source": column, "target": ["b"]}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    number, fewer = (b"\x16" + varint(2 * count, 4) for count in (2**25, 100))  # num_values, of 64 bits
    assert number in content
    (tmp_path / "a.parquet").write_bytes(content.replace(number, fewer))
    metadata = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0)
    assert metadata.num_values == 100
    with pytest.raises(UserError, match="column source: the lists of a group of rows have more than"):
        list(read_table(tmp_path / "a.parquet", DataConfig()))


def varint(number, length):
    """A number as Thrift's compact protocol has it, in as many bytes."""
    parts = [number >> 7 * index & 127 for index in range(length)]
    return bytes([*(part | 128 for part in parts[:-1]), parts[-1]])


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("writer_of", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_compressed_arrow_file(tmp_path, codec, writer_of):
    options = pa.ipc.IpcWriteOptions(compression=codec)
    for text, message in (
        ("a text, ", None),
        ("a" * 2**16, "a.arrow: a part unpacks to more than 200 times its"),
    ):
        table = pa.table({"source": [text] * 2000, "target": ["b"] * 2000})
        with writer_of(tmp_path / "a.arrow", table.schema, options=options) as writer:
            writer.write_table(table)
        if message is None:
            assert len(list(read_table(tmp_path / "a.arrow", DataConfig()))) == 2000
            continue
        with pytest.raises(UserError, match=message):
            list(read_table(tmp_path / "a.arrow", DataConfig()))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_that_are_not_read(tmp_path, kind):
    """They may be of any type and size, and messages name them."""
    path = tmp_path / f"a.{kind}"
    more = {"other": nulls(2**20 if kind == "parquet" else 2**31 - 1)}
    columns = {"source": ["a"], "target": ["b"]} | more
    table = pa.table(columns)
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    (record,) = read_table(path, DataConfig())
    assert record[:2] == ("a", "b")
    with pytest.raises(UserError, match="text is missing: there is only 'source, target, other'"):
        list(read_table(path, DataConfig(inputs=("text",), target=("label",))))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_two_columns_of_one_name(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, ["source", "target", "target"])
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(UserError, match=rf"a\.{kind}: two columns are named target"):
        list(read_table(path, DataConfig()))


def test_texts_in_all_types_of_arrow(tmp_path):
    types = pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())
    texts = ["one", "a longer text than twelve bytes", "two"] * 20
    for number, kind in enumerate(types):
        path = tmp_path / f"{number}.arrow"
        table = pa.table({"source": pa.array(texts).cast(kind), "target": [[x, x] for x in texts]})
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        records = [*read_table(path, DataConfig())]
        assert [record[:2] for record in records] == [(text, text) for text in texts]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"PAR1 and more", "a.parquet is damaged: Parquet"),
        ("a.arrow", b"ARROW1 and more", "a.arrow is damaged: "),
        ("a.arrow", b"no table", "a.arrow is damaged: "),
        ("a.tmx", None, "cannot read .*a.tmx: no such file"),
        *(
            ("a.tmx", b"<?xml version='1.0' encoding='" + name + b"'?><tmx/>", "a.tmx names an encoding that")
            for name in (b"ebcdic", b"utf-7", b"idna", b"zlib_codec", b"x" * 1000)
        ),
        ("a.arrow", damaged_offsets(), "a.arrow is damaged: "),
        ("a.arrow", arrow_file(source=pa.nulls(10**5)), "a.arrow is damaged: it says that it has 100,000"),
        ("a.parquet", damaged_name(), "a.parquet is damaged: 'utf-8' codec"),
        ("a.tmx", b"<tmx>\n<tu>", "a.tmx, line 2: it is no XML .no element found"),
        ("a.tmx", b"<tmx>\n<tu></body>", "a.tmx, line 2: it is no XML .mismatched tag"),
        ("a.xml", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", "a.xml, line 1: it defines an entity .b"),
        ("a.tmx", b"<tmx/>", "no unit has texts in de and en; there are no texts: give --data.source-lang"),
        (
            "a.tmx",
            b"<tmx><tu><tuv xml:lang='fr'><seg>a</seg></tuv></tu></tmx>",
            "no unit has texts in de and en; there are 'fr'",
        ),
        ("a.tmx", b"<tmx><!--" + b"a" * 3 * 2**20, "a.tmx, line 1: longer than 1 MiB"),
        ("a.xml", b"<doc><src lang='en'><seg>" + b"a" * 3 * 2**20, "a.xml, line 1: longer than 1 MiB"),
        (
            "a.xml",
            b"<doc><src lang='en'>\n<seg>a</seg></src></doc>",
            "a.xml, line 2: target is missing: there is only 'en, source'",
        ),
    ],
)
@pytest.mark.parametrize("shard_pairs", [0, 10])
def test_tables_that_are_none(tmp_path, name, content, message, shard_pairs, monkeypatch):
    monkeypatch.setattr(exchange, "LONGEST_LINE", 2**20)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    files = {"train_source": None, "train_target": None, "train": tmp_path / name}
    languages = {"source_language": "en", "target_language": "de"}
    data = text_config(tmp_path, shard_pairs=shard_pairs, **files, **languages)
    with pytest.raises(UserError, match=message), reading(drops=False):
        open_corpus(data)


@pytest.mark.parametrize("shard_pairs", [0, 10])
def test_rows_of_parquet_that_cannot_be_read(tmp_path, shard_pairs):
    """They are named, or left out and named each time."""
    texts = pa.array([b"one", b"\xff", b"three"], pa.binary()).view(pa.string())
    table = pa.table({"source": texts, "target": ["eins", "zwei", None]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    files = {"train_source": None, "train_target": None, "train": tmp_path / "a.parquet"}
    data = text_config(tmp_path, shard_pairs=shard_pairs, **files)
    for _ in range(2):
        with pytest.raises(UserError, match="row 2: not UTF-8.*\n.*row 3: target must be text, not null"):
            with reading(drops=False):
                open_corpus(data)
        with reading(drops=True) as left_out:
            corpus = open_corpus(dataclasses.replace(data, drop_bad=True))
        assert [tuple(record[:2]) for record in corpus.splits["train"]] == [("one", "eins")]
        assert len(left_out) == 2


def test_a_long_run_of_spaces_in_a_segment(tmp_path):
    """It is read once."""
    seg = f"<seg>\n a{' ' * 300_000}b \r\n \n c\n</seg>"
    tmx = f"<tmx><tu><tuv xml:lang='de'>{seg}</tuv><tuv xml:lang='en'>{seg}</tuv></tu></tmx>"
    (tmp_path / "a.tmx").write_text(tmx)
    data = DataConfig(source_language="en", target_language="de")
    (record,) = read_table(tmp_path / "a.tmx", data)
    assert record.source == record.target == f"a{' ' * 300_000}b c"


def test_a_table_is_not_read_as_lines():
    with pytest.raises(
        UserError, match="--data.train-source a.tmx: it is no text: name it with --data.train,"
    ):
        DataConfig(train_source=Path("a.tmx"), train_target=Path("b"))
