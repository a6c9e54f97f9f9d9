"""What is stored of a corpus is what TFDS would store, and damage is named."""

import functools
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from tensorflow_datasets.proto import tf_example_pb2

from transformer.config.model import SpecialIds
from transformer.data import store
from transformer.data.sources.recordings import RECORDINGS, Recording
from transformer.data.sources.source import Source, in_memory
from transformer.data.store import PAIRS
from transformer.data.tokenizers.trained import trained
from transformer.runtime.errors import UserError

SENTENCES = [(f"Satz {index} äß▁\0", "sentence " * (index % 7)) for index in range(50)]
SPOKEN = [
    Recording(f"clip-{index}.wav", np.full((index + 1, 3), index / 7, np.float16), "said " * index)
    for index in range(9)
]


@functools.cache  # TFDS wants one class of a name
def builder_of(form):
    """A builder with TFDS's own feature codec and writer."""
    tfds = store.tfds()

    def info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=form.features(form.columns), disable_shuffling=True
        )

    def split(self, manager):
        return {"train": self._generate_examples()}

    def generate(self):
        for index, record in enumerate(self.given):
            yield index, dict(zip(form.columns, form.values(record), strict=True))

    members = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": info,
        "_split_generators": split,
        "_generate_examples": generate,
    }
    name = "".join(word.title() for word in form.dataset.split("_"))
    return type(name, (tfds.core.GeneratorBasedBuilder,), members)


def stored_by_tfds(place, form, records, shards):
    builder = builder_of(form)(data_dir=place, file_format="array_record")
    builder.given = records
    builder.download_and_prepare(download_config=store.tfds().download.DownloadConfig(num_shards=shards))


def equal(form, found, expected):
    if form is PAIRS:
        return found == expected
    return len(found) == len(expected) and all(
        (a.name, a.text) == (b.name, b.text)
        and a.features.dtype == np.float32
        and (a.features == b.features).all()
        for a, b in zip(found, expected, strict=True)
    )


def messages(path):
    """The records of a file. TFDS writes their fields in an order that differs between processes."""
    source = ArrayRecordDataSource([str(path)])
    return [tf_example_pb2.Example.FromString(record) for record in source.__getitems__(range(len(source)))]


@pytest.mark.parametrize(("form", "records"), [(PAIRS, SENTENCES), (RECORDINGS, SPOKEN)])
def test_tfds_and_this_package_store_the_same(tmp_path, form, records):
    prepared = store.prepare(tmp_path / "here", {"train": lambda: iter(records)}, form)["train"]
    assert equal(form, list(prepared), records)
    assert equal(form, prepared.__getitems__([7, 3]), [records[7], records[3]])

    stored_by_tfds(tmp_path / "tfds", form, records, shards=1)
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


@pytest.mark.parametrize(("form", "records"), [(PAIRS, SENTENCES), (RECORDINGS, SPOKEN)])
def test_a_corpus_that_tfds_wrote_is_read(tmp_path, form, records):
    def never():
        raise AssertionError("it is there already")

    stored_by_tfds(tmp_path, form, records, shards=3)
    prepared = store.prepare(tmp_path, {"train": never}, form)["train"]
    assert equal(form, list(prepared), records)
    assert equal(form, prepared.__getitems__([8, 0]), [records[8], records[0]])


def test_tfds_reads_a_corpus_that_is_written_here(tmp_path):
    store.prepare(tmp_path / "pairs", {"train": lambda: iter(SENTENCES)}, PAIRS)
    store.prepare(tmp_path / "sounds", {"train": lambda: iter(SPOKEN)}, RECORDINGS)
    opened = store.tfds().builder_from_directory(tmp_path / "pairs" / "sentence_pairs" / "1.0.0")
    pairs = opened.as_data_source(split="train")
    assert [(pair["source"].decode(), pair["target"].decode()) for pair in pairs] == SENTENCES
    opened = store.tfds().builder_from_directory(tmp_path / "sounds" / "recordings" / "1.0.0")
    for found, expected in zip(opened.as_data_source(split="train"), SPOKEN, strict=True):
        assert (found["name"].decode(), found["text"].decode()) == (expected.name, expected.text)
        np.testing.assert_array_equal(found["features"], expected.features)


