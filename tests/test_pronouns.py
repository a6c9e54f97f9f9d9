"""The built-in passages whose pronouns need context."""

import itertools
import re

from transformer import DataConfig
from transformer.data.built_in import pronouns
from transformer.data.sources.corpora import open_corpus

SPLITS = ("train", "validation", "test")

PRONOUNS = {"m": "er ihn ihm", "f": "sie ihr", "n": "es ihm"}


def gender_before(sources, index):
    """The gender of the first thing in the last sentence up to there that names one."""
    genders = {noun.english: gender for gender in pronouns.GENDERS for noun in pronouns.things(gender)}
    for source in sources[index::-1]:
        for word in re.findall(r"\w+", source):
            if word in genders:
                return genders[word]
    raise AssertionError("no thing was named")


def test_pronouns_follow_from_the_sentences_before():
    for passage in itertools.islice(pronouns.records("train"), 300):
        sources = [sentence.source for sentence in passage]
        for index, sentence in enumerate(passage):
            words = set(re.findall(r"\w+", sentence.target.lower()))
            if re.search(r"\bit\b", sentence.source.lower()):
                right = set(PRONOUNS[gender_before(sources, index)].split())
                every = set(" ".join(PRONOUNS.values()).split())
                assert words & every <= right
                assert words & right
            assert sentence.target not in sentence.others


def test_no_passage_is_in_two_splits():
    sources = [
        {" ".join(sentence.source for sentence in passage) for passage in some}
        for some in (itertools.islice(pronouns.records(split), 500) for split in SPLITS)
    ]
    assert [len(some) for some in sources] == [500] * 3
    assert not any(one & other for one, other in itertools.combinations(sources, 2))


def test_the_corpus_is_read_by_passages(tmp_path):
    data = DataConfig(dataset="pronouns", built_in_size=30, context=2, cache_dir=tmp_path)
    records = list(open_corpus(data).splits["train"])
    assert len(records) == 30
    expected = []
    for passage in pronouns.records("train"):
        sources = [sentence.source for sentence in passage]
        expected += [" <turn> ".join(sources[max(0, i - 2) : i + 1]) for i in range(len(sources))]
        if len(expected) >= 30:
            break
    assert [source for source, _ in records] == expected[:30]
    both = DataConfig(dataset="pronouns", built_in_size=5, directions=("en:de", "de:en"), cache_dir=tmp_path)
    assert len(open_corpus(both).splits["train"]) == 10
