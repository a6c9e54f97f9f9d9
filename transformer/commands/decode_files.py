"""`transformer decode-files RUN`: the lines of many files, decoded shard by shard by workers.

A shard is some lines of a file. This process reads them, gives them to workers, which hold the model with its
running search, and writes what they return: so of all files only the run must be where the workers are. An
engine starts the workers, and again after a failure: Ray, or this process alone.
"""

import contextlib
import copy
import fcntl
import functools
import glob
import hashlib
import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from transformer.cli.decode_arguments import HELP, DecodeArguments, Way, parse_decode, short_options
from transformer.cli.guard import named_command
from transformer.cli.input import digest_of
from transformer.cli.request_lines import COLUMNS
from transformer.cli.writer import Writer, is_given, writer_of
from transformer.commands.decode import unused_options
from transformer.config.corpus import PACKED, TABULAR, text_suffix
from transformer.config.ranges import LARGEST, Range
from transformer.data.remote import matching_addresses
from transformer.data.sources.exchange import count_rows, parquet_rows
from transformer.data.sources.text_files import matching, numbered_lines, one_line, plain, reading
from transformer.runs.run import Run, with_base
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError, counted, first_line
from transformer.runtime.files import (
    Json,
    MiB,
    address,
    append_flags,
    atomic_open,
    check_local,
    display_path,
    json_line,
    open_regular,
    parse_object,
    read_log,
    read_stored,
    write_whole,
)
from transformer.runtime.machine import ray_cluster

AHEAD = 2  # shards of an actor at a time: while one ends, slots of the search are filled with the other
RETRIES = 3  # of a shard whose worker was lost
ERRORS = "errors.jsonl"
STATE = ".decoding"
"""The folder, among the outputs, of what is not complete, and of what says which job they are of."""
PARQUET = ".parquet"
NOT_HERE = ("document", "explore", "stream", "history", "reference", "hosts")
"""Options of decode.py that are refused: what they do is not done line by line."""


@dataclass(frozen=True)
class FilesArguments(DecodeArguments):
    """Decode the lines of many files."""

    input: Path | None = None
    """File to decode, or a pattern of several in quotes, such as 'folder/part-*.en', also at an address
    (gs://, s3://)."""
    output: Path | None = None
    """Folder for the outputs: a file for each of the input, with its name. An interrupted job is continued by
    the same command. Lines that cannot be decoded have an empty output, and are listed in errors.jsonl."""
    engine: Literal["local", "ray"] = "local"
    """What runs the workers. local: this process, with its devices; ray: the Ray cluster of this machine, or
    of $RAY_ADDRESS, or one that is started here."""
    workers: Annotated[int | None, Range(1, LARGEST)] = None
    """Number of workers with --engine ray, which are waited for where the cluster grows. Default: one for
    each GPU or TPU of the cluster, otherwise for each --cores."""
    cores: Annotated[int, Range(1, LARGEST)] = 4
    """Cores of a worker without GPU and TPU."""
    column: str = ""
    """Column of Parquet files that has the text. Empty: their rows are read as the objects of --jsonl."""
    shard_lines: Annotated[int, Range(1, LARGEST)] = 4096
    """Lines that are given to a worker at a time, and decoded again if it is lost."""


HIDDEN = {*NOT_HERE, "bleu_tokenize", "flags", "explore_lines", "resume"}
"""Options that the help leaves out."""


@named_command("decode-files")
def decode_files_main(command_line: list[str]) -> None:
    """`python -m transformer decode-files RUN --input PATTERN --output FOLDER`."""
    with short_options():
        hidden = {*unused_options(command_line), *HIDDEN} if HELP & {*command_line} else ()
        arguments = parse_decode(command_line, hidden, FilesArguments, "decode-files")
        assert isinstance(arguments, FilesArguments)
        decode_files(arguments)


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