@pytest.mark.thorough
def test_the_same_text_gives_the_same_file_in_every_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from transformer.data import store\n"
        "store.prepare(Path(sys.argv[1]), {'train': lambda: iter([('a', 'b')] * 9)}, store.PAIRS)"
    )
    places = [tmp_path / str(number) for number in range(2)]
    for place in places:
        subprocess.run([sys.executable, "-c", code, str(place)], check=True)
    assert len({next(place.rglob("*array_record-*")).read_bytes() for place in places}) == 1


def test_a_split_without_records_is_named(tmp_path):
    splits = {"train": lambda: iter(SENTENCES), "test": lambda: iter(())}
    with pytest.raises(UserError, match="the test split has no records"):
        store.prepare(tmp_path, splits, PAIRS)
    assert not list(tmp_path.rglob("*array_record*"))


def test_a_damaged_record_is_named(tmp_path):
    text = {"train": lambda: ((f"sentence {index}", "its translation " * 9) for index in range(3000))}
    whole = store.prepare(tmp_path, text, PAIRS)["train"]
    expected = whole.__getitems__([0, 1])
    (file,) = tmp_path.rglob("*array_record-*")
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = b"\xff" * 40
    file.write_bytes(content)
    damaged = store.prepare(tmp_path, text, PAIRS)["train"]
    assert damaged.__getitems__([0, 1]) == expected
    with pytest.raises(UserError, match=r"train: record \d+ is damaged .* remove the folder") as caught:
        list(damaged)
    index = int(str(caught.value).split("record ")[1].split()[0])
    with pytest.raises(UserError, match=f"record {index} is damaged"):
        damaged.__getitems__([index])
    assert damaged.__getitems__([index - 1])
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"1\.0\.0 is damaged .*; remove it to prepare the corpus again"):
        store.prepare(tmp_path, text, PAIRS)


def test_a_vocabulary_that_is_damaged_in_the_cache_is_made_again(tmp_path):
    """A word that is read as another would be unknown, and nothing would tell."""
    corpus = in_memory("words", {"train": ["a red house"], "validation": ["a tree"]}, tmp_path)
    new = trained(corpus, ["a red house"], "whitespace", 100, SpecialIds(), "st")
    (path,) = corpus.folder.glob("*.model")
    whole = path.read_bytes()
    assert trained(corpus, iter(()), "whitespace", 100, SpecialIds(), "st").content() == whole
    path.write_bytes(whole.replace(b"red", b"bed"))
    again = trained(corpus, ["a red house"], "whitespace", 100, SpecialIds(), "st")
    assert again.encode("red") == new.encode("red")
    assert path.read_bytes() == whole


def test_a_source_of_an_outside_task_is_read_once(tmp_path):
    """Its folder is named by its kind and key, so that no run is resumed on other records."""
    calls = []

    def read(split):
        calls.append(split)
        yield from SENTENCES[: 20 if split == "train" else 5]

    source = Source("sentences", PAIRS, "sentences-v1", (0,), read, notes=["a note", "another"])
    opened = source.open(tmp_path)
    assert [(split, len(records)) for split, records in opened.splits.items()] == [
        *(("train", 20), ("validation", 5), ("test", 5)),
    ]
    assert list(source.open(tmp_path).splits["train"]) == list(opened.splits["train"]) == SENTENCES[:20]
    assert calls == ["train", "validation", "test"]
    assert opened.note == "a note; another"
    assert opened.folder.name.startswith("sentences-v1-")
    for other in replace(source, kind="sentences-v2"), replace(source, key=(1,)):
        assert other.open(tmp_path).folder.name != opened.folder.name
