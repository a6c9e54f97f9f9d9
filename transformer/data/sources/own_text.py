"""A corpus of text files: what is held out, filtered and hashed; as a whole, or in shards."""

import functools
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config.corpus import SPLITS, DataConfig
from transformer.config.pairs import noise_of
from transformer.data.sources.blocks import marked, pair_blocks
from transformer.data.sources.context import pairs_in_context, sentence_of
from transformer.data.sources.directions import (
    by_direction,
    directed,
    has_columns,
    in_turns,
    mix_in_words,
    of_corpus,
    of_direction,
    shares_in_words,
)
from transformer.data.sources.noise import Noise
from transformer.data.sources.source import HELD_OUT, HELD_OUT_NOTE, Source
from transformer.data.sources.tables import as_text, read_table
from transformer.data.sources.text_files import (
    Direction,
    matching,
    read_directed,
    read_pairs,
    read_tsv,
    refuse_bad_lines,
    visible,
)
from transformer.data.sources.unusual import Filter
from transformer.data.store import (
    DIRECTED,
    PAIRS,
    TEXT_RECORDS,
    AnyPair,
    Corpus,
    DirectedPair,
    Form,
    Progress,
    TextRecord,
)
from transformer.runtime.errors import UserError, counted

SHARE = 0.05  # of a training text that is held out


def form_of(data: DataConfig) -> Form:
    """What the records of a corpus are: pairs, pairs with their languages, or texts with named parts."""
    if data.has_columns or any(map(data.by_corpus, SPLITS[1:])):
        return TEXT_RECORDS
    return DIRECTED if data.directions else PAIRS


def text_corpus(data: DataConfig, progress: Progress) -> Source:
    files = files_by_split(data)
    further = set[str]()  # columns of further references that a row has
    counts = Counter[Direction]()
    sizes = Counter[str]()
    digests = _digests(data, list(files), progress, further, counts, sizes)
    if missing := [name for name in data.target[1:] if name not in further]:
        raise UserError(f"--data.target: no row has a column {' or '.join(missing)}; leave it out")
    name = str(data.train or data.train_tsv or data.train_source)
    for source, target in data.pairs:
        if not counts[source, target]:
            raise UserError(f"--data.directions {source}:{target}: {name} has no text of it; leave it out")

    as_hashed = functools.partial(_as_hashed, data, digests)
    splits, notes, held_out = list(files), [], None
    if "validation" not in files:
        splits.append("validation")
        notes.append(HELD_OUT_NOTE)
        held_out = HeldOut(as_hashed("train"), files["train"][0], sentence_of if data.context else str)
    in_shards = not (data.has_tables or data.directions or data.context or data.subword_sampling)
    if sizes["train"] >= LARGE and in_shards:
        notes.append(
            f"a new run with --data.shard-pairs {LARGE} prepares these on all cores, and begins earlier"
        )
    if data.directions:
        notes.append(shares_in_words(counts, data.temperature))

    rules = Filter(data.filters) if data.filter else None
    noise = Noise(noise_of(data.noise), data.seed) if data.noise else None
    if noise:
        notes.append(f"noise in training pairs: {' '.join(data.noise)}")

    def read(split: str) -> Iterator[Any]:
        records = as_hashed("train" if held_out and split == "validation" else split)
        if held_out and split != "test":
            records = filter(held_out.validates if split == "validation" else held_out.trains, records)
        if rules and split == "train":
            records = filter(rules.keeps, records)
        if noise and split == "train":
            records = map(noise, records)
        return in_turns(records) if data.directions and split != "train" else records

    key = (
        sorted(digests.items()),
        *([data.filter_key] if rules else []),
        *([data.noise, data.seed] if noise else []),
    )
    return Source(name, form_of(data), "text", key, read, splits, notes, filter=rules)


LARGE = 1_000_000  # pairs from which shards are worth naming


SAMPLED = 400_000  # pairs of a corpus in shards of which the vocabulary is learned


