"""All corpora are stored in the same way; messages name files with errors."""

import dataclasses
import functools
import json
import subprocess
import sys

import numpy as np
import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from tensorflow_datasets.proto import tf_example_pb2

from transformer.config import DataConfig
from transformer.data import store
from transformer.data.sources.corpora import open_corpus
from transformer.data.sources.recordings import RecordingSource
from transformer.data.sources.text_files import read_lines
from transformer.data.store import PairSource
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
        store.prepare(tmp_path / "store", {"train": broken}, PairSource)
    whole = store.prepare(tmp_path / "store", {"train": lambda: iter([("three", "four")])}, PairSource)
    assert list(whole["train"]) == [("three", "four")]


def test_two_processes_may_prepare_the_same_corpus(tmp_path):
    def slowly():
        # the other one starts and ends while this one reads
        store.prepare(tmp_path / "store", {"train": lambda: iter([("one", "two")])}, PairSource)
        yield "one", "two"

    for _ in range(2):
        assert list(store.prepare(tmp_path / "store", {"train": slowly}, PairSource)["train"]) == [
            ("one", "two")
        ]


SENTENCES = [(f"Satz {index} äß▁\0", "sentence " * (index % 7)) for index in range(50)]
RECORDINGS = [
    (f"clip-{index}.wav", np.full((index + 1, 3), index / 7, np.float16), "said " * index)
    for index in range(9)
]


@functools.cache  # TFDS wants one class of a name
def builder_of(kind):
    """A builder with TFDS's own feature codec and writer."""
    tfds = store.tfds()

    def info(self):
        return tfds.core.DatasetInfo(builder=self, features=kind.features(), disable_shuffling=True)

    def split(self, manager):
        return {"train": self._generate_examples()}

    def generate(self):
        for index, values in enumerate(self.given):
            yield index, dict(zip(kind.keys, values, strict=True))

    members = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": info,
        "_split_generators": split,
        "_generate_examples": generate,
    }
    name = "".join(word.title() for word in kind.dataset.split("_"))
    return type(name, (tfds.core.GeneratorBasedBuilder,), members)


def stored_by_tfds(place, kind, records, shards):
    builder = builder_of(kind)(data_dir=place, file_format="array_record")
    builder.given = records
    builder.download_and_prepare(download_config=store.tfds().download.DownloadConfig(num_shards=shards))


def equal(kind, found, expected):
    if kind is PairSource:
        return found == expected
    return len(found) == len(expected) and all(
        (a.name, a.text) == (name, text) and a.features.dtype == np.float32 and (a.features == features).all()
        for a, (name, features, text) in zip(found, expected, strict=True)
    )


def messages(path):
    """The records of a file. TFDS writes their fields in an order that differs between processes."""
    source = ArrayRecordDataSource([str(path)])
    return [tf_example_pb2.Example.FromString(record) for record in source.__getitems__(range(len(source)))]


@pytest.mark.parametrize(("kind", "records"), [(PairSource, SENTENCES), (RecordingSource, RECORDINGS)])
def test_tfds_and_this_package_store_the_same(tmp_path, kind, records):
    prepared = store.prepare(tmp_path / "here", {"train": lambda: iter(records)}, kind)["train"]
    assert equal(kind, list(prepared), records)
    assert equal(kind, prepared.__getitems__([7, 3]), [records[7], records[3]])

    stored_by_tfds(tmp_path / "tfds", kind, records, shards=1)
    here, theirs = (
        next((tmp_path / place).rglob("*array_record-00000-of-00001")) for place in ("here", "tfds")
    )
    assert here.relative_to(tmp_path / "here") == theirs.relative_to(tmp_path / "tfds")
    assert here.stat().st_size == theirs.stat().st_size
    assert messages(here) == messages(theirs)
    for name in ("features.json", "dataset_info.json"):
        described = [json.loads(path.with_name(name).read_text()) for path in (here, theirs)]
        described[1].pop("moduleName", None)  # of the code that wrote it
        assert described[0] == described[1]


@pytest.mark.parametrize(("kind", "records"), [(PairSource, SENTENCES), (RecordingSource, RECORDINGS)])
def test_a_corpus_that_tfds_wrote_is_read(tmp_path, kind, records):
    def never():
        raise AssertionError("it is there already")

    stored_by_tfds(tmp_path, kind, records, shards=3)
    prepared = store.prepare(tmp_path, {"train": never}, kind)["train"]
    assert equal(kind, list(prepared), records)
    assert equal(kind, prepared.__getitems__([8, 0]), [records[8], records[0]])


