"""Sentences whose words have labels: from CoNLL files, or the built-in treebank."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformer.config.tagged import TaggedConfig
from transformer.data import store
from transformer.data.corpus import Corpus, Progress, silent
from transformer.data.sources import treebank
from transformer.data.sources.bad_lines import refuse_bad_lines
from transformer.data.sources.conll import TaggedSentence, read_conll
from transformer.data.sources.corpora import SPLITS, built_in_folder, corpus_folder
from transformer.runtime.errors import UserError

SEPARATOR = "\n"  # of stored words, which have no line breaks
HELD_OUT = 0.1  # of the training sentences, if there is no validation file
HELD_OUT_NOTE = "no validation sentences were given: the last tenth of the training sentences is held out"


class TaggedSource(store.Stored):
    """Sentences with labels as they are stored."""

    keys = ("words", "labels")
    dataset = "tagged_sentences"

    @staticmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> TaggedSentence:
        words, labels = (tuple(store.text_of(stored, key).split(SEPARATOR)) for key in keys)
        return TaggedSentence(words, labels)

    @staticmethod
    def features() -> Any:
        features = store.tfds().features
        return features.FeaturesDict({key: features.Text() for key in TaggedSource.keys})


def open_tagged(data: TaggedConfig, progress: Progress = silent) -> Corpus:
    """The sentences of the config, prepared on first use.

    Raises:
      UserError: a file is missing, empty or not as `read_conll` expects it.
    """
    if any(getattr(data, split) for split in SPLITS):
        return _files(data, progress)
    sizes = {"train": data.built_in_size, **dict.fromkeys(SPLITS[1:], max(1, data.built_in_size // 10))}
    folder = built_in_folder(data.cache_dir, "built-in-tagged", treebank.VERSION, sizes)

    def split_of(split: str) -> Callable[[], Iterator[tuple[str, ...]]]:
        def derived() -> Iterator[tuple[str, ...]]:
            for record in itertools.islice(treebank.records(split), sizes[split]):
                yield _joined(TaggedSentence(record.words, record.tags))

        return derived

    splits = {split: split_of(split) for split in SPLITS}
    prepared = store.prepare(folder, splits, TaggedSource, progress)
    return Corpus("built-in English parts of speech", prepared, folder)


def check_tagged(data: TaggedConfig) -> None:
    """Raises UserError if a file is missing or not as `read_conll` expects it, or there are no training
    sentences among them."""
    _read(data, [])


def _read(data: TaggedConfig, notes: list[str]) -> dict[str, list[TaggedSentence]]:
    """The sentences of the files of each split. `notes` as of `read_conll`."""
    paths = {split: path for split in SPLITS if (path := getattr(data, split))}
    if paths and not data.train:
        raise UserError("no training sentences: give --data.train")
    sentences = {
        split: read_conll(path, data.word_column, data.label_column, notes) for split, path in paths.items()
    }
    refuse_bad_lines()
    for split, some in sentences.items():
        if not some:
            raise UserError(f"{paths[split]} is empty: there is no sentence in it")
    return sentences


def _files(data: TaggedConfig, progress: Progress) -> Corpus:
    notes = list[str]()
    sentences = _read(data, notes)
    if "validation" not in sentences:
        notes.append(HELD_OUT_NOTE)
        train = sentences["train"]
        rest = len(train) - max(1, round(HELD_OUT * len(train)))
        if not rest:
            raise UserError(
                f"{data.train} has one sentence, of which nothing can be held out: give --data.validation"
            )
        sentences |= {"train": train[:rest], "validation": train[rest:]}
    digest = hashlib.blake2b(repr([(name, list(sentences[name])) for name in sorted(sentences)]).encode())
    folder = corpus_folder(data.cache_dir, "tagged", digest.hexdigest())

    def split_of(split: str) -> Callable[[], Iterator[tuple[str, ...]]]:
        return lambda: map(_joined, sentences[split])

    splits = {split: split_of(split) for split in sentences}
    prepared = store.prepare(folder, splits, TaggedSource, progress)
    return Corpus(str(data.train), prepared, folder, "; ".join(notes))


def _joined(sentence: TaggedSentence) -> tuple[str, ...]:
    return SEPARATOR.join(sentence.words), SEPARATOR.join(sentence.labels)
