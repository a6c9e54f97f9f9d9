"""Rows of files that other programs write: Parquet and Arrow, translation memories (TMX), and WMT's test sets
(XML). They are read a part at a time."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from transformer.config.corpus import text_suffix
from transformer.data.sources.text_files import CONVERT, LONGEST_LINE, NOT_UTF8, bad_line, plain
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import MiB, open_regular, unreadable

Rows = Iterator[tuple[int, Mapping[str, Any]]]
"""The number of each line and its columns."""
TRANSLATION = "translation"
"""A column whose parts are named by languages, as the library datasets has them."""
NULLS = 2**16  # rows without a column that takes memory
BATCH = 16  # rows that are read at a time: a short file may repeat a long text


def check_opens(path: Path) -> None:
    """Raises UserError if a file cannot be opened."""
    with _opened(path):
        pass


def parquet_rows(path: Path, columns: Sequence[str]) -> Rows:
    """The rows of a Parquet file.

    Args:
      path: of the file.
      columns: that are read, if it has all of them.

    Raises:
      UserError: it is damaged.
    """
    from pyarrow.parquet import ParquetFile  # slow to import

    with _opened(path) as file:
        table = ParquetFile(file)
        names = set(table.schema_arrow.names)
        chosen = [name for name in (*columns, TRANSLATION) if name in names]
        is_enough = TRANSLATION in names or len(chosen) == len(columns)
        yield from _rows(path, table.iter_batches(BATCH, columns=chosen if is_enough else None))


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet file, counted: what it says may be anything. Raises UserError if it
    is damaged."""
    from pyarrow.parquet import ParquetFile  # slow to import

    with _opened(path) as file:
        table = ParquetFile(file)
        said, columns = table.metadata.num_rows, [table.schema.column(0).path] if len(table.schema) else []
        count = sum(map(len, table.iter_batches(BATCH, columns=columns))) if columns else 0
    if count != said:
        raise UserError(f"{path} is damaged: it says that it has {said:,} rows, and has {count:,}")
    return count


def arrow_rows(path: Path, columns: Sequence[str]) -> Rows:
    """The rows of an Arrow file, or of an Arrow stream in a file. Arguments and errors as of
    `parquet_rows`."""
    from pyarrow import ipc  # slow to import

    with _opened(path) as file:
        if file.peek(8).startswith(b"ARROW1"):
            reader = ipc.open_file(file)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = iter(ipc.open_stream(file))
        yield from _rows(path, (_held(path, batch) for batch in batches))


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


def _rows(path: Path, batches: Iterator[Any]) -> Rows:
    """The rows of record batches."""
    number = 1
    for batch in batches:
        for start in range(0, len(batch), BATCH):
            some = batch.slice(start, BATCH)
            try:
                rows = _whole(some)
            except ValueError:
                rows = [_row(path, number + index, some.slice(index, 1)) for index in range(len(some))]
            yield from ((number + index, row) for index, row in enumerate(rows) if row is not None)
            number += len(some)


def _whole(batch: Any) -> list[Any]:
    """The rows of a batch. Raises ValueError if it is damaged: the library does not look where texts begin
    and end, which can end the process."""
    batch.validate(full=True)
    rows: list[Any] = batch.to_pylist()
    return rows


def _row(path: Path, number: int, one: Any) -> Any:
    """A row; None if it is not UTF-8."""
    try:
        return _whole(one)[0]
    except ValueError as error:
        if not isinstance(error, UnicodeDecodeError) and "UTF8" not in str(error):
            raise
        bad_line(path, number, NOT_UTF8, f"; {CONVERT}")
        return None


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
        return re.sub(r"\s*[\r\n]\s*", " ", text).strip()

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
