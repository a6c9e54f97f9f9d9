"""What the parts of a Parquet or Arrow file unpack to, checked before the library decodes them.

A page of Parquet of a few bytes may stand for any number of values, or unpack to any size. Its header says to
how many and to which (Apache Parquet format, PageHeader, in Thrift's compact protocol), and the library takes
memory by that, whatever the end of the file says. A buffer of Arrow that is compressed begins with its size
(Arrow columnar format, Message.fbs).
"""

import itertools
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from transformer.runtime.errors import UserError
from transformer.runtime.files import MiB

LARGEST = 256 * MiB  # unpacked, of one page of each column; writers make pages of a MiB, or of one value
MOST_ITEMS = 2**24  # of all lists in a group of rows, any number of which one row may have
LONGEST_VALUE = MiB  # of a column whose values all have the same number of bytes
MOST_REPEATED = 256 * MiB  # bytes of the lists of a group of rows, if each item were the longest there can be
_DICTIONARY, _DELTAS = 2, 7  # a kind of page; an encoding whose values repeat parts of others
MOST_GROWTH = 200  # times the size of a message
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DEEPEST = 8  # structures of a header, in each other


@dataclass
class Pages:
    """What the pages of some columns need."""

    largest: Counter[str] = field(default_factory=Counter)
    """The most bytes that one of a column unpacks to."""
    row: int = 0
    """Their sum, and so the most bytes of a row without lists: any value may be a whole page."""
    repeated: set[str] = field(default_factory=set)
    """Columns of lists with texts that a dictionary may repeat so often that they would take the memory."""
    items: Counter[int] = field(default_factory=Counter)
    """Those of all lists, by the group of rows."""
    expanded: Counter[int] = field(default_factory=Counter)
    """The most bytes of the items of all other lists, by the group of rows."""

    def add(self, column: str, size: int) -> None:
        """A page of a column."""
        self.row += max(size - self.largest[column], 0)
        self.largest[column] = max(self.largest[column], size)


def check_pages(file: IO[bytes], table: Any, columns: Sequence[str]) -> Pages:
    """Reads the headers of all pages of some columns.

    Args:
      file: the Parquet file.
      table: pyarrow's `ParquetFile` of it.
      columns: their names.

    Raises:
      UserError: the pages of all columns together are too large, their lists may be too long, or a value is.
      ValueError: a header is damaged.
    """
    pages, chosen = Pages(), set(columns)
    for index in range(len(table.schema)):
        leaf = table.schema.column(index)
        parents = itertools.accumulate(leaf.path.split("."), "{}.{}".format)
        name = next((path for path in parents if path in chosen), None)
        if name is None:
            continue
        length = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
        if length > LONGEST_VALUE:
            raise UserError(f"column {name}: values of {length:,} bytes, of {LONGEST_VALUE:,} at most")
        pages.add(leaf.path, length)  # also of nulls
        for group in range(table.metadata.num_row_groups):
            _check_chunk(file, table, (index, group), name, pages)
    return pages


def _check_chunk(file: IO[bytes], table: Any, where: tuple[int, int], name: str, pages: Pages) -> None:
    """Reads the headers of the pages of a column in a group of rows, whose numbers are `where`."""
    index, group = where
    leaf, chunk = table.schema.column(index), table.metadata.row_group(group).column(index)
    length = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
    is_list, before = leaf.max_repetition_level > 0, pages.items[group]
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    count, dictionary, end = 0, 0, start + chunk.total_compressed_size
    while count < chunk.num_values:  # as the library reads them, which may be beyond the end
        file.seek(start)
        try:
            header = dict(_structure(file))
            unpacked, packed = header[2], header[3]
            kind, content = header[1], header.get(5) or header.get(8) or {}
            values = 0 if kind == _DICTIONARY else content.get(1, 0)
            encoding = content.get(2 if 5 in header else 4)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if start >= end:
                break
            raise ValueError("the header of a page cannot be read") from error
        if min(unpacked, packed, values) < 0:
            raise ValueError("the header of a page has a negative size")
        pages.add(leaf.path, unpacked)
        if pages.row > LARGEST:
            others = f", with those of other columns to {pages.row:,}" * (pages.row > unpacked)
            raise UserError(
                f"column {name}: a page unpacks to {unpacked:,} bytes{others}, and {LARGEST:,} are read; "
                "write the file with smaller pages"
            )
        count, start = count + values, file.tell() + packed
        dictionary = max(dictionary, unpacked if kind == _DICTIONARY else 0)
        pages.items[group] = before + is_list * count
        if pages.items[group] > MOST_ITEMS:
            raise UserError(
                f"column {name}: the lists of a group of rows have more than {MOST_ITEMS:,} items; write the "
                "file with smaller groups of rows"
            )
        if is_list and values and encoding == _DELTAS:
            raise UserError(
                f"column {name}: lists in the encoding DELTA_BYTE_ARRAY are not read; use another"
            )
    size = count * (dictionary if chunk.physical_type == "BYTE_ARRAY" else length) if is_list else 0
    if pages.expanded[group] + size <= MOST_REPEATED:
        pages.expanded[group] += size
    elif length:
        most = (MOST_REPEATED - pages.expanded[group]) // length
        raise UserError(
            f"column {name}: lists of values of {length:,} bytes, of which a group of rows may have "
            f"{most:,}; write the file with smaller groups of rows"
        )
    else:
        pages.repeated.add(chunk.path_in_schema)


