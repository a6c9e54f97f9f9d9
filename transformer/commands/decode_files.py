"""`transformer decode-files RUN`: the lines of many files, decoded shard by shard by workers.

A shard is some lines of a file. This process reads them, gives them to workers, which hold the model with its
running search, and writes what they return: so of all files only the run must be where the workers are. An
engine starts the workers, and again after a failure: Ray, or this process alone.
"""

import contextlib
import copy
import functools
import hashlib
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from transformer.cli.decode_arguments import HELP, DecodeArguments, Way, parse_decode, short_options
from transformer.cli.guard import named_command
from transformer.cli.writer import Writer, is_given, writer_of
from transformer.commands.decode import unused_options
from transformer.commands.file_shards import ERRORS, PARQUET, Decoded, Outputs, Shard, input_files
from transformer.config.ranges import LARGEST, Range
from transformer.runs.run import Run, with_base
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError, counted, first_line
from transformer.runtime.files import address, check_local, display_path, json_line, parse_object
from transformer.runtime.machine import ray_cluster

AHEAD = 2  # shards of an actor at a time: while one ends, slots of the search are filled with the other
RETRIES = 3  # of a shard whose worker was lost
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
        identity = repr([self.arguments.column, *self.loaded().job])
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

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
            failure = {"line": number, "error": why}
            texts[number] = json_line(failure) if is_json else "\n" * writer.lines_per_input
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
        actor_options: dict[str, Any] = {
            "GPU": {"num_gpus": 1},
            "TPU": {"resources": {"TPU": 1}},
            "CPU": {"num_cpus": cores},
        }
        processor = next((processor for processor in actor_options if resources.get(processor, 0) >= 1), None)
        if processor is None:
            raise UserError("--engine ray: the cluster has no GPU, TPU or core yet: start a node of it")
        count = arguments.workers or max(1, int(resources[processor] // (cores if processor == "CPU" else 1)))
        actor = ray.remote(Worker).options(
            max_restarts=-1, max_task_retries=RETRIES, max_concurrency=AHEAD, **actor_options[processor]
        )
        actors = [actor.remote(with_absolute_paths(arguments)) for _ in range(count)]
        yield [functools.partial(_called_remotely, handle) for handle in actors], AHEAD


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
            num_left = outputs.left
            if done := outputs.total - num_left:
                watch.message(f"  continuing: {done:,} of {counted(outputs.total, 'line')} are decoded")
            outputs.errors()
            outcomes = decoded(outputs.shards(), calls, ahead, outputs.check_job)
            for shard, outcome in watch.progress("lines", outcomes, num_left, lambda x: len(x[0].lines)):
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
    writer_class = writer_of(arguments.run_dir)
    if writer_class.claim is not Writer.claim:
        raise UserError(f"{arguments.run_dir} {writer_class.does}, beside its output: decode.py has it")
    if (way := writer_class.checked_way(arguments)) not in (Way.LINES, Way.CHOICES):
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
