"""Examples as flat arrays, in memory or in files: the values of all sequences one after the other, and where
each ends."""

import contextlib
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped
from numpy.typing import ArrayLike

from transformer.runtime.errors import UserError
from transformer.runtime.files import MiB, folder_whole, parse_object, read_text

Example = Mapping[str, Any]
"""One array, or list of numbers, for each field of a batch."""


@dataclass(frozen=True)
class Field:
    """One array of every example, which a batch stacks as `[rows, ...]`."""

    dtype: str = "int32"
    fill: float = 0
    """The value of padding."""
    shape: tuple[int, ...] = ()
    """Of one element if it is a sequence, otherwise of the whole."""
    padded: bool = True
    """Whether the first axis is a sequence. Sequences are padded, and their lengths plan the batches."""
    share: float = 1.0
    """Of a sequence that decoding reads: its padded length in a bucket of the search, as a share of that."""
    most: int | None = None
    """Of such a sequence: the padded length that is enough in every bucket. None: it has no bound."""


Fields = Mapping[str, Field]


def sides(fields: Fields) -> list[str]:
    """The names of the sequences."""
    return [name for name, field in fields.items() if field.padded]


def length_in_search(example: Example, fields: Fields) -> int:
    """The length of the shortest bucket of a search that holds all sequences of an example; 1 if it has
    none."""
    return max((math.ceil(len(example[name]) / fields[name].share) for name in sides(fields)), default=1)


def lengths_in_search(fields: Fields, bucket: int) -> dict[str, int]:
    """The padded length of each sequence in a bucket of a search."""
    lengths = {name: math.ceil(bucket * fields[name].share) for name in sides(fields)}
    return {name: min(length, fields[name].most or length) for name, length in lengths.items()}