def corpus_in_shards(data: DataConfig, progress: Progress) -> Corpus:
    """The corpus of text files whose training text is prepared in shards."""
    whole = replace(data, filter=(), noise=(), shard_pairs=0, workers=0, engine="local", exchange=None)
    corpora = [of_corpus(data, name) for name in data.mixed] or [data]
    files = [  # (number of the corpus, direction, the files of a part of its text)
        (number, direction, part)
        for number, of_one in enumerate(corpora)
        for direction, of_data in by_direction(of_one)
        for part in _parts_of(of_data, "train")
    ]
    parts = [part for *_, part in files]
    if data.train:
        parts = [as_text(path, data, progress) for (path,) in parts]
    directions = [direction for _, direction, _ in files if direction]
    groups = [number for number, *_ in files] if data.mix else []
    if data.temperature != 1:
        groups = [data.pairs.index(direction) for direction in directions]
    pairs = pair_blocks(parts, data.pairs_of_a_shard, directions, groups)
    if data.default_tag and data.mix:
        pairs = replace(pairs, tags=data.tags)
    digests = _digests(whole, [split for split in files_by_split(whole) if split != "train"], progress)
    by_name = bool(data.mix and not data.directions and "validation" not in digests)
    form = TEXT_RECORDS if by_name else form_of(data)
    by_group = pairs.by_group()
    sizes = [len(group) for group in by_group]
    notes = [f"noise in training pairs: {' '.join(data.noise)}"] if data.noise else []
    if data.mix:
        notes.append(mix_in_words(data, sizes))
    elif directions:
        counts = Counter[Direction]()
        for direction, (first, *_) in zip(directions, pairs.files, strict=True):
            counts[direction] += first.lines
        notes.append(shares_in_words(counts, data.temperature))

    # as many of each group, whatever its share: other shares have the same vocabulary, and so the same shards
    several = math.ceil(SAMPLED / len(by_group))
    samples = [group.dealt(min(several, len(group))) for group in by_group]
    held_out = list[Any]()
    if "validation" not in digests:
        notes.append(HELD_OUT_NOTE)
        for number, (sample, *_) in enumerate(samples):
            _, _, part = files[groups.index(number) if groups else 0]
            chosen = HeldOut(sample, part[0], str, math.ceil(HELD_OUT / len(samples)))
            records = [pair for pair in sample if chosen.validates(pair)]
            held_out += (_text_record(x, data.mixed[number]) for x in records) if by_name else records
        pairs = replace(pairs, held_out=frozenset(record[0] for record in held_out))

    def read(split: str) -> Iterator[Any]:
        records = _as_hashed(whole, digests, split) if split in digests else iter(held_out)
        if form is TEXT_RECORDS:
            records = map(_text_record, records)
        is_mixed = directions or data.by_corpus(split) or (by_name and split not in digests)
        return in_turns(records) if is_mixed else records

    key = [sorted(digests.items()), [[file.digest for file in part] for part in pairs.files], pairs.size]
    key += [directions] if directions else []
    key += [groups] if groups else []
    key += [pairs.tags] if pairs.tags else []
    key += [data.mixed, sorted(pairs.held_out)] if held_out else []
    name = str(data.train or data.train_tsv or data.train_source)
    corpus = Source(name, form, "shards", key, read, {**digests, "validation": ""}, notes)
    opened = corpus.open(data.cache_dir, progress)
    if "repeated" in data.filters:
        pairs = replace(pairs, repeated=marked(pairs, opened.folder / "repeated.bool", progress))
    splits = {"train": pairs, **opened.splits}
    if len(samples) == 1 and len(samples[0]) == 1:  # it is the whole text
        return replace(opened, splits=splits)
    sample = pairs.of(np.concatenate([first.chosen for first, *_ in samples]))
    return replace(opened, splits=splits, sample=sample)