def test_tfds_reads_a_corpus_that_is_written_here(tmp_path):
    store.prepare(tmp_path / "pairs", {"train": lambda: iter(SENTENCES)}, PairSource)
    store.prepare(tmp_path / "sounds", {"train": lambda: iter(RECORDINGS)}, RecordingSource)
    opened = store.tfds().builder_from_directory(tmp_path / "pairs" / "sentence_pairs" / "1.0.0")
    pairs = opened.as_data_source(split="train")
    assert [(pair["source"].decode(), pair["target"].decode()) for pair in pairs] == SENTENCES
    opened = store.tfds().builder_from_directory(tmp_path / "sounds" / "recordings" / "1.0.0")
    for found, (name, features, text) in zip(opened.as_data_source(split="train"), RECORDINGS, strict=True):
        assert (found["name"].decode(), found["text"].decode()) == (name, text)
        np.testing.assert_array_equal(found["features"], features)


def test_the_same_text_gives_the_same_file_in_every_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from transformer.data import store\n"
        "store.prepare(Path(sys.argv[1]), {'train': lambda: iter([('a', 'b')] * 9)}, store.PairSource)"
    )
    places = [tmp_path / str(number) for number in range(4)]
    for place in places:
        subprocess.run([sys.executable, "-c", code, str(place)], check=True)
    assert len({next(place.rglob("*array_record-*")).read_bytes() for place in places}) == 1


def test_a_split_without_records_is_named(tmp_path):
    splits = {"train": lambda: iter(SENTENCES), "test": lambda: iter(())}
    with pytest.raises(UserError, match="the test split has no records"):
        store.prepare(tmp_path, splits, PairSource)
    assert not list(tmp_path.rglob("*array_record*"))


def test_a_damaged_record_is_named(tmp_path):
    text = {"train": lambda: ((f"sentence {index}", "its translation " * 9) for index in range(3000))}
    whole = store.prepare(tmp_path, text, PairSource)["train"]
    expected = whole.__getitems__([0, 1])
    (file,) = tmp_path.rglob("*array_record-*")
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = b"\xff" * 40
    file.write_bytes(content)
    damaged = store.prepare(tmp_path, text, PairSource)["train"]
    assert damaged.__getitems__([0, 1]) == expected
    with pytest.raises(UserError, match=r"train: record \d+ is damaged .* remove the folder") as caught:
        list(damaged)
    index = int(str(caught.value).split("record ")[1].split()[0])
    with pytest.raises(UserError, match=f"record {index} is damaged"):
        damaged.__getitems__([index])
    assert damaged.__getitems__([index - 1])


def test_built_in_splits_share_no_source(tmp_path):
    corpus = open_corpus(DataConfig(built_in_size=3000, cache_dir=tmp_path))
    assert {name: len(pairs) for name, pairs in corpus.splits.items()} == {
        "train": 3000,
        "validation": 1000,
        "test": 1000,
    }
    sources = [{source for source, _ in pairs} for pairs in corpus.splits.values()]
    assert sum(map(len, sources)) == len(set.union(*sources)) == 5000


PREPARE = """
import sys, tensorflow_datasets as tfds
class ToyTranslate(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="fr-en")]
    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.Translation(languages=("fr", "en")))
    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(20), "validation": self._generate_examples(3)}
    def _generate_examples(self, count):
        for i in range(count):
            yield i, {"fr": f"bonjour {i}", "en": f"hello {i}"}
ToyTranslate(config="fr-en", data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    """A TFDS dataset on disk, prepared by another program: its code is not known here."""
    folder = tmp_path_factory.mktemp("tfds")
    subprocess.run([sys.executable, "-c", PREPARE, str(folder / "tfds")], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(("source", "target"), [("en", "fr"), ("fr", "en")])
def test_any_tfds_set_in_either_direction(tfds_folder, source, target):
    config = DataConfig(
        dataset="toy_translate/fr-en", source_language=source, target_language=target, cache_dir=tfds_folder
    )
    corpus = open_corpus(config)
    texts = {"en": "hello", "fr": "bonjour"}
    assert len(corpus.splits["train"]) == 20
    for first, second in corpus.splits["train"]:
        word, number = first.split()
        assert word == texts[source]
        assert second == f"{texts[target]} {number}"


PREPARE_TABLE = """
import sys, numpy, tensorflow_datasets as tfds
of = tfds.features
class ToyStories(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    def _info(self):
        answers = of.Sequence({"text": of.Text(), "start": numpy.int32})
        kinds = of.Sequence(of.ClassLabel(names=["long", "short"]))
        columns = {"story": of.Text(), "about": {"place": of.Text()}, "answers": answers, "kinds": kinds}
        columns["right"] = of.ClassLabel(names=["no", "yes"])
        return tfds.core.DatasetInfo(builder=self, features=of.FeaturesDict(columns))
    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(3), "validation": self._generate_examples(2)}
    def _generate_examples(self, count):
        for i in range(count):
            answers = [{"text": f"answer {i} {j}", "start": 0} for j in range(i + 1)]
            yield i, {"story": f"story {i}", "about": {"place": "here"}, "answers": answers,
                      "kinds": ["long", "short"][i % 2:], "right": i % 2}
