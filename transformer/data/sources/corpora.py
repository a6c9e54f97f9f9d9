"""Corpora of sentence pairs: built-in ones, text files, also of several directions, and TFDS translation
datasets."""

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from transformer.config.corpus import LANGUAGES, DataConfig
from transformer.config.records import TextsConfig
from transformer.data import built_in, store
from transformer.data.built_in import (
    conversations,
    dialogue,
    opinions,
    pointing,
    pronouns,
    reports,
    spelling,
    spoken,
    stories,
    topics,
    treebank,
)
from transformer.data.epochs import shares
from transformer.data.sources.context import first_pairs, pairs_in_context, sentence_of
from transformer.data.sources.held_out import HELD_OUT, held_out
from transformer.data.sources.tables import read_table, record_of
from transformer.data.sources.text_files import (
    Direction,
    read_directed,
    read_lines,
    read_pairs,
    read_tsv,
    refuse_bad_lines,
    visible,
)
from transformer.data.sources.tfds_sets import tfds_rows, tfds_splits
from transformer.data.store import Corpus, DirectedPair, Pair, Progress, Records, silent
from transformer.runtime.errors import UserError
from transformer.runtime.files import cache_root, read_text, write_whole
from transformer.runtime.text import is_invisible

# Corpora of several directions, whose files are named by their languages. Records are `DirectedPair`s.


PLACEHOLDERS = ("{source}", "{target}")
"""What stands for them in the names of files."""
NOTED = 8  # directions whose sizes are shown


def of_direction(data: DataConfig, direction: Direction) -> DataConfig:
    """The options of one of the directions, with its languages in the names of its files."""
    names = {
        name: Path(_named(str(path), direction))
        for split in ("train", "validation", "test")
        for kind in ("source", "target", "tsv")
        if (path := getattr(data, name := f"{split}_{kind}")) is not None
    }
    return replace(data, directions=(), temperature=1.0, **names)  # type: ignore[arg-type]


def has_columns(data: DataConfig, split: str) -> bool:
    """Whether a split is one file, in which columns name the languages.

    Raises:
      UserError: it has the same two files for all directions.
    """
    source, target, tsv = (getattr(data, f"{split}_{kind}") for kind in ("source", "target", "tsv"))
    if tsv is None and source and target and not (_has_placeholder(source) or _has_placeholder(target)):
        raise UserError(
            f"--data.{split}-source {source}: write {{source}} and {{target}} where the names of the files "
            f"have the languages of --data.directions, such as {split}.{{source}}"
        )
    return tsv is not None and not _has_placeholder(tsv)


def _has_placeholder(path: Path) -> bool:
    return any(placeholder in str(path) for placeholder in PLACEHOLDERS)


def _named(name: str, direction: Direction) -> str:
    for placeholder, language in zip(PLACEHOLDERS, direction, strict=True):
        name = name.replace(placeholder, language)
    return name


def directed(pairs: Iterable[Pair], direction: Direction) -> Iterator[DirectedPair]:
    """Pairs, with their languages."""
    return (DirectedPair(source, target, *direction) for source, target in pairs)


def in_turns(records: Iterable[DirectedPair]) -> Iterator[DirectedPair]:
    """One record of each direction after the other, so that the first ones are of all directions."""
    by_direction: dict[Direction, list[DirectedPair]] = {}
    for record in records:
        by_direction.setdefault(record[2:], []).append(record)
    for turn in itertools.zip_longest(*by_direction.values()):
        yield from filter(None, turn)


def both_ways(data: DataConfig, pairs: Callable[[], Iterator[Pair]]) -> Callable[[], Iterator[DirectedPair]]:
    """The pairs of a built-in corpus, in the directions of the options.

    Raises:
      UserError: it has not their languages.
    """
    languages = LANGUAGES.get(data.dataset, (None, None))
    for direction in data.pairs:
        if direction not in (languages, languages[::-1]) or len(set(languages)) < 2:
            raise UserError(
                f"--data.directions {':'.join(direction)}: corpus {data.dataset} has no such direction; give "
                "text files, such as --data.train-source train.{source} --data.train-target train.{target}"
            )

    def read() -> Iterator[DirectedPair]:
        for direction in data.pairs:
            swapped = direction != languages
            some = ((target, source) for source, target in pairs()) if swapped else pairs()
            yield from directed(some, direction)

    return read