def _digests(
    data: DataConfig,
    splits: Sequence[str],
    progress: Progress,
    further: set[str] | None = None,
    counts: Counter[Direction] | None = None,
    sizes: Counter[str] | None = None,
) -> dict[str, str]:
    """A hash of the text of each split.

    Args:
      data: names the files.
      splits: those that are read.
      progress: shows the progress.
      further: as of `read_table`.
      counts: gets the number of training pairs of each direction, if there are some.
      sizes: gets the number of records of each split.

    Raises:
      UserError: a line cannot be read, or a split has no text.
    """
    digests = {}
    for split in splits:
        digest = hashlib.blake2b()
        for record in _hashed(progress(f"reading, {split}", _read(data, split, further), None), digest):
            if sizes is not None:
                sizes[split] += 1
            if data.directions and split == "train" and counts is not None:
                counts[record[2:]] += 1
        digests[split] = digest.hexdigest()
    refuse_bad_lines()
    for split, digest_of_split in digests.items():
        if digest_of_split == hashlib.blake2b().hexdigest():
            raise UserError(f"{files_by_split(data)[split][0]} is empty: there is no {split} text in it")
    return digests


def _as_hashed(data: DataConfig, digests: Mapping[str, str], split: str) -> Iterator[Any]:
    """Yields the records of a split. Raises UserError if they are others than before."""
    digest = hashlib.blake2b()
    yield from _hashed(_read(data, split), digest)
    if digest.hexdigest() != digests[split]:
        file = files_by_split(data)[split][0]
        raise UserError(f"{file}: the text changed while it was read; run the same command again")


def _hashed(records: Iterable[Any], digest: Any) -> Iterator[Any]:
    """The records, of which a hash is updated."""
    for record in records:
        digest.update(repr(tuple(record)).encode())
        yield record


class HeldOut:
    """What is held out of a training text: the sources with the smallest hashes, so that no sentence is in
    both parts; with several directions it is no target of training either.

    Args:
      pairs: of the training text.
      path: its file, for messages.
      key: what no two splits share of a source.
      most: how many pairs are held out, about.

    Raises:
      UserError: there are too few different sentences.
    """

    def __init__(
        self, pairs: Iterable[Any], path: Path, key: Callable[[str], str], most: int = HELD_OUT
    ) -> None:
        self._key = key
        hashes = sorted(self._hash(pair[0]) for pair in pairs)
        self._last = hashes[min(most, math.ceil(SHARE * len(hashes))) - 1]
        if self._last == hashes[-1]:
            raise UserError(
                f"{path} has too few different sentences to hold some out for validation: give "
                "--data.validation-source and --data.validation-target, --data.validation-tsv, or "
                "--data.validation"
            )

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(self._key(text).encode(), digest_size=8).digest()

    def validates(self, pair: AnyPair) -> bool:
        """Whether a pair of the training text is in the validation."""
        return self._hash(pair[0]) <= self._last

    def trains(self, pair: AnyPair) -> bool:
        """Whether it is in the training."""
        texts = pair[:2] if isinstance(pair, DirectedPair) else pair[:1]
        return all(self._hash(text) > self._last for text in texts)


def files_by_split(data: DataConfig) -> dict[str, list[Path]]:
    """The files of each split that has some.

    Raises:
      UserError: options of a split exclude each other, or one is missing.
    """
    return {split: files for split in SPLITS if (files := _files_of(data, split))}


def _files_of(data: DataConfig, split: str) -> list[Path]:
    if data.by_corpus(split):
        of_corpora = (_files_of(of_corpus(data, name), split) for name in data.mixed)
        return list(itertools.chain.from_iterable(of_corpora))
    if data.directions and not has_columns(data, split):
        several = (_files_of(of_direction(data, direction), split) for direction in data.pairs)
        return list(dict.fromkeys(itertools.chain.from_iterable(several)))
    return list(itertools.chain.from_iterable(_sides_of(data, split)))


