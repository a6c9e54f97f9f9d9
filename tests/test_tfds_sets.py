"""Data sets of TFDS: pairs in either direction, texts and labels by name."""

import dataclasses
import subprocess
import sys

import pytest

from transformer.config.corpus import DataConfig
from transformer.data import store
from transformer.data.sources.corpora import open_corpus
from transformer.runtime.errors import UserError

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


@pytest.mark.parametrize(("source", "target"), [("en", "fr"), ("fr", "en"), ("en", "en")])
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