def counting(records: Iterable[DirectedPair], counts: Counter[Direction]) -> Iterator[DirectedPair]:
    """The records, which are counted by direction."""
    for record in records:
        counts[record[2:]] += 1
        yield record


def described(counts: Mapping[Direction, int], temperature: float) -> str:
    """The sizes and shares of the directions, for people."""
    sizes = zip(counts.items(), shares(list(counts.values()), temperature), strict=True)
    named = [
        f"{source} to {target} {count:,} ({share:.1%})"
        for ((source, target), count), share in itertools.islice(sizes, NOTED)
    ]
    if more := len(counts) - len(named):
        named.append(f"{more} more")
    return f"pairs and shares by direction: {', '.join(named)}"


Parts = dict[str, Callable[[], Iterator[Any]]]
"""What reads each split."""
SPLITS = ("train", "validation", "test")
HELD_OUT_NOTE = "no validation text was given: a part of the training text, always the same, is held out"


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
    """For people."""
    version: int
    """Of its text, which the names of its folders have: whoever changes what a module generates raises its
    `VERSION`. `tests/test_versions.py` notices a change."""
    pairs: Callable[..., Iterator[Pair]]


BUILT_IN: dict[str, BuiltIn] = {
    "built-in": BuiltIn("built-in English-German", built_in.VERSION, built_in.pairs),
    **{
        f"dialogue-{code}": BuiltIn(
            f"built-in dialogues in {language}", dialogue.VERSION, functools.partial(dialogue.pairs, code)
        )
        for code, language in (("en", "English"), ("zh", "Chinese"))
    },
    **{
        task: BuiltIn(
            f"built-in {task.replace('-', ' ')}", pointing.VERSION, functools.partial(pointing.pairs, task)
        )
        for task in pointing.TASKS
    },
    "spelling": BuiltIn("built-in spelled digits", spelling.VERSION, spelling.pairs),
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
    if data.has_files:
        return _text_files(data, progress)
    if data.dataset in BUILT_IN:
        return _built_in(data, progress)
    if data.directions:
        raise UserError(f"--data.directions: {data.dataset} has one; give text files")
    splits, identity = (tfds_rows if data.has_columns else tfds_splits)(data, SPLITS)
    folder = tfds_folder(data, "tfds", identity, splits, lambda pair: any(map(is_invisible, pair[:2])))
    return Corpus(data.dataset, splits, folder)


def corpus_folder(cache_dir: Path | None, kind: str, *parts: object) -> Path:
    """The folder of a prepared corpus, named after what it is made from."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
    return cache_root(cache_dir) / "corpora" / f"{kind}-{digest}"


def built_in_folder(cache_dir: Path | None, kind: str, version: int, *parts: object) -> Path:
    """The folder of a built-in corpus, named after the version of its generator, and what that is given."""
    return corpus_folder(cache_dir, f"{kind}-v{version}", *parts)


def tfds_folder(
    data: DataConfig | TextsConfig,
    kind: str,
    identity: object,
    splits: Mapping[str, Records],
    is_invisible: Callable[[Any], bool],
) -> Path:
    """The folder of a TFDS corpus, which is not hashed as text files are. Invisible records are counted once:
    with some it is another folder than without, so that no run that was trained on them is resumed.

    Args:
      data: with the cache folder.
      kind: of the corpus.
      identity: of the dataset.
      splits: its records.
      is_invisible: whether a record has a line that is not empty, but is read as if it were.

    Raises:
      UserError: the count cannot be stored.
    """
    folder = corpus_folder(data.cache_dir, kind, identity)
    count_file = folder / "invisible"
    try:
        count = int(read_text(count_file))
    except (OSError, ValueError):
        count = sum(map(is_invisible, itertools.chain.from_iterable(splits.values())))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(count_file, f"{count}\n")
        except OSError as error:
            raise UserError(f"cannot write {count_file}: {error.strerror}; see --data.cache-dir") from error
    return corpus_folder(data.cache_dir, kind, identity, "invisible") if count else folder


def _built_in(data: DataConfig, progress: Progress) -> Corpus:
    sizes = {"train": data.built_in_size, "validation": HELD_OUT, "test": HELD_OUT}
    if data.built_in_size < 1:
        raise UserError("--data.built-in-size must be at least 1")
    name, version, pairs = BUILT_IN[data.dataset]
    columns = [repr((data.task, data.inputs, data.target, data.group))] if data.has_columns else []
    context = [f"context {data.context}"] * bool(data.context)
    of_data = *data.directions, *columns, *context
    folder = built_in_folder(data.cache_dir, data.dataset, version, sizes, *of_data)
    records = _rows(data) if data.has_columns else pairs

    def split(name: str) -> Callable[[], Iterator[Any]]:
        return lambda: first_pairs(records(seed=0, split=name), sizes[name])

    parts: Parts = {name: split(name) for name in SPLITS}
    if data.directions:
        parts = {name: both_ways(data, split(name)) for name in SPLITS}
    if data.dataset in DOCUMENTS:
        parts = {name: _in_context(part, data) for name, part in parts.items()}
    if data.directions:
        parts = _alternating(parts)
    prepared = store.prepare(folder, parts, _kind(data), progress)
    return Corpus(name, prepared, folder)


def _rows(data: DataConfig) -> Callable[..., Iterator[store.TextRecord]]:
    """What yields the records of a built-in corpus whose parts are named.

    Raises:
      UserError: its parts have no names.
    """
    if data.dataset not in TABLES:
        raise UserError(
            f"--data.inputs, --data.target: {data.dataset} has no named columns, only sources and targets; "
            "leave them out"
        )
    _, module = TABLES[data.dataset]

    def records(seed: int, split: str) -> Iterator[store.TextRecord]:
        for record in module.records(split, seed):
            yield record_of(record._asdict(), data)

    return records


def _kind(data: DataConfig) -> type[store.Stored]:
    if data.has_columns:
        return store.TextRecordSource
    return store.DirectedSource if data.directions else store.PairSource


def _in_context(read: Callable[[], Iterator[Any]], data: DataConfig) -> Callable[[], Iterator[Any]]:
    """A reader of pairs, of which each source is read after those before it."""
    return lambda: pairs_in_context(read(), data.context)


def _alternating(parts: Parts) -> Parts:
    """Splits of which all but the one of training have a pair of each direction in turns."""

    def alternating(read: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
        return lambda: in_turns(read())

    return {split: read if split == "train" else alternating(read) for split, read in parts.items()}


def check_text(data: DataConfig) -> None:
    """Raises UserError if text files are missing, or their options are inconsistent."""
    if data.context and not data.has_files and data.dataset not in DOCUMENTS:
        raise UserError(
            f"--data.context: the sentences of {data.dataset} are in no documents; give text files, or "
            f"--data.dataset {' or '.join(DOCUMENTS)}"
        )
    readers = {split: _reader(data, split) for split in SPLITS}
    for split in filter(readers.get, SPLITS):
        for path in _files(data, split):
            next(read_lines(path), None)
    if any(readers.values()) and not readers["train"]:
        raise UserError(
            "no training text: give --data.train-source and --data.train-target, --data.train-tsv, or "
            "--data.train"
        )


def holds_out(data: DataConfig) -> bool:
    """Whether part of the training text is held out for validation, since no validation text is given."""
    return _reader(data, "train") is not None and _reader(data, "validation") is None


def _text_files(data: DataConfig, progress: Progress) -> Corpus:
    check_text(data)
    further = set[str]()  # columns of further references that a row has
    readers = {split: _reader(data, split, further) for split in SPLITS}
    split_readers = {split: reader for split, reader in readers.items() if reader}
    counts = Counter[Direction]()
    digests = {}
    for split, reader in split_readers.items():
        pairs: Iterable[Any] = progress(f"reading, {split}", reader(), None)
        if data.directions and split == "train":
            pairs = counting(pairs, counts)
        digests[split] = _digest(pairs)
    refuse_bad_lines()
    if missing := [name for name in data.target[1:] if name not in further]:
        raise UserError(f"--data.target: no row has a column {' or '.join(missing)}; leave it out")
    for split, digest in digests.items():
        if digest == _digest([]):
            raise UserError(f"{_files(data, split)[0]} is empty: there is no {split} text in it")
    for source, target in data.pairs:
        if not counts[source, target]:
            raise UserError(
                f"--data.directions {source}:{target}: {_name(data)} has no text of it; leave it out"
            )
    folder = corpus_folder(data.cache_dir, "text", sorted(digests.items()))

    def stored_as_hashed(split: str) -> Callable[[], Iterator[Pair]]:
        return lambda: _checked(split_readers[split](), digests[split], _files(data, split)[0])

    parts: Parts = {split: stored_as_hashed(split) for split in split_readers}
    if holds_out(data):
        parts |= held_out(parts["train"], _files(data, "train")[0], sentence_of if data.context else str)
    notes = [HELD_OUT_NOTE] if holds_out(data) else []
    if data.directions:
        parts = _alternating(parts)
        notes.append(described(counts, data.temperature))
    prepared = store.prepare(folder, parts, _kind(data), progress)
    return Corpus(_name(data), prepared, folder, "; ".join(notes))


def _name(data: DataConfig) -> str:
    """The name of the training text, for people."""
    return str(data.train or data.train_tsv or data.train_source)


def _digest(pairs: Iterable[Any]) -> str:
    """A hash of sentence pairs in their order."""
    digest = hashlib.blake2b()
    for pair in pairs:
        digest.update(repr(tuple(pair)).encode())
    return digest.hexdigest()


def _checked(pairs: Iterable[Any], expected: str, path: Path) -> Iterator[Any]:
    """Yields the pairs. Raises UserError at the end if their hash is not the expected one."""
    digest = hashlib.blake2b()
    for pair in pairs:
        digest.update(repr(tuple(pair)).encode())
        yield pair
    if digest.hexdigest() != expected:
        raise UserError(f"{path}: the text changed while it was read; run the same command again")


def _files(data: DataConfig, split: str) -> list[Path]:
    if data.directions and not has_columns(data, split):
        several = (_files(of_direction(data, direction), split) for direction in data.pairs)
        return list(dict.fromkeys(itertools.chain.from_iterable(several)))
    options = [getattr(data, f"{split}{kind}") for kind in ("", "_tsv", "_source", "_target")]
    return [Path(option) for option in options if option]


def _reader(
    data: DataConfig, split: str, further: set[str] | None = None
) -> Callable[[], Iterator[Any]] | None:
    """A function that reads the split's files, or None if none are given. `further` as of `read_table`."""
    if data.directions:
        return _directed_reader(data, split)
    read = _pair_reader(data, split, further)
    return _in_context(read, data) if read and data.context else read


def _pair_reader(
    data: DataConfig, split: str, further: set[str] | None
) -> Callable[[], Iterator[Any]] | None:
    """As `_reader`, of one direction and without context."""
    if table := getattr(data, split):
        if any(getattr(data, f"{split}_{kind}") for kind in ("source", "target", "tsv")):
            raise UserError(
                f"give either --data.{split} or --data.{split}-tsv, -source and -target, not both"
            )
        return lambda: read_table(table, data, further)
    source, target, tsv = (getattr(data, f"{split}_{kind}") for kind in ("source", "target", "tsv"))
    if tsv and (source or target):
        raise UserError(f"give either --data.{split}-tsv or --data.{split}-source and -target, not both")
    if tsv:
        return lambda: map(visible, read_tsv(tsv))
    if bool(source) != bool(target):
        missing = "target" if source else "source"
        raise UserError(f"--data.{split}-{missing} is missing: sentence pairs need both files")
    return (lambda: map(visible, read_pairs(source, target))) if source else None


def _directed_reader(data: DataConfig, split: str) -> Callable[[], Iterator[store.DirectedPair]] | None:
    """As `_reader`, of several directions."""
    readers = [_reader(of_direction(data, direction), split) for direction in data.pairs]
    if has_columns(data, split):
        read_all = functools.partial(read_directed, getattr(data, f"{split}_tsv"), data.pairs)
        return _in_context(read_all, data) if data.context else read_all
    if None in readers:
        return None

    def read() -> Iterator[store.DirectedPair]:
        for direction, reader in zip(data.pairs, filter(None, readers), strict=True):
            yield from directed(reader(), direction)

    return read