@dataclass(frozen=True)
class Sequences:
    """Sequences, one after the other."""

    values: Shaped[np.ndarray, "elements ..."]
    ends: Int[np.ndarray, " sequences_and_one"]
    """Where each ends in the values, after a 0."""

    @classmethod
    def of(cls, several: Several[Any], field: Field) -> "Sequences":
        """The sequences of a list of arrays, or of lists of numbers."""
        ends = ends_of([len(sequence) for sequence in several])
        if not field.shape and all(type(sequence) is list for sequence in several):
            numbers = itertools.chain.from_iterable(several)
            return cls(np.fromiter(numbers, field.dtype, int(ends[-1])), ends)
        parts = [np.asarray(sequence, field.dtype) for sequence in several if len(sequence)]
        return cls(np.concatenate(parts) if parts else np.zeros((0, *field.shape), field.dtype), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> Shaped[np.ndarray, "elements ..."]:
        return self.values[self.ends[index] : self.ends[index + 1]]

    def sizes(self, chosen: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The lengths of some of them."""
        sizes: np.ndarray = self.ends[chosen + 1] - self.ends[chosen]
        return sizes

    def joined(self, chosen: Int[np.ndarray, " n"]) -> Shaped[np.ndarray, "elements ..."]:
        """The values of some of them, one after the other."""
        return self.values[spans(self.ends[chosen], self.sizes(chosen))]

    def take(self, chosen: Int[np.ndarray, " n"]) -> "Sequences":
        """The sequences of the given numbers."""
        return Sequences(self.joined(chosen), ends_of(self.sizes(chosen)))

    def after(self, firsts: Shaped[np.ndarray, "n ..."]) -> "Sequences":
        """The sequences, each after one more element in front of it."""
        values = np.insert(self.values, self.ends[:-1], firsts, axis=0)
        return Sequences(values, self.ends + np.arange(len(self.ends)))


Arrays = Mapping[str, Sequences | np.ndarray]
"""Many examples: the sequences of each field, or its array `[examples, ...]`."""


def arrays_of(examples: Several[Example], fields: Fields) -> Arrays:
    """Examples as flat arrays."""
    arrays: dict[str, Sequences | np.ndarray] = {}
    for name, field in fields.items():
        several = [example[name] for example in examples]
        if field.padded:
            arrays[name] = Sequences.of(several, field)
        else:
            arrays[name] = np.array(several, field.dtype).reshape(len(several), *field.shape)
    return arrays


def concatenated(parts: Several[Mapping[str, Sequences]]) -> dict[str, Sequences]:
    """The examples of several parts, one after the other. All of their fields are sequences."""
    examples = {}
    for name in parts[0] if parts else ():
        values = np.concatenate([part[name].values for part in parts])
        examples[name] = Sequences(
            values, ends_of(np.concatenate([np.diff(part[name].ends) for part in parts]))
        )
    return examples


def side_lengths(arrays: Arrays) -> Int[np.ndarray, "examples sides"]:
    """The length of each side of every example."""
    lengths = [np.diff(array.ends) for array in arrays.values() if isinstance(array, Sequences)]
    count = len(next(iter(arrays.values())))
    return np.array(lengths, np.int32).reshape(-1, count).T


def ends_of(sizes: ArrayLike) -> Int[np.ndarray, " sequences_and_one"]:
    """Where sequences of these lengths end, after a 0."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def spans(starts: Int[np.ndarray, " n"], sizes: Int[np.ndarray, " n"]) -> Int[np.ndarray, " total"]:
    """The indices [start, start + size) of each span, one after the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + sizes, sizes) + np.arange(total)


def gathered(
    arrays: Arrays,
    chosen: Int[np.ndarray, " n"],
    counts: Int[np.ndarray, " rows"],
    fields: Fields,
    lengths: Several[int],
    size: int,
    segments: bool = False,
) -> dict[str, np.ndarray]:
    """A batch.

    Args:
      arrays: the examples to choose from.
      chosen: the examples of all rows, row by row. Those of a row follow each other in its sequences.
      counts: how many each row has.
      fields: of the examples.
      lengths: padded length of each sequence.
      size: number of rows; those that are missing are padding.
      segments: whether to add `<name>_segments`, the index of each element's example in its row, from 1.

    Raises:
      ValueError: what a row has of a sequence is longer than its padded length.
    """
    batch = {}
    length = dict(zip(sides(fields), lengths, strict=True))
    row = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    for name, field in fields.items():
        array = arrays[name]
        if isinstance(array, np.ndarray):
            batch[name] = np.full((size, *field.shape), field.fill, field.dtype)
            batch[name][row] = array[chosen]
            continue
        sizes = array.sizes(chosen)
        before = np.cumsum(sizes) - sizes  # the elements of the examples before each
        column = before - before[first[row]]
        if (column + sizes).max(initial=0) > length[name]:
            raise ValueError(f"the {name} of a row is longer than {length[name]}")
        positions = spans(row * length[name] + column, sizes)
        flat = np.full((size * length[name], *field.shape), field.fill, field.dtype)
        flat[positions] = array.joined(chosen)
        batch[name] = flat.reshape(size, length[name], *field.shape)
        if segments:
            marks = np.zeros(size * length[name], np.int32)
            marks[positions] = np.repeat(np.arange(len(chosen)) - first[row] + 1, sizes)
            batch[f"{name}_segments"] = marks.reshape(size, length[name])
    return batch


def stacked(
    examples: Several[Example], fields: Fields, lengths: Several[int], size: int, segments: bool = False
) -> dict[str, np.ndarray]:
    """A batch with one example in each row. Arguments as those of `gathered`."""
    indices = np.arange(len(examples))
    return gathered(
        arrays_of(examples, fields), indices, np.ones_like(indices), fields, lengths, size, segments
    )


def id_dtype(count: int) -> str:
    """The smallest type of the ids from 0 to count - 1."""
    return "uint16" if count <= 2**16 else "uint32"


# Examples in files that are mapped into memory: `<field>.<dtype>` has the values of all examples, one after
# the other, `<field>.ends` where each ends, `checksums.json` checksums of these files.


SUMS = "checksums.json"
CHECKED = 1024 * MiB
"""Size of the largest file that has a checksum: a second to read."""


def checksums(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """A checksum of each file, by its name."""
    files = (folder / Path(name).name for name in names)
    return {file.name: zlib.crc32(mapped(file, "uint8").data) for file in files}


def stored(folder: Path, fields: Fields, chunks: Iterable[list[Example]]) -> Arrays:
    """The examples stored in a folder, which is written on first use.

    Args:
      folder: appears when it is complete, so that an interrupted preparation starts again.
      fields: of the examples.
      chunks: all examples, a part at a time. They are read if the folder does not exist.

    Raises:
      UserError: the folder cannot be written, or its files are damaged.
    """
    if not folder.exists():
        try:
            with folder_whole(folder) as partial:
                _write(partial, fields, chunks)
                short = [file.name for file in partial.iterdir() if file.stat().st_size <= CHECKED]
                (partial / SUMS).write_text(json.dumps(checksums(partial, short)), encoding="utf-8")
        except OSError as error:
            if not folder.exists():  # else another process has written it meanwhile
                raise UserError(f"cannot write {folder}: {error.strerror}; see --data.cache-dir") from error
    try:
        return _opened(folder, fields)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it to prepare the examples again") from error


def _write(folder: Path, fields: Fields, chunks: Iterable[list[Example]]) -> None:
    with contextlib.ExitStack() as stack:
        values = {name: stack.enter_context(open(folder / _name(name, fields), "wb")) for name in fields}
        ends = {name: stack.enter_context(open(folder / f"{name}.ends", "wb")) for name in sides(fields)}
        totals = dict.fromkeys(ends, 0)
        for file in ends.values():
            np.zeros(1, np.int64).tofile(file)
        for examples in chunks:
            for name, array in arrays_of(examples, fields).items():
                if isinstance(array, Sequences):
                    array.values.tofile(values[name])
                    (array.ends[1:] + totals[name]).tofile(ends[name])
                    totals[name] += len(array.values)
                else:
                    array.tofile(values[name])


def _opened(folder: Path, fields: Fields) -> Arrays:
    if (folder / SUMS).exists():  # earlier versions wrote none
        sums = parse_object(read_text(folder / SUMS))
        if sums != checksums(folder, sums):
            raise ValueError("its numbers are others than were written")
    arrays: dict[str, Sequences | np.ndarray] = {}
    for name, field in fields.items():
        values = mapped(folder / _name(name, fields)).reshape(-1, *field.shape)
        if field.padded:
            ends = mapped(folder / f"{name}.ends", "int64")
            if not len(ends) or ends[-1] != len(values):
                raise ValueError(f"{name} is not complete")
            arrays[name] = Sequences(values, ends)
        else:
            arrays[name] = values
    if len({len(array) for array in arrays.values()}) > 1:
        raise ValueError("its fields have different numbers of examples")
    return arrays


def _name(name: str, fields: Fields) -> str:
    return f"{name}.{fields[name].dtype}"


def mapped(path: Path, dtype: str = "") -> Shaped[np.ndarray, " n"]:
    """The numbers of a file, mapped into memory. Without a type, it is the suffix of the file's name."""
    dtype = dtype or path.suffix[1:]
    if not path.stat().st_size:  # nothing can be mapped
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))