class Worker:
    """Decodes shards. The model is loaded for the first of them.

    Args:
      arguments: the command line.
    """

    def __init__(self, arguments: FilesArguments) -> None:
        self.arguments = arguments
        self._writer: Writer | None = None
        self._lock = threading.Lock()

    def job(self) -> str:
        """Identifies the model and the options. Raises UserError if something is wrong with them."""
        parts = repr([self.arguments.column, *self.loaded().job])
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()

    def loaded(self) -> Writer:
        """What writes the outputs of the model."""
        runs = self.arguments.run_dir, *self.arguments.ensemble, *self.arguments.rescore
        with self._lock, short_options(), with_base(self.arguments.base, *runs):
            if self._writer is None:
                self._writer = writer_of(self.arguments.run_dir)(
                    replace(self.arguments, input=None, output=None)
                )
        return self._writer

    def decode(self, shard: Shard) -> Decoded:
        """The outputs of a shard, in any thread.

        Raises:
          UserError: nothing can be decoded, for a reason that is not in the lines.
        """
        errors = {
            number: "not UTF-8, or longer than 64 MiB"
            for number, line in enumerate(shard.lines, shard.first)
            if line is None
        }

        def wrong(number: int, error: UserError) -> None:
            errors[number] = str(error).removeprefix(f"{shard.path}, ").removeprefix(f"line {number}: ")

        writer = copy.copy(self.loaded())
        writer.arguments, writer.wrong = replace(writer.arguments, input=shard.path), wrong
        numbered = [
            (number, line) for number, line in enumerate(shard.lines, shard.first) if line is not None
        ]
        texts = _texts(writer, list(filter(None, writer.in_order(numbered))), errors)
        is_every = all(number in errors for number, line in numbered if line.strip())
        if len(errors) > 1 and is_every and len(set(errors.values())) == 1:
            where = f"{display_path(shard.path)}, lines {shard.first:,} to {max(errors):,}"
            raise UserError(f"{where}: {errors[max(errors)]}")
        is_json = writer.arguments.format == "json"
        for number, why in errors.items():
            about = {"line": number, "error": why}
            texts[number] = json_line(about) if is_json else "\n" * writer.lines_per_input
        if is_json and writer.arguments.jsonl:
            texts |= {number: _with_id(line, texts[number]) for number, line in numbered if '"id"' in line}
        return Decoded("".join(text for _, text in sorted(texts.items())), errors)


def _texts(writer: Writer, numbered: Sequence[tuple[int, str]], errors: Container[int]) -> dict[int, str]:
    """What is written for lines, by their numbers, without those that `writer.wrong` adds to the errors."""
    try:
        outputs = [written[0] for written in writer.of(iter(numbered)) if written]
    except UserError as error:  # of a line that is looked into when it is searched
        if len(numbered) == 1:
            writer.wrong(numbered[0][0], error)
            return {}
        middle = len(numbered) // 2
        return _texts(writer, numbered[:middle], errors) | _texts(writer, numbered[middle:], errors)
    return dict(zip((number for number, _ in numbered if number not in errors), outputs, strict=True))


def _with_id(line: str, text: str) -> str:
    """An object of JSON with the field `id` of the line that it is for."""
    with contextlib.suppress(ValueError):
        return json_line({"id": parse_object(line)["id"], **json.loads(text)})
    return text


# Engines


Call = Callable[..., "Future[Any]"]
"""Calls a method of a worker, by its name."""


@contextlib.contextmanager
def workers(arguments: FilesArguments) -> Iterator[tuple[list[Call], int]]:
    """The workers of the engine, and how many shards each is given at a time.

    Raises:
      UserError: Ray is not installed, or its cluster cannot be reached.
    """
    if arguments.engine == "local":
        yield [functools.partial(_called, Worker(arguments))], 1
        return
    with ray_cluster("--engine ray") as ray:
        resources = ray.cluster_resources()
        cores = min(arguments.cores, int(max(node["Resources"].get("CPU", 0) for node in ray.nodes())))
        kinds: dict[str, Any] = {
            "GPU": {"num_gpus": 1},
            "TPU": {"resources": {"TPU": 1}},
            "CPU": {"num_cpus": cores},
        }
        kind = next((kind for kind in kinds if resources.get(kind, 0) >= 1), None)
        if kind is None:
            raise UserError("--engine ray: the cluster has no GPU, TPU or core yet: start a node of it")
        count = arguments.workers or max(1, int(resources[kind] // (cores if kind == "CPU" else 1)))
        actor = ray.remote(Worker).options(
            max_restarts=-1, max_task_retries=RETRIES, max_concurrency=AHEAD, **kinds[kind]
        )
        actors = [actor.remote(with_absolute_paths(arguments)) for _ in range(count)]
        yield [functools.partial(_called_remotely, one) for one in actors], AHEAD


def _called(worker: Worker, name: str, *arguments: Any) -> "Future[Any]":
    future = Future[Any]()
    future.set_result(getattr(worker, name)(*arguments))
    return future


def _called_remotely(actor: Any, name: str, *arguments: Any) -> "Future[Any]":
    future: Future[Any] = getattr(actor, name).remote(*arguments).future()
    return future


def decoded(
    shards: Iterator[Shard], calls: Sequence[Call], ahead: int, check_job: Callable[[str], None]
) -> Iterator[tuple[Shard, Decoded | Exception]]:
    """Shards as they are decoded, in any order, or why not.

    Args:
      shards: are taken as workers are free.
      calls: the workers; those that never start get none.
      ahead: how many each of them is given at a time.
      check_job: is told what each worker decodes with.

    Raises:
      UserError: something is wrong with the options or the run.
    """
    waiting: dict[Future[Any], tuple[Call, Shard | None]] = {call("job"): (call, None) for call in calls}
    has_started = False
    while not has_started or any(shard for _, shard in waiting.values()):
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            call, shard = waiting.pop(future)
            try:
                outcome = future.result()
            except UserError as error:
                raise UserError(str(getattr(error, "cause", error))) from error  # Ray adds a traceback
            except Exception as error:
                if shard is None:
                    raise
                outcome = error
            if shard is None:
                check_job(outcome)
                has_started = True
            else:
                yield shard, outcome
            for following in itertools.islice(shards, 1 if shard else ahead):
                waiting[call("decode", following)] = call, following


# Files


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
        lines = {(str(line.get("file")), int(line.get("line", 0))): line for line in read_log(path)}
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
    for number, row in parquet_rows(path, [column] if column else ["id", *COLUMNS]):
        yield from ((missing, None) for missing in range(following, number))
        text = row.get(column, 0) if column else json.dumps(row, ensure_ascii=False, default=str)
        if not isinstance(text, str | None):
            raise UserError(f"{display_path(path)}, row {number:,}: --column {column} must be text")
        yield number, one_line(text or "")
        following = number + 1
    yield from ((missing, None) for missing in range(following, count + 1))


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
    fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), pattern.parts))
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
    if not files:
        raise UserError(f"--input {display_path(pattern)}: no file has such a name")
    return files


