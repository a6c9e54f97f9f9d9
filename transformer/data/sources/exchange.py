"""Rows of files that other programs write: Parquet and Arrow, translation memories (TMX), and WMT's test sets
(XML). They are read a part at a time."""

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

import numpy as np

from transformer.config.corpus import text_suffix
from transformer.data.sources.packed_sizes import LARGEST, check_messages, check_pages
from transformer.data.sources.text_files import CONVERT, LONGEST_LINE, NOT_UTF8, bad_line, plain
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import MiB, open_regular, prefixed_errors, unreadable

Rows = Iterator[tuple[int, Mapping[str, Any]]]
"""The number of each line and its columns."""
TRANSLATION = "translation"
"""A column whose parts are named by languages, as the library datasets has them."""
NULLS = 2**16  # rows without a column that takes memory
BATCH = 16  # rows that are read at a time, at most: a short file may repeat a long text


def check_opens(path: Path) -> None:
    """Raises UserError if a file cannot be opened."""
    with _opened(path):
        pass


def parquet_rows(path: Path, columns: Sequence[str] | None) -> Rows:
    """The rows of a Parquet file.

    Args:
      path: of the file.
      columns: that are read, also as en-GB if one is en (the first of them), and those within `translation`;
        of others, rows have only the names. None: all are read.

    Raises:
      UserError: it is damaged; it has two columns of one name; what one row has would take the memory.
    """
    from pyarrow.parquet import ParquetFile  # slow to import

    with _opened(path) as file:
        schema = ParquetFile(file).schema_arrow
        chosen = _chosen(path, schema, columns)
        others = dict.fromkeys(schema.names) if columns else {}
        yield from _rows(path, _parquet_batches(path, file, chosen), others) if chosen else [(1, others)]


