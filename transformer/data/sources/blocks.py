"""Text files in blocks of lines. One pass over the files finds where blocks begin, hashes and checks the
text; then any process reads any block alone, and the text is never in memory as a whole."""

import bisect
import functools
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transformer.data.sequences import ends_of, mapped, spans
from transformer.data.sources.text_files import (
    LONGEST_LINE,
    NOT_UTF8,
    OF_PAIRS,
    Direction,
    bad_line,
    other_columns,
    plain,
    read_lines,
    text_of,
    visible,
)
from transformer.data.sources.unusual import Filter, hash_of
from transformer.data.store import AnyPair, DirectedPair, Progress, TextRecord
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import MiB, atomic_open, failing, open_regular

MOST_LINES = 1024  # of a block: read in a millisecond, and few blocks for a billion lines
PARTS = 512  # blocks of a shard, at least, so that it has text from everywhere
_READ = 16 * MiB
_TAB, _END = b"\t\n"


@dataclass(frozen=True)
class Blocks:
    """Where the blocks of a text file begin."""

    path: Path
    file: Path
    """The path, or the copy here of a file that is remote or packed, which other processes read."""
    starts: Int[np.ndarray, " blocks_and_one"]
    """In bytes; the last one is the size of the file."""
    lines: int
    """How many the file has."""
    changed: int
    """When it was changed last, in nanoseconds."""
    digest: str
    """A hash of its bytes."""

    def read(self, number: int) -> list[str | None]:
        """The lines of a block; None for one that is not UTF-8.

        Raises:
          UserError: the file has changed since, or cannot be read.
        """
        start, end = (int(x) for x in self.starts[number : number + 2])
        try:
            with open_regular(self.file) as file:
                file.seek(start)
                content = file.read(end - start)
                is_changed = os.fstat(file.fileno()).st_mtime_ns != self.changed
        except OSError as error:
            raise UserError(f"cannot read {self.file}: {error.strerror or error}") from error
        if is_changed or len(content) < end - start:
            raise UserError(f"{self.path}: the text changed while it was read; run the same command again")
        return _lines(content, number == 0)


def _lines(content: bytes, is_first: bool) -> list[str | None]:
    """The lines of a part of a file. None for one that is not UTF-8."""
    content = content.removesuffix(b"\n")
    try:
        lines = content.decode("utf-8-sig" if is_first else "utf-8").split("\n")
    except UnicodeDecodeError:
        return [
            _text(line, 1 if is_first and not index else 2) for index, line in enumerate(content.split(b"\n"))
        ]
    return [line.removesuffix("\r") for line in lines] if b"\r" in content else [*lines]


def _text(line: bytes, number: int) -> str | None:
    try:
        return text_of(line, number)
    except UnicodeDecodeError:
        return None


def located(path: Path, size: int, columns: int) -> Blocks:
    """Reads a text file once.

    Args:
      path: of the file.
      size: lines of a block.
      columns: that each line must have, with tabs between them.

    Raises:
      UserError: it cannot be read, has no line or one longer than 64 MiB; or `bad_line` refuses a line, which
        is not UTF-8 or has other columns.
    """
    digest, starts, lines, position, rest = hashlib.blake2b(), [0], 0, 0, b""
    next(read_lines(path), None)  # the messages of files that cannot be opened or are no text
    copy = plain(path)
    with open_regular(copy) as file:
        changed = os.fstat(file.fileno()).st_mtime_ns
        while read := file.read(_READ):
            digest.update(read)
            content = rest + read
            whole, rest = _at_last_end(content)
            if len(rest) > LONGEST_LINE:
                raise UserError(f"{path}, line {lines + 1}: longer than {LONGEST_LINE // MiB} MiB")
            ends = _check(path, whole, lines, columns)
            first = -(lines + 1) % size  # the line of this part that ends a block
            starts += (position + 1 + ends[first::size]).tolist()
            lines, position = lines + len(ends), position + len(whole)
        if rest:
            _check(path, rest, lines, columns)
            lines, position = lines + 1, position + len(rest)
    if not lines:
        raise UserError(f"{path} is empty: there is no training text in it")
    if starts[-1] != position:
        starts.append(position)
    return Blocks(path, copy, np.array(starts, np.int64), lines, changed, digest.hexdigest())


def _at_last_end(content: bytes) -> tuple[bytes, bytes]:
    """The lines that are whole, and what follows them."""
    end = content.rfind(b"\n") + 1
    return content[:end], content[end:]


