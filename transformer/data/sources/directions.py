"""Several directions, or several corpora, in one: their files, by the languages or names in them, and their
shares. Records of directions are `DirectedPair`s."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config.corpus import LANGUAGES, SPLITS, DataConfig
from transformer.config.pairs import mix_stages
from transformer.data.epochs import shares
from transformer.data.shards import Stage
from transformer.data.sources.text_files import Direction
from transformer.data.store import DirectedPair, Pair, TextRecord
from transformer.runtime.errors import UserError

PLACEHOLDERS = ("{source}", "{target}")
"""What stands for the languages in the names of files."""
NOTED = 8  # directions whose sizes are shown


def of_direction(data: DataConfig, direction: Direction) -> DataConfig:
    """The options of one of the directions, with its languages in the names of its files."""
    names = {
        name: Path(str(path).replace(PLACEHOLDERS[0], direction[0]).replace(PLACEHOLDERS[1], direction[1]))
        for split in ("train", "validation", "test")
        for kind in ("source", "target", "tsv")
        if (path := getattr(data, name := f"{split}_{kind}")) is not None
    }
    return replace(data, directions=(), temperature=1.0, **names)  # type: ignore[arg-type]


def of_corpus(data: DataConfig, corpus: str) -> DataConfig:
    """The options of one of the corpora of --data.mix, with its name in those of its files."""
    names = {
        name: Path(str(path).replace("{corpus}", corpus))
        for split in SPLITS
        for name in (split, *(f"{split}_{kind}" for kind in ("source", "target", "tsv")))
        if (path := getattr(data, name)) is not None
    }
    alone = {"mix": (), "default_tag": None, "workers": 0, "engine": "local", "exchange": None}
    return replace(data, **alone, **names)  # type: ignore[arg-type]


def has_columns(data: DataConfig, split: str) -> bool:
    """Whether a split is one file, in which columns name the languages.

    Raises:
      UserError: it has the same two files for all directions.
    """
    source, target, tsv = (getattr(data, f"{split}_{kind}") for kind in ("source", "target", "tsv"))
    if tsv is None and source and target and not _have_placeholder(source, target):
        raise UserError(
            f"--data.{split}-source {source}: write {{source}} and {{target}} where the names of the files "
            f"have the languages of --data.directions, such as {split}.{{source}}"
        )
    return tsv is not None and not _have_placeholder(tsv)


def _have_placeholder(*paths: Path) -> bool:
    return any(placeholder in str(path) for placeholder in PLACEHOLDERS for path in paths)


def directed(pairs: Iterable[Pair], direction: Direction) -> Iterator[DirectedPair]:
    """Pairs, with their languages."""
    return (DirectedPair(source, target, *direction) for source, target in pairs)


def in_turns(records: Iterable[DirectedPair | TextRecord]) -> Iterator[DirectedPair | TextRecord]:
    """One record of each direction, or of each group, after the other, so that the first ones are of all."""
    parts: dict[Any, list[DirectedPair | TextRecord]] = {}
    for record in records:
        parts.setdefault(record.group if isinstance(record, TextRecord) else record[2:], []).append(record)
    for turn in itertools.zip_longest(*parts.values()):
        yield from filter(None, turn)


def both_ways(data: DataConfig, pairs: Callable[[], Iterable[Pair]]) -> Iterator[DirectedPair]:
    """The pairs of a built-in corpus, in the directions of the options."""
    for direction in data.pairs:
        swapped = direction != LANGUAGES[data.dataset]
        yield from directed((pair[::-1] if swapped else pair for pair in pairs()), direction)


def shares_in_words(counts: Mapping[Direction, int], temperature: float) -> str:
    """The sizes and shares of the directions, for people."""
    sizes = zip(counts.items(), shares(list(counts.values()), temperature), strict=True)
    named = [
        f"{source} to {target} {count:,} ({share:.1%})"
        for ((source, target), count), share in itertools.islice(sizes, NOTED)
    ]
    if more := len(counts) - len(named):
        named.append(f"{more} more")
    return f"pairs and shares by direction: {', '.join(named)}"


def group_shares(data: DataConfig, sizes: Sequence[int]) -> list[Stage]:
    """The shares of groups of pairs, which have their shards, from each update on: of the corpora of
    --data.mix, or of directions with a temperature.

    Args:
      data: the options.
      sizes: how many pairs each group has.
    """
    if not data.mix:
        return [Stage(0, shares(sizes, data.temperature))]
    weights = [
        (stage.start, np.array([stage.weights.get(name, 0) for name in data.mixed]))
        for stage in mix_stages(data.mix)
    ]
    return [Stage(start, of_stage / of_stage.sum()) for start, of_stage in weights]


def mix_in_words(data: DataConfig, sizes: Sequence[int]) -> str:
    """The sizes and shares of corpora, for people."""
    named = [f"{name} {size:,}" for name, size in zip(data.mixed, sizes, strict=True)]
    several = group_shares(data, sizes)
    shares_of = [
        f"from update {start:,} " * bool(start) + " : ".join(f"{share:.1%}" for share in of_stage)
        for start, of_stage in several
    ]
    return f"pairs by corpus: {', '.join(named)}; shares of training pairs: {', '.join(shares_of)}"


def by_direction(data: DataConfig) -> list[tuple[Direction | None, DataConfig]]:
    """The options of each direction, or of all pairs if they name none. Raises UserError if columns of one
    file name them."""
    if not data.directions:
        return [(None, data)]
    if has_columns(data, "train"):
        raise UserError(
            "--data.shard-pairs: name a file for each of the --data.directions, such as --data.train-source "
            "train.{source} --data.train-target train.{target}"
        )
    return [(direction, of_direction(data, direction)) for direction in data.pairs]
