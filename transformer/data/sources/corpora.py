"""Corpora of sentence pairs: built-in ones, text files and TFDS translation datasets."""

import functools
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from transformer.config.corpus import LANGUAGES, SPLITS, TABULAR, DataConfig, text_suffix
from transformer.data import built_in
from transformer.data.built_in import (
    conversations,
    copying,
    opinions,
    pronouns,
    reports,
    spoken,
    stories,
    topics,
    treebank,
)
from transformer.data.sources.context import first_pairs, pairs_in_context
from transformer.data.sources.directions import both_ways, in_turns
from transformer.data.sources.exchange import check_opens
from transformer.data.sources.own_text import corpus_in_shards, files_by_split, form_of, text_corpus
from transformer.data.sources.source import HELD_OUT, Source
from transformer.data.sources.tables import record_of
from transformer.data.sources.text_files import read_lines
from transformer.data.sources.tfds_sets import tfds_folder, tfds_rows, tfds_splits
from transformer.data.store import Corpus, Pair, Progress, TextRecord, silent
from transformer.runtime.errors import UserError
from transformer.runtime.text import is_invisible

TABLES: dict[str, tuple[str, ModuleType]] = {
    "reports": ("built-in reports with summaries", reports),
    "stories": ("built-in stories with questions", stories),
    "conversations": ("built-in conversations with replies", conversations),
    "opinions": ("built-in opinions with sentiments", opinions),
    "topics": ("built-in documents with topics", topics),
    "treebank": ("built-in sentences with trees", treebank),
}
"""Built-in corpora whose records have named parts: display name, and the module that generates them."""
DOCUMENTS: dict[str, tuple[str, ModuleType]] = {
    "pronouns": ("built-in passages whose pronouns need context", pronouns),
}
"""Built-in corpora whose pairs are in documents: as `TABLES`. A pair without text ends a document."""


class BuiltIn(NamedTuple):
    """A built-in corpus of pairs."""

    name: str
    """The name of the corpus for people."""
    version: int
    """Of its text, which the names of its folders have: whoever changes what a module generates raises its
    `VERSION`. `tests/test_versions.py` notices a change."""
    pairs: Callable[..., Iterator[Pair]]


BUILT_IN: dict[str, BuiltIn] = {
    "built-in": BuiltIn("built-in English-German", built_in.VERSION, built_in.pairs),
    **{
        f"dialogue-{code}": BuiltIn(
            f"built-in dialogues in {language}",
            copying.DIALOGUE_VERSION,
            functools.partial(copying.dialogue_pairs, code),
        )
        for code, language in (("en", "English"), ("zh", "Chinese"))
    },
    **{
        task: BuiltIn(
            f"built-in {task.replace('-', ' ')}",
            copying.POINTING_VERSION,
            functools.partial(copying.pointing_pairs, task),
        )
        for task in copying.TASKS
    },
    "spelling": BuiltIn("built-in spelled digits", spoken.SPELLING_VERSION, spoken.spelled_pairs),
    "pronunciation": BuiltIn(
        "built-in pronounced numbers", spoken.PRONUNCIATION_VERSION, spoken.pronounced_pairs
    ),
    **{
        name: BuiltIn(title, module.VERSION, module.pairs)
        for name, (title, module) in (TABLES | DOCUMENTS).items()
    },
}


def open_corpus(data: DataConfig, progress: Progress = silent) -> Corpus:
    """The corpus of the config, prepared on first use.

    Args:
      data: which corpus.
      progress: shows the progress.

    Raises:
      UserError: files are missing, empty, not UTF-8 or of unequal length (the message names file and line);
        the dataset is unknown, or cannot be downloaded.
    """
    check_text(data)
    if data.pairs_of_a_shard:
        return corpus_in_shards(data, progress)
    if data.has_files:
        return text_corpus(data, progress).open(data.cache_dir, progress)
    if data.dataset in BUILT_IN:
        return _built_in(data).open(data.cache_dir, progress)
    if data.directions:
        raise UserError(f"--data.directions: {data.dataset} has one; give text files")
    splits, identity = (tfds_rows if data.has_columns else tfds_splits)(data, SPLITS)
    folder = tfds_folder(data, "tfds", identity, splits, lambda pair: any(map(is_invisible, pair[:2])))
    return Corpus(data.dataset, splits, folder)


# Built-in


def _built_in(data: DataConfig) -> Source:
    sizes = {"train": data.built_in_size, "validation": HELD_OUT, "test": HELD_OUT}
    if data.built_in_size < 1:
        raise UserError("--data.built-in-size must be at least 1")
    name, version, pairs = BUILT_IN[data.dataset]
    _check_columns_and_directions(data)
    columns = [repr((data.task, data.inputs, data.target, data.group))] if data.has_columns else []
    context = [f"context {data.context}"] * bool(data.context)
    generate = functools.partial(_rows, data) if data.has_columns else pairs

    def read(split: str) -> Iterator[Any]:
        def first() -> Iterator[Any]:
            return first_pairs(generate(seed=0, split=split), sizes[split])

        records = both_ways(data, first) if data.directions else first()
        if data.dataset in DOCUMENTS:
            records = pairs_in_context(records, data.context)
        return in_turns(records) if data.directions and split != "train" else records

    key = sizes, *data.directions, *columns, *context
    return Source(name, form_of(data), f"{data.dataset}-v{version}", key, read)


def _check_columns_and_directions(data: DataConfig) -> None:
    """Raises UserError if a built-in corpus has not the columns or the directions of the options."""
    if data.has_columns and data.dataset not in TABLES:
        raise UserError(
            f"--data.inputs, --data.target: {data.dataset} has no named columns, only sources and targets; "
            "leave them out"
        )
    languages = LANGUAGES.get(data.dataset, (None, None))
    for direction in data.pairs:
        if direction not in (languages, languages[::-1]) or len(set(languages)) < 2:
            raise UserError(
                f"--data.directions {':'.join(direction)}: corpus {data.dataset} has no such direction; give "
                "text files, such as --data.train-source train.{source} --data.train-target train.{target}"
            )


def _rows(data: DataConfig, seed: int, split: str) -> Iterator[TextRecord]:
    """The records of a built-in corpus whose parts are named."""
    _, module = TABLES[data.dataset]
    return (record_of(record._asdict(), data) for record in module.records(split, seed))


def check_text(data: DataConfig) -> None:
    """Raises UserError if text files are missing, or their options are inconsistent."""
    data.check_files()
    if data.context and not data.has_files and data.dataset not in DOCUMENTS:
        raise UserError(
            f"--data.context: the sentences of {data.dataset} are in no documents; give text files, or "
            f"--data.dataset {' or '.join(DOCUMENTS)}"
        )
    files = files_by_split(data)
    for path in itertools.chain.from_iterable(files.values()):
        next(read_lines(path), None) if text_suffix(path).lower() not in TABULAR else check_opens(path)
    if files and "train" not in files:
        raise UserError(
            "no training text: give --data.train-source and --data.train-target, --data.train-tsv, or "
            "--data.train"
        )