def _parquet_batches(path: Path, file: IO[bytes], columns: Sequence[str]) -> Iterator[Any]:
    """Rows of some columns, as many at a time as surely fit into the memory."""
    from pyarrow.parquet import ParquetFile  # slow to import

    with prefixed_errors(f"{path}: "):
        pages = check_pages(file, ParquetFile(file), columns)
    table = ParquetFile(file, read_dictionary=sorted(pages.repeated))
    rows = min(BATCH, LARGEST // max(pages.row, 1))
    batches: Iterator[Any] = table.iter_batches(rows, columns=columns)
    return batches


def _chosen(path: Path, schema: Any, columns: Sequence[str] | None) -> list[str]:
    """The columns of a table that are read.

    Raises:
      UserError: two have the same name; one is of a type that a few bytes can make as long as they like.
    """
    names: list[str] = schema.names
    counts = Counter(names)
    chosen = list(counts) if columns is None else [TRANSLATION] * (TRANSLATION in counts)
    for column in columns or ():
        variants = (name for name in names if re.split("[-_]", name.lower())[0] == column.lower())
        chosen += [column] if column in counts else itertools.islice(variants, 1)
    for name in dict.fromkeys(chosen):
        if counts[name] > 1:
            raise UserError(f"{path}: two columns are named {name}")
        if not _is_bounded(kind := schema.field(name).type):
            raise UserError(f"{path}: column {name} is of type {kind}; write it as texts or lists of texts")
    return list(dict.fromkeys(chosen))


def _is_bounded(kind: Any) -> bool:
    """Whether `_size` knows how much arrays of a type take."""
    from pyarrow import types  # slow to import

    endless = types.is_run_end_encoded, types.is_union, types.is_list_view, types.is_large_list_view
    if any(is_endless(kind) for is_endless in endless):
        return False
    if types.is_dictionary(kind):
        return not types.is_nested(kind.value_type)
    return all(_is_bounded(kind.field(index).type) for index in range(kind.num_fields))


def _size(array: Any) -> int:
    """The bytes that an array takes in Python, at most: texts by their bytes, items of lists by 8 each."""
    from pyarrow import BaseExtensionType, types  # slow to import

    kind = array.type
    if isinstance(kind, BaseExtensionType):
        return _size(array.storage)
    if types.is_dictionary(kind):
        values = array.dictionary
        is_view = types.is_string_view(values.type) or types.is_binary_view(values.type)
        if not is_view and len(array) * values.nbytes <= LONGEST_LINE:
            return len(array) * int(values.nbytes)
        return len(array) * int(max(_lengths(values), default=0))
    if types.is_fixed_size_list(kind):
        items = len(array) * kind.list_size
        return 8 * items + (_size(array.flatten()) if 8 * items <= LONGEST_LINE else 0)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        first, last = (array.offsets[end].as_py() for end in (0, -1))
        if 8 * (last - first) > LONGEST_LINE:
            return 8 * (last - first)
        parts = (array.keys, array.items) if types.is_map(kind) else (array.values,)
        return 8 * (last - first) + sum(_size(part.slice(first, last - first)) for part in parts)
    if types.is_struct(kind):
        return sum(map(_size, array.flatten()))
    return int(sum(_lengths(array)))


def _lengths(array: Any) -> Any:
    """The bytes of each value of an array."""
    from pyarrow import types  # slow to import

    kind, count = array.type, len(array)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return np.frombuffer(array.buffers()[1], "<i4")[4 * array.offset :: 4][:count]
    if types.is_string(kind) or types.is_binary(kind):
        return np.diff(np.frombuffer(array.buffers()[1], "<i4")[array.offset :][: count + 1]) if count else []
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return np.diff(np.frombuffer(array.buffers()[1], "<i8")[array.offset :][: count + 1]) if count else []
    return [count * (0 if types.is_null(kind) else -(-kind.bit_width // 8))]


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet file, counted: what it says may be anything. Raises UserError as
    `parquet_rows`."""
    from pyarrow.parquet import ParquetFile  # slow to import

    with _opened(path) as file:
        table = ParquetFile(file)
        said, first = table.metadata.num_rows, table.schema_arrow.names[:1]
        chosen = _chosen(path, table.schema_arrow, first)
        count = sum(map(len, _parquet_batches(path, file, chosen))) if chosen else 0
    if count != said:
        raise UserError(f"{path} is damaged: it says that it has {said:,} rows, and has {count:,}")
    return count


def arrow_rows(path: Path, columns: Sequence[str]) -> Rows:
    """The rows of an Arrow file, or of an Arrow stream in a file. Arguments and errors as of
    `parquet_rows`."""
    from pyarrow import ipc  # slow to import

    with _opened(path) as file:
        start = 8 * file.peek(8).startswith(b"ARROW1")  # a file is a stream, between marks

        def opened(options: Any = None) -> Any:
            file.seek(start)
            return ipc.open_stream(file, options=options)

        schema = opened().schema
        if not (chosen := _chosen(path, schema, columns)):
            yield 1, dict.fromkeys(schema.names)
            return
        file.seek(start)
        with prefixed_errors(f"{path}: "):
            check_messages(file)
        batches = opened(ipc.IpcReadOptions(included_fields=list(map(schema.get_field_index, chosen))))
        yield from _rows(path, (_held(path, batch) for batch in batches), dict.fromkeys(schema.names))


def _held(path: Path, batch: Any) -> Any:
    """A batch of an Arrow file. Raises UserError if it says that it has more rows than bits."""
    if len(batch) > NULLS + 8 * batch.get_total_buffer_size():
        raise UserError(f"{path} is damaged: it says that it has {len(batch):,} rows, which it has not")
    return batch


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow  # slow to import

    try:
        with open_regular(plain(path)) as file:
            yield file
    except OSError as error:
        if error.strerror:
            raise UserError(f"cannot read {path}: {unreadable(error)}") from error
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:  # the latter two of Python's values
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    except MemoryError as error:
        raise UserError(f"{path} is damaged, or a part of it does not fit into the memory") from error


def _rows(path: Path, batches: Iterator[Any], others: Mapping[str, None]) -> Rows:
    """The rows of record batches, with the names of columns that are not read."""
    number = 1
    for batch in batches:
        for start in range(0, len(batch), BATCH):
            some = batch.slice(start, BATCH)
            try:
                parts = [(some, _fault(some))]
            except ValueError:
                parts = []
            if not parts or parts[0][1]:
                rows = [some.slice(index, 1) for index in range(len(some))]
                parts = [(row, _fault(row)) for row in rows]
            for part, fault in parts:
                if fault:
                    bad_line(path, number, *fault)
                for index, row in enumerate([] if fault else part.to_pylist()):
                    yield number + index, {**others, **row}
                number += len(part)


def _fault(batch: Any) -> tuple[str, ...]:
    """What is wrong with rows: they are no UTF-8, or would take the memory; else nothing. Raises ValueError
    if they are damaged: the library does not look where texts begin and end, which can end the process."""
    try:
        batch.validate(full=True)
    except ValueError as error:
        if not isinstance(error, UnicodeDecodeError) and "UTF8" not in str(error):
            raise
        return NOT_UTF8, f"; {CONVERT}"
    is_long = sum(map(_size, batch.columns)) > LONGEST_LINE
    return (f"longer than {LONGEST_LINE // MiB} MiB",) if is_long else ()


class _Elements:
    """What the elements of an XML file say. A subclass makes rows of them.

    Args:
      path: of the file, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[tuple[int, Mapping[str, Any]]] = []
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self.begins
        self._parser.EndElementHandler = self.ends
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._entity
        self._text: list[str] | None = None  # of the segment that is read
        self._size = 0  # of the unit that is read, in characters

    def begins(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""

    def ends(self, name: str) -> None:
        """An element ends."""

    @property
    def line(self) -> int:
        return self._parser.CurrentLineNumber

    def unit_begins(self) -> None:
        """What is read until the next call must not be longer than the longest line of a text."""
        self._size = 0

    def segment_begins(self) -> None:
        self._text = []

    def segment(self) -> str:
        """The text of the segment that ends here, in one line."""
        text, self._text = "".join(self._text or ()), None
        return " ".join(filter(None, map(str.strip, re.split(r"[\r\n]", text))))

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)
            self._check(self._size + len(text))
            self._size += len(text)

    def _entity(self, name: str, *others: object) -> None:
        raise UserError(
            f"{self.path}, line {self.line}: it defines an entity ({name}), which could grow without bound; "
            "such files are not read"
        )

    def _check(self, size: int) -> None:
        if size > LONGEST_LINE:
            raise UserError(f"{self.path}, line {self.line}: longer than {LONGEST_LINE // MiB} MiB")

    def read(self, file: IO[bytes]) -> Rows:
        """The rows of a file."""
        position, is_last = 0, False
        while not is_last:
            part = file.read(MiB)
            position, is_last = position + len(part), not part
            try:
                self._parser.Parse(part, is_last)
            except expat.ExpatError as error:
                reason = expat.ErrorString(error.code)
                raise UserError(f"{self.path}, line {error.lineno}: it is no XML ({reason})") from error
            except (LookupError, ValueError) as error:  # of the codec that it names
                raise UserError(f"{self.path} names an encoding that is not read: {CONVERT}") from error
            self._check(position - max(self._parser.CurrentByteIndex, 0) if not is_last else 0)
            yield from self.rows
            self.rows.clear()


class _Memory(_Elements):
    """The units of a translation memory (TMX 1.4b): the texts of a unit by their languages, without the marks
    of other programs within them."""

    MARKS = frozenset(("bpt", "ept", "it", "ph", "ut"))  # elements whose content is no text

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._unit: dict[str, str] = {}
        self._language, self._begun, self._marks = "", 0, 0

    def begins(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self.unit_begins()
            self._unit, self._begun = {}, self.line
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self.segment_begins()
        self._marks += name in self.MARKS

    def ends(self, name: str) -> None:
        self._marks -= name in self.MARKS
        if name == "seg":
            self._unit.setdefault(self._language, self.segment())
        elif name == "tu":
            self.rows.append((self._begun, self._unit))

    def _characters(self, text: str) -> None:
        if not self._marks:
            super()._characters(text)


class _TestSet(_Elements):
    """The segments of a test set of WMT by their languages; of further references, by the language, - and the
    name of the translator, such as de-B."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._segments: dict[str, tuple[int, dict[str, str]]] = {}  # of the document that is read, by id
        self._column, self._columns, self._id = "", set[str](), ""

    def begins(self, name: str, attributes: dict[str, str]) -> None:
        if name == "doc":
            self.unit_begins()
            self._columns = set()
        elif name in ("src", "ref"):
            language = attributes.get("lang", "")
            is_further = language in self._columns
            self._column = f"{language}-{attributes.get('translator', '')}" if is_further else language
            self._columns.add(self._column)
        elif name == "seg" and self._column:
            self._id = attributes.get("id", "")
            self.segment_begins()

    def ends(self, name: str) -> None:
        if name == "seg" and self._column:
            _, row = self._segments.setdefault(self._id, (self.line, {}))
            row[self._column] = self.segment()
        elif name in ("src", "ref"):
            self._column = ""
        elif name == "doc":
            self.rows += self._segments.values()
            self._segments = {}


def xml_rows(path: Path) -> Rows:
    """The rows of a translation memory, whose name ends with .tmx, or of a test set of WMT.

    Raises:
      UserError: it is no XML, defines entities, or a unit is longer than 64 MiB.
    """
    kind = _Memory if text_suffix(path).lower() == ".tmx" else _TestSet
    with _opened(path) as file:
        yield from kind(path).read(file)
