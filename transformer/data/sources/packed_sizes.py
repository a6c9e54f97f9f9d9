"""What the parts of a Parquet or Arrow file unpack to, checked before the library decodes them.

A page of Parquet of a few bytes may stand for any number of values, or unpack to any size. Its header says to
how many and to which (Apache Parquet format, PageHeader, in Thrift's compact protocol), and the library takes
memory by that, whatever the end of the file says. A buffer of Arrow that is compressed begins with its size
(Arrow columnar format, Message.fbs).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from transformer.runtime.errors import UserError
from transformer.runtime.files import MiB

LARGEST_PAGE = 256 * MiB  # unpacked; writers make pages of a MiB, or of one value
SMALL_PAGE = 4 * MiB  # unpacked; of which several rows are decoded together
MOST_ITEMS = 2**24  # of all lists of a column in a group of rows, any number of which one row may have
LONGEST_VALUE = MiB  # of a column whose values all have the same number of bytes
MOST_REPEATED = 256 * MiB  # bytes of the lists of a group of rows, if each item were the whole dictionary
_DICTIONARY, _DELTAS = 2, 7  # a kind of page; an encoding whose values repeat parts of others
MOST_GROWTH = 200  # times the size of a message
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DEEPEST = 8  # structures of a header, in each other


@dataclass
class Pages:
    """What the pages of some columns need."""

    largest: int = 0
    """The most bytes that one unpacks to."""
    repeated: set[str] = field(default_factory=set)
    """Columns of lists with texts that a dictionary may repeat so often that they would take the memory."""


def check_pages(file: IO[bytes], table: Any, columns: Sequence[str]) -> Pages:
    """Reads the headers of all pages of some columns.

    Args:
      file: the Parquet file.
      table: pyarrow's `ParquetFile` of it.
      columns: their names.

    Raises:
      UserError: a page is too large, a list may be too long, or a value is.
      ValueError: a header is damaged.
    """
    pages = Pages()
    for index in range(len(table.schema)):
        leaf = table.schema.column(index)
        name = next((x for x in columns if leaf.path == x or leaf.path.startswith(f"{x}.")), None)
        if name is None:
            continue
        if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" and leaf.length > LONGEST_VALUE:
            raise UserError(f"column {name}: values of {leaf.length:,} bytes, of {LONGEST_VALUE:,} at most")
        is_list = leaf.max_repetition_level > 0
        for group in range(table.metadata.num_row_groups):
            _check_chunk(file, table.metadata.row_group(group).column(index), name, is_list, pages)
    return pages


def _check_chunk(file: IO[bytes], chunk: Any, name: str, is_list: bool, pages: Pages) -> None:
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
                return
            raise ValueError("the header of a page cannot be read") from error
        if min(unpacked, packed, values) < 0:
            raise ValueError("the header of a page has a negative size")
        if unpacked > LARGEST_PAGE:
            raise UserError(
                f"column {name}: a page unpacks to {unpacked:,} bytes, and {LARGEST_PAGE:,} are read; write "
                "the file with smaller pages"
            )
        count, start = count + values, file.tell() + packed
        pages.largest = max(pages.largest, unpacked)
        dictionary = max(dictionary, unpacked if kind == _DICTIONARY else 0)
        if is_list and chunk.physical_type == "BYTE_ARRAY" and count * dictionary > MOST_REPEATED:
            pages.repeated.add(chunk.path_in_schema)
        if is_list and count > MOST_ITEMS:
            raise UserError(
                f"column {name}: the lists of a group of rows have more than {MOST_ITEMS:,} items; write the "
                "file with smaller groups of rows"
            )
        if is_list and values and encoding == _DELTAS:
            raise UserError(
                f"column {name}: lists in the encoding DELTA_BYTE_ARRAY are not read; use another"
            )


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
