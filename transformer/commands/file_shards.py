"""The files of `transformer decode-files`: the shards of its input, and the folder of its outputs."""

import contextlib
import fcntl
import glob
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.cli.input import digest_of
from transformer.config.corpus import PACKED, TABULAR, text_suffix
from transformer.data.remote import matching_addresses
from transformer.data.sources.exchange import count_rows, parquet_rows
from transformer.data.sources.text_files import matching, numbered_lines, one_line, plain, reading
from transformer.runtime.errors import UserError
from transformer.runtime.files import (
    Json,
    MiB,
    address,
    append_flags,
    atomic_open,
    display_path,
    json_line,
    open_regular,
    read_log,
    read_stored,
    write_whole,
)

ERRORS = "errors.jsonl"
STATE = ".decoding"
"""The folder, among the outputs, of what is not complete, and of what says which job they are of."""
PARQUET = ".parquet"


class Shard(NamedTuple):
    """Some lines of a file."""

    name: str
    """Of the file of their outputs."""
    path: Path
    first: int
    """The number of the first line."""
    lines: Sequence[str | None]
    """None: it is not UTF-8, or far too long."""


class Decoded(NamedTuple):
    """What is written for a shard."""

    text: str
    errors: dict[int, str]
    """Why lines could not be decoded, by their numbers."""