def _text_record(record: AnyPair, corpus: str = "") -> TextRecord:
    """A record of text, of a corpus if there are several."""
    text = record if isinstance(record, TextRecord) else TextRecord(*record[:2])
    return text._replace(group=corpus or text.group)


def _sides_of(data: DataConfig, split: str) -> list[list[Path]]:
    """The files of each side of a split: one side if lines have both.

    Raises:
      UserError: options exclude each other, one is missing, or no file has such a name.
    """
    names = [f"{split}{ending}" for ending in ("", "_tsv", "_source", "_target")]
    table, tsv, source, target = (getattr(data, name) for name in names)
    if table and (tsv or source or target):
        raise UserError(f"give either --data.{split} or --data.{split}-tsv, -source and -target, not both")
    if tsv and (source or target):
        raise UserError(f"give either --data.{split}-tsv or --data.{split}-source and -target, not both")
    if bool(source) != bool(target):
        missing = "target" if source else "source"
        raise UserError(f"--data.{split}-{missing} is missing: sentence pairs need both files")
    options = {name: path for name, path in zip(names, (table, tsv, source, target), strict=True) if path}
    return [matching(path, f"--data.{name.replace('_', '-')}") for name, path in options.items()]


def _parts_of(data: DataConfig, split: str) -> list[tuple[Path, ...]]:
    """The files of each part of a split: one if its lines have both sides, else two. Raises UserError if
    there are more of one side, or files belong to others by their names."""
    sides = _sides_of(data, split)
    if len({len(files) for files in sides}) > 1:
        counts = [len(files) for files in sides]
        raise UserError(
            f"--data.{split}-source names {counted(counts[0], 'file')} and --data.{split}-target "
            f"{counts[1]:,}: file i of one must be the translation of file i of the other, in the order of "
            "their names"
        )
    parts = list(zip(*sides, strict=True))
    names = [_varying(files) for files in sides]
    if len(names) == 2 and {*names[0]} & {*names[1]}:
        for part, first, second in zip(parts, *names, strict=True):
            if first != second:
                raise UserError(
                    f"--data.{split}-source and --data.{split}-target: {part[0]} would be translated by "
                    f"{part[1]}, as files belong together in the order of their names; rename or move one"
                )
    return parts


def _varying(files: Sequence[Path]) -> list[str]:
    """What names have between the beginning and the end that all of them share."""
    names = list(map(str, files))
    for _ in range(2):  # without what they begin with, reversed, twice
        shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
        start = sum(1 for _ in shared)
        names = [name[start:][::-1] for name in names]
    return names


def _read(data: DataConfig, split: str, further: set[str] | None = None) -> Iterator[Any]:
    """The records of the files of a split. `further` as of `read_table`."""
    if data.by_corpus(split):
        corpora = ((name, of_corpus(data, name)) for name in data.mixed)
        return (_text_record(x, name) for name, of_one in corpora for x in _read(of_one, split, further))
    if data.directions and not has_columns(data, split):
        several = (directed(_read(of_direction(data, pair), split), pair) for pair in data.pairs)
        return itertools.chain.from_iterable(several)
    parts = (_read_part(data, split, files, further) for files in _parts_of(data, split))
    return itertools.chain.from_iterable(parts)


def _read_part(
    data: DataConfig, split: str, files: Sequence[Path], further: set[str] | None
) -> Iterator[Any]:
    first, *others = files
    records: Iterator[Any]
    if getattr(data, split):
        records = read_table(first, data, further)
    elif data.directions:
        records = read_directed(first, data.pairs)
    else:
        records = map(visible, read_pairs(first, *others) if others else read_tsv(first))
        if data.has_columns:
            if len(data.input_names) > 1:
                raise UserError(
                    f"{first} has no columns {' and '.join(data.input_names)}: give --data.{split}"
                )
            records = (TextRecord(*pair) for pair in records)
    return pairs_in_context(records, data.context) if data.context else records
