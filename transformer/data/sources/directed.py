"""Corpora of several directions, whose files are named by their languages. Records are `DirectedPair`s."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from transformer.config import DataConfig
from transformer.config.corpus import LANGUAGES
from transformer.data.sources.text_files import Direction
from transformer.data.store import DirectedPair, Pair
from transformer.data.temperature import shares
from transformer.runtime.errors import UserError

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