class Outputs:
    """The folder of the outputs. Those of a shard are a part, until all parts of its file are there.

    Args:
      folder: what else is in it is refused.
      files: those of the input, by the names of their outputs.
      column: of Parquet files; empty: whole rows are read.
      size: lines of a shard.
    """

    def __init__(self, folder: Path, files: dict[str, Path], column: str, size: int) -> None:
        self.folder, self.files, self._column, self._size = folder, files, column, size
        self._counts: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._left: dict[str, int] = {}
        """How many lines of each file are not decoded."""

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Creates the folder, and locks it against other processes.

        Raises:
          UserError: it is used by one, or has other files.
        """
        state = self.folder / STATE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not state.exists() and any(self.folder.iterdir()):
                raise UserError(f"--output {self.folder}: other files are there; name a new folder")
            state.mkdir(exist_ok=True)
            with open(state / "lock", "a", opener=append_flags) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield
        except BlockingIOError as error:
            raise UserError(f"--output {self.folder}: another process is writing there") from error

    def examine(self) -> None:
        """Reads the files once: what they have, and how much of them is decoded.

        Raises:
          UserError: one cannot be read, or has changed since it was decoded.
        """
        before = self._stored().get("files", {})
        for name, path in self.files.items():
            self._digests[name], self._counts[name] = digest_of(path), _count(path)
            is_whole = (self.folder / name).exists()
            if is_whole and name not in before:
                raise UserError(f"{self.folder / name} is there already, and not of this job: remove it")
            if (is_whole or any(self._folder_of(name).glob("*-*"))) and before.get(name) != self._digests[
                name
            ]:
                raise UserError(
                    f"{display_path(path)} has changed since it was decoded: name another --output, or "
                    f"remove {self.folder}"
                )
            missing = [lines for lines in self._shards_of(name) if not self._part(name, lines).exists()]
            self._left[name] = 0 if is_whole else sum(map(len, missing))

    @property
    def total(self) -> int:
        """How many lines the files have."""
        return sum(self._counts.values())

    @property
    def left(self) -> int:
        """How many of them are not decoded."""
        return sum(self._left.values())

    def _stored(self) -> Json:
        remedy = f"remove {self.folder}, or name another --output"
        return read_stored(self.folder / STATE / "job.json", _job, remedy) or {}

    def check_job(self, job: str) -> None:
        """Remembers what the outputs are made with.

        Raises:
          UserError: there are outputs of another run, or of other options.
        """
        stored = self._stored()
        has_outputs = any((self.folder / name).exists() for name in stored.get("files", ()))
        has_outputs = has_outputs or any(self._folder_of("").rglob("*-*"))
        if has_outputs and stored.get("job") != job:
            raise UserError(
                f"--output {self.folder}: the outputs there are of another run, or were made with other "
                "options; name another folder, or remove it"
            )
        files = {**stored.get("files", {}), **self._digests}
        write_whole(self.folder / STATE / "job.json", json.dumps({"job": job, "files": files}))

    def shards(self) -> Iterator[Shard]:
        """The shards that are not decoded yet."""
        for name, path in self.files.items():
            if not self._left[name]:
                self._join(name)
                continue
            lines = numbered_lines(path)
            if path.suffix == PARQUET:
                lines = _row_lines(path, self._column, self._counts[name])
            for numbers in self._shards_of(name):
                batch = _batch(lines, len(numbers))
                if not self._part(name, numbers).exists():
                    yield Shard(name, path, numbers[0], batch)

    def store(self, shard: Shard, outputs: Decoded) -> None:
        """Writes the outputs of a shard, and of its file if it was the last one."""
        for number, why in sorted(outputs.errors.items()):
            with open(self.folder / ERRORS, "a", encoding="utf-8", opener=append_flags) as file:
                file.write(json_line({"file": shard.name, "line": number, "error": why}))
        self._folder_of(shard.name).mkdir(parents=True, exist_ok=True)
        numbers = range(shard.first, shard.first + len(shard.lines))
        write_whole(self._part(shard.name, numbers), outputs.text)
        self._left[shard.name] -= len(numbers)
        if not self._left[shard.name]:
            self._join(shard.name)

    def _join(self, name: str) -> None:
        """Writes a file from its parts, unless it is there."""
        whole = self.folder / name
        if not whole.exists():
            whole.parent.mkdir(parents=True, exist_ok=True)
            with atomic_open(whole) as file:
                for numbers in self._shards_of(name):
                    with open_regular(self._part(name, numbers)) as text:
                        shutil.copyfileobj(text, file)
        shutil.rmtree(self._folder_of(name), ignore_errors=True)

    def _shards_of(self, name: str) -> list[range]:
        """The numbers of the lines of each shard of a file."""
        lines = range(1, self._counts[name] + 1)
        return [lines[start : start + self._size] for start in range(0, len(lines), self._size)]

    def _folder_of(self, name: str) -> Path:
        """Where the parts of a file are."""
        return self.folder / STATE / "parts" / name

    def _part(self, name: str, numbers: range) -> Path:
        """The file with the outputs of a shard, named by the numbers of its lines."""
        return self._folder_of(name) / f"{numbers[0]:012}-{numbers[-1]:012}"

    def errors(self) -> int:
        """How many lines have no output. Brings their list in order, which an interrupt may have left without
        an end, or with the lines of a shard twice."""
        path = self.folder / ERRORS
        if not path.exists():
            return 0
        known = (line for line in read_log(path) if type(line.get("line")) is int)
        lines = {(str(line.get("file")), line["line"]): line for line in known}
        write_whole(path, "".join(json_line(line) for _, line in sorted(lines.items())))
        return len(lines)


def _job(stored: Json) -> Json:
    """A job.json. Raises ValueError if it is another one."""
    if not isinstance(stored.get("files", {}), dict):
        raise ValueError("its files must be an object")
    return stored


def _batch(lines: Iterator[tuple[int, str | None]], size: int) -> list[str | None]:
    """The next lines of a file; None for those that cannot be read."""
    with reading(drops=True):
        return [line for _, line in itertools.islice(lines, size)]


def _count(path: Path) -> int:
    """The number of lines of a file. Raises UserError if it cannot be read."""
    if path.suffix == PARQUET:
        return count_rows(path)
    last, count = b"\n", 0
    with open_regular(plain(path)) as file:
        while block := file.read(MiB):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def _row_lines(path: Path, column: str, count: int) -> Iterator[tuple[int, str | None]]:
    """The rows of a Parquet file as lines: a column of them, or objects of JSON. None: one is not UTF-8.

    Raises:
      UserError: the column is missing, or has something else than text.
    """
    following = 1
    for number, row in parquet_rows(path, [column] if column else None):
        yield from ((missing, None) for missing in range(following, number))
        text = row.get(column, 0) if column else json.dumps(row, ensure_ascii=False, default=_as_json)
        if not isinstance(text, str | None):
            raise UserError(f"{display_path(path)}, row {number:,}: --column {column} must be text")
        yield number, one_line(text or "")
        following = number + 1
    yield from ((missing, None) for missing in range(following, count + 1))


def _as_json(value: object) -> object:
    """A value that JSON does not have, such as a date. Bytes are no text: these are refused."""
    return {"bytes": value.hex()} if isinstance(value, bytes) else str(value)


def input_files(pattern: Path, suffix: str = ".txt") -> dict[str, Path]:
    """The files that --input names, by the names of their outputs: those after its last folder without * ? or
    [...].

    Args:
      pattern: of their names.
      suffix: of the names of outputs for Parquet files.

    Raises:
      UserError: there are none, one is neither text nor Parquet, or two outputs would have one name.
    """
    where = address(pattern)
    paths = matching_addresses(where) if where else matching(pattern, "--input")
    files = dict[str, Path]()
    fixed = list(itertools.takewhile(lambda component: not glob.has_magic(component), pattern.parts))
    folder = Path(*fixed[: len(pattern.parts) - 1])
    for path in paths:
        if where is None and path.is_dir():
            continue
        name = os.fspath(path.relative_to(folder))
        if text_suffix(path) in TABULAR and path.suffix != PARQUET:
            raise UserError(f"--input {display_path(path)}: give text, or Parquet")
        name = name.removesuffix(path.suffix) if path.suffix in PACKED else name
        name = name.removesuffix(PARQUET) + suffix if path.suffix == PARQUET else name
        if name in files or name.startswith((STATE, ERRORS)):
            raise UserError(f"--input {display_path(path)}: another output is named {name}")
        files[name] = path
    for name, path in files.items():
        if above := files.keys() & {*map(os.fspath, Path(name).parents)}:
            raise UserError(f"--input {display_path(path)}: another output is named {above.pop()}")
    if not files:
        raise UserError(f"--input {display_path(pattern)}: no file has such a name")
    return files