# Thrift's compact protocol: fields with a kind, of which only numbers and structures are of interest.


def _structure(file: IO[bytes], depth: int = 0) -> Iterator[tuple[int, Any]]:
    """The fields of a structure, by their numbers."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    number = 0
    while kind := _byte(file):
        number = number + (kind >> 4) if kind >> 4 else _number(file)
        yield number, _value(file, kind & 15, depth)


def _value(file: IO[bytes], kind: int, depth: int) -> Any:
    match kind:
        case 1 | 2:
            return kind == 1
        case 3:
            return _byte(file)
        case 4 | 5 | 6:
            return _number(file)
        case 7:
            return file.read(8)
        case 8:
            file.seek(_unsigned(file), 1)
            return None
        case 12:
            return dict(_structure(file, depth + 1))
        case _:
            raise ValueError("a field that no header of a page has")


def _byte(file: IO[bytes]) -> int:
    if not (byte := file.read(1)):
        raise ValueError("it ends too early")
    return byte[0]


def _unsigned(file: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a number that is too long")


def _number(file: IO[bytes]) -> int:
    value = _unsigned(file)
    return (value >> 1) ^ -(value & 1)


# Arrow's messages: tables of FlatBuffers, whose fields are found by their numbers.


def check_messages(file: IO[bytes]) -> None:
    """Reads the sizes of all buffers of an Arrow stream that is read from here.

    Raises:
      UserError: those of a message unpack to far more than it has.
      ValueError: a message is damaged.
    """
    from pyarrow import ipc  # slow to import

    for message in ipc.MessageReader.open_stream(file):
        try:
            unpacked = _unpacked(memoryview(message.metadata), message.body)
        except (struct.error, TypeError) as error:
            raise ValueError("a message cannot be read") from error
        if unpacked > MOST_GROWTH * message.body.size + MiB:
            raise UserError(
                f"a part unpacks to more than {MOST_GROWTH} times its size; write it without compression, if "
                "you trust it"
            )


def _unpacked(metadata: memoryview, body: Any) -> int:
    """The bytes that the compressed buffers of a message unpack to."""
    message = _offset(metadata, 0)
    kind, header = _field(metadata, message, 1), _field(metadata, message, 2)
    batch = header and _offset(metadata, header)
    if not kind or not batch or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    if metadata[kind] == _DICTIONARY_BATCH:
        data = _field(metadata, batch, 1)
        batch = data and _offset(metadata, data)
    buffers = batch and _field(metadata, batch, 2)
    if not buffers or not _field(metadata, batch, 3):  # it is not compressed
        return 0
    vector = _offset(metadata, buffers)
    (count,) = struct.unpack_from("<I", metadata, vector)
    total = 0
    for offset, length in struct.iter_unpack("<qq", metadata[vector + 4 : vector + 4 + 16 * count]):
        if length >= 8:
            total += max(struct.unpack_from("<q", body, offset)[0], 0)
    return total


def _offset(content: memoryview, position: int) -> int:
    return int(position + struct.unpack_from("<I", content, position)[0])


def _field(content: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it has none."""
    start = table - struct.unpack_from("<i", content, table)[0]
    size, entry = struct.unpack_from("<H", content, start)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", content, start + entry)[0] if entry < size else 0
    return int(table + offset) if offset else 0