def _check(path: Path, content: bytes, before: int, columns: int) -> Int[np.ndarray, " lines"]:
    """Says `bad_line` of lines after so many others. Returns the positions of the line ends."""
    values = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(values == _END)
    is_whole = True
    if columns > 1:
        marks = values[(values == _TAB) | (values == _END)]
        is_whole = len(marks) == columns * len(ends) and bool((marks[columns - 1 :: columns] == _END).all())
    try:
        content.decode()
    except UnicodeDecodeError:
        is_whole = False
    if not is_whole:
        for number, line in enumerate(_lines(content, before == 0), before + 1):
            if line is None:
                bad_line(path, number, NOT_UTF8)
            elif columns > 1 and (count := line.count("\t") + 1) != columns:
                bad_line(path, number, other_columns(count, OF_PAIRS))
    return ends


Files = tuple[Blocks, ...]
"""A file of pairs with a tab in each line, or one for each side."""


@dataclass(frozen=True)
class PairBlocks:
    """The pairs of files, one after the other. A pair of which a line cannot be read has no text, so that
    training leaves it out."""

    files: tuple[Files, ...]
    size: int
    """Lines of a block; the last one of a file may have fewer."""
    chosen: Int[np.ndarray, " blocks"]
    """The blocks that count, in the order of the text."""
    directions: tuple[Direction, ...] = ()
    """The languages of each of the files, if pairs name theirs."""
    groups: tuple[int, ...] = ()
    """The group of each of the files, from 0. Each group has its own shards. None: all are in one."""
    tags: tuple[str, ...] = ()
    """The tag of each group, if pairs have one."""
    held_out: frozenset[str] = frozenset()
    """Sources of the validation: pairs with one of them have no text."""
    repeated: Path | None = None
    """A file that says of each pair of the text whether it was there before. None: this is not asked."""

    @functools.cached_property
    def _firsts(self) -> Int[np.ndarray, " files"]:
        """The number of the first block of each file."""
        return ends_of([len(first.starts) - 1 for first, *_ in self.files])[:-1]

    @functools.cached_property
    def _sizes(self) -> Int[np.ndarray, " blocks"]:
        """The lines of each block of the files."""
        lines = (np.arange(len(first.starts) - 1) * self.size for first, *_ in self.files)
        ends = zip(lines, self.files, strict=True)
        return np.concatenate([np.minimum(self.size, first.lines - before) for before, (first, *_) in ends])

    @functools.cached_property
    def _ends(self) -> Int[np.ndarray, " blocks"]:
        return np.cumsum(self._sizes[self.chosen])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.chosen) else 0

    @property
    def numbers(self) -> Int[np.ndarray, " pairs"]:
        """Of the pairs in the files, from 0."""
        return spans(ends_of(self._sizes)[self.chosen], self._sizes[self.chosen])

    def of(self, chosen: Int[np.ndarray, " blocks"]) -> "PairBlocks":
        """Of these blocks alone."""
        return replace(self, chosen=np.sort(chosen))

    def by_group(self) -> "list[PairBlocks]":
        """The blocks of each group of files."""
        if not self.groups:
            return [self]
        groups = np.array(self.groups)[np.searchsorted(self._firsts, self.chosen, side="right") - 1]
        return [self.of(self.chosen[groups == group]) for group in range(max(self.groups) + 1)]

    def blocks(self) -> Iterator[list[AnyPair]]:
        """Yields the pairs of each block."""
        return (self._read(int(number)) for number in self.chosen)

    def filtered(self, rules: Filter) -> Iterator[list[AnyPair]]:
        """As `blocks`; a pair that is left out has no text."""
        marks = np.zeros(0, bool) if self.repeated is None else mapped(self.repeated)
        firsts = ends_of(self._sizes)
        for number, pairs in zip(self.chosen.tolist(), self.blocks(), strict=True):
            keeps = list(map(rules.keeps, pairs))
            if len(marks):
                rules.leave_repeated(pairs, keeps, marks[firsts[number] : firsts[number + 1]].tolist())
            yield [pair if is_kept else _emptied(pair) for pair, is_kept in zip(pairs, keeps, strict=True)]

    def __iter__(self) -> Iterator[AnyPair]:
        for pairs in self.blocks():
            yield from pairs

    def __getitems__(self, indices: Sequence[int]) -> list[AnyPair]:
        """The pairs with these numbers. A block is read once for numbers that follow each other."""
        read = functools.lru_cache(maxsize=1)(self._read)
        pairs = list[AnyPair]()
        for index in indices:
            where = bisect.bisect_right(self._ends, index)
            before = int(self._ends[where - 1]) if where else 0
            pairs.append(read(int(self.chosen[where]))[index - before])
        return pairs

    def _read(self, number: int) -> list[AnyPair]:
        where = bisect.bisect_right(self._firsts, number) - 1
        first, *other = (file.read(number - int(self._firsts[where])) for file in self.files[where])
        if other:
            pairs = [("", "") if None in pair else visible(pair) for pair in zip(first, *other, strict=True)]
        else:
            columns = ((line or "").split("\t") for line in first)
            pairs = [visible((pair[0], pair[1])) if len(pair) == 2 else ("", "") for pair in columns]
        if self.held_out:
            sides = 2 if self.directions else 1  # with several directions it is no target of training either
            pairs = [("", "") if self.held_out.intersection(pair[:sides]) else pair for pair in pairs]
        if self.tags:
            return [TextRecord(*pair, group=self.tags[self.groups[where]]) for pair in pairs]
        if not self.directions:
            return [*pairs]
        return [DirectedPair(*pair, *self.directions[where]) for pair in pairs]

    def dealt(self, shard_pairs: int) -> "list[PairBlocks]":
        """The blocks dealt to shards of about so many pairs, at random but always in the same way, so that
        each shard has text from everywhere."""
        count = -(-len(self) // shard_pairs)
        order = np.random.default_rng(0).permutation(self.chosen)
        return [self.of(blocks) for blocks in np.array_split(order, min(count, len(order)))]


def _emptied(pair: AnyPair) -> AnyPair:
    """A pair without text."""
    return pair._replace(source="", target="") if isinstance(pair, DirectedPair | TextRecord) else ("", "")


def pair_blocks(
    paths: Sequence[Sequence[Path]],
    shard_pairs: int,
    directions: Sequence[Direction] = (),
    groups: Sequence[int] = (),
) -> PairBlocks:
    """Reads files of pairs once, several at a time.

    Args:
      paths: for each part of the text, one file with a tab in each line, or one for each side.
      shard_pairs: how many pairs a shard has.
      directions: the languages of each part, if there are several.
      groups: the group of each part, if there are several.

    Raises:
      UserError: as `located`; or two files have different numbers of lines.
    """
    size = max(1, min(MOST_LINES, shard_pairs // PARTS))
    with ThreadPoolExecutor() as threads:  # each counts bad lines in this context
        passes = [
            [
                threads.submit(copy_context().run, located, path, size, 2 if len(part) == 1 else 1)
                for path in part
            ]
            for part in paths
        ]
        files = tuple(tuple(future.result() for future in part) for part in passes)
    for source, *other in files:
        if other and source.lines != other[0].lines:
            target = other[0]
            raise UserError(
                f"{source.path} has {counted(source.lines, 'line')} and {target.path} has {target.lines:,}: "
                "line i of one must translate line i of the other "
                f"(line {min(source.lines, target.lines) + 1} has no partner)"
            )
    count = sum(len(source.starts) - 1 for source, *_ in files)
    return PairBlocks(files, size, np.arange(count), tuple(directions), tuple(groups))


HASHES = 2**24  # pairs whose hashes are sorted at a time


def marked(pairs: PairBlocks, path: Path, progress: Progress) -> Path:
    """A file that says of each pair whether it was there before, written once. Meanwhile eight bytes of a
    hash of each are on disk, and sorted in parts.

    Args:
      pairs: of the text.
      path: of the file, whose name ends with .bool.
      progress: shows the progress.

    Raises:
      UserError: it cannot be written.
    """
    if path.exists() and path.stat().st_size == len(pairs):  # else it is damaged
        return path
    with (
        failing(f"cannot write {path}", "; see --data.cache-dir"),
        tempfile.TemporaryFile(dir=path.parent) as file,
        atomic_open(path) as written,
    ):
        for block in progress("hashing, blocks of pairs", pairs.blocks(), len(pairs.chosen)):
            file.write(b"".join(map(hash_of, block)))
        file.flush()
        hashes = np.memmap(file, np.uint64, "r")
        marks = np.zeros(len(pairs), bool)
        parts = -(-len(pairs) // HASHES)
        for part in range(parts):
            where = np.flatnonzero(hashes % parts == part)
            order = np.argsort(hashes[where], kind="stable")
            ascending = hashes[where[order]]
            marks[where[order[1:][ascending[1:] == ascending[:-1]]]] = True
        written.write(marks.tobytes())
    return path