def decode_files(arguments: FilesArguments) -> None:
    """Decodes files.

    Raises:
      UserError: an option or a file is wrong, or shards could not be decoded.
    """
    if arguments.input is None or arguments.output is None:
        missing = "--input FILES" if arguments.input is None else "--output FOLDER"
        raise UserError(f"{missing} is missing")
    check_options(arguments)
    check_local(arguments.output, "--output")
    files = input_files(arguments.input, ".jsonl" if arguments.format == "json" else ".txt")
    if not (arguments.column or arguments.jsonl) and any(path.suffix == PARQUET for path in files.values()):
        raise UserError(
            "--input: of Parquet files, --column names the one with text, or --jsonl reads whole rows"
        )
    data = Run(arguments.run_dir).config.data
    size = sys.maxsize if getattr(data, "context", 0) else arguments.shard_lines
    outputs = Outputs(arguments.output, files, arguments.column, size)
    watch = ProgressReporter.beside_output()
    start, count, failed = time.monotonic(), 0, list[tuple[Shard, Exception]]()
    try:
        with outputs.claimed(), workers(arguments) as (calls, ahead):
            outputs.examine()
            left = outputs.left
            if done := outputs.total - left:
                watch.message(f"  continuing: {done:,} of {counted(outputs.total, 'line')} are decoded")
            outputs.errors()
            several = decoded(outputs.shards(), calls, ahead, outputs.check_job)
            for shard, outcome in watch.progress("lines", several, left, lambda one: len(one[0].lines)):
                if isinstance(outcome, Exception):
                    failed.append((shard, outcome))
                    continue
                outputs.store(shard, outcome)
                count += len(shard.lines)
            errors = outputs.errors()
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("the same command continues with the next shard")
        raise
    seconds = time.monotonic() - start
    verb = "have" if errors > 1 else "has"
    why = f", of which {errors:,} {verb} no output: {arguments.output / ERRORS} says why"
    of_files = counted(len(files), "file")
    watch.message(
        f"{counted(count, 'line')} of {of_files} in {seconds:.1f} s ({count / max(seconds, 1e-9):.1f}/s), "
        f"written to {arguments.output}{why * bool(errors)}"
    )
    for shard, error in failed[:1]:
        raise UserError(
            f"{counted(len(failed), 'shard')} could not be decoded, such as from line {shard.first:,} of "
            f"{display_path(shard.path)}: {first_line(error)}. The same command tries again"
        )


def check_options(arguments: FilesArguments) -> None:
    """Raises UserError if an option has no use here."""
    for name in NOT_HERE:
        if is_given(arguments, name):
            raise UserError(f"--{name}: decode-files has no use for it, decode.py has; leave it out")
    for option, weights in ("--lm-weight", arguments.lm_weight), ("--bias-weight", arguments.bias_weight):
        if len(weights) > 1:
            raise UserError(f"{option}: decode.py compares several weights; give one")
    kind = writer_of(arguments.run_dir)
    if kind.claim is not Writer.claim:
        raise UserError(f"{arguments.run_dir} {kind.does}, beside its output: decode.py has it")
    if (way := kind.checked_way(arguments)) not in (Way.LINES, Way.CHOICES):
        raise UserError(way.refusal.format("decode-files"))


def with_absolute_paths(arguments: FilesArguments) -> FilesArguments:
    """The same, for processes that begin in another folder."""

    def absolute(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(absolute, value))
        return value.absolute() if isinstance(value, Path) and not address(value) else value

    return replace(
        arguments, **{item.name: absolute(getattr(arguments, item.name)) for item in fields(arguments)}
    )