ToyStories(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


@pytest.fixture(scope="module")
def tfds_table(tmp_path_factory):
    """A TFDS dataset of named texts and labels, some of them within others or in lists."""
    folder = tmp_path_factory.mktemp("tfds")
    subprocess.run(
        [sys.executable, "-c", PREPARE_TABLE, str(folder / "tfds")], check=True, capture_output=True
    )
    return DataConfig(dataset="toy_stories", inputs=("story",), target=("answers/text",), cache_dir=folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"task": "answers", "inputs": ("about/place", "story")},
            {
                ("about/place: here story: story 0", "answer 0 0", (), ""),
                ("about/place: here story: story 1", "answer 1 0", ("answer 1 1",), ""),
            },
        ),
        (
            {"task": "label-sets", "target": ("kinds",), "group": "right"},
            {("no: story 0", "long, short", (), "no"), ("yes: story 1", "short", (), "yes")},
        ),
        (
            {"task": "summaries", "inputs": ("target-length", "story"), "target": ("about/place",)},
            {
                ("target-length: 1 story: story 0", "here", (), ""),
                ("target-length: 1 story: story 1", "here", (), ""),
            },
        ),
    ],
)
def test_texts_of_a_tfds_set_by_name(tfds_table, changes, expected):
    corpus = open_corpus(dataclasses.replace(tfds_table, **changes))
    assert {tuple(record) for record in corpus.splits["validation"]} == expected
    assert len(corpus.splits["train"]) == 3


def test_a_name_that_a_tfds_set_lacks(tfds_table):
    with pytest.raises(
        UserError,
        match="no text or label named 'start'; it has about/place, answers/text, kinds, right, story",
    ):
        open_corpus(dataclasses.replace(tfds_table, inputs=("start",)))


def test_a_language_that_is_not_there(tfds_folder):
    data = DataConfig(dataset="toy_translate/fr-en", cache_dir=tfds_folder)
    with pytest.raises(UserError, match="no language 'de', only en, fr: choose one with --data.target-lang"):
        open_corpus(dataclasses.replace(data, source_language="en", target_language="de"))
    with pytest.raises(UserError, match="has the languages en, fr: choose one with --data.source-language"):
        open_corpus(data)


def test_unknown_dataset(tmp_path):
    with pytest.raises(UserError, match="--data.dataset nonsense/de-en: no such TFDS dataset"):
        open_corpus(DataConfig(dataset="nonsense/de-en", cache_dir=tmp_path))


def test_a_known_dataset_that_cannot_be_had(tmp_path, monkeypatch):
    tfds = store.tfds()

    def unreachable(*args, **kwargs):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", unreachable)
    with pytest.raises(UserError, match=r"wmt14_translate/de-en is not in .*Name or service.*tfds-prepare"):
        open_corpus(DataConfig(dataset="wmt14_translate/de-en", cache_dir=tmp_path))


def test_tensorflow_is_never_imported(tmp_path):
    config = text_config(tmp_path)
    program = (
        "import sys\nfrom pathlib import PosixPath\nfrom transformer.config import DataConfig, SpecialIds\n"
        "from transformer.data.sources.corpora import open_corpus\n"
        f"corpus = open_corpus({config!r})\n"
        "assert len(list(corpus.splits['train'])) == 5\n"
        "import transformer.training.loop.train, transformer.translator.translator\n"
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
