"""`decode.py RUN`: lines in, lines out."""

import hashlib
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax

from transformer.cli.decode_arguments import DecodeArguments, check_files, lines_of
from transformer.cli.input import standard_input
from transformer.cli.output_file import LongOutput, Output, is_device
from transformer.cli.writer import Numbered, Writer, Written, writer_of
from transformer.data.remote import fetched
from transformer.errors import UserError, counted
from transformer.files import open_regular
from transformer.runtime.compilation import keep_programs
from transformer.runtime.console import ProgressReporter, SteadyConsole
from transformer.runtime.hosts import gathered, is_main_process

SHARE = 256  # lines that a process decodes before the next one's


def decode_lines(given: DecodeArguments) -> None:
    """Decodes every line of the input, and scores the writer.

    Raises:
      UserError: an option or a file is wrong, or the input changed meanwhile.
    """
    total, writer = check_files(given), writer_of(given)(given)
    watch = ProgressReporter(
        SteadyConsole(stderr=True, highlight=False, soft_wrap=True, quiet=not is_main_process())
    )
    began_as = _digest(given.input) if given.input else ""
    job = repr([*writer.job, began_as]) if given.input and given.output else ""
    output = _output(given, writer, job) if is_main_process() else Output(Path(os.devnull))
    writer.claim(job, total)
    long = output if isinstance(output, LongOutput) else None
    said, start, count = [], time.monotonic(), 0
    try:
        with output as file:
            done = gathered(long.done if long else 0)[0]
            if long and done:
                watch.message(f"  continuing after line {done:,}")
                said = _written_before(long, writer)
            if long and long.dropped:
                watch.message("  starting again: dropping an earlier unfinished output")
            rest: Iterable[Written] = _decoded(given, writer, done)
            typed = sys.stdout and sys.stdout.isatty()
            if given.output or not (typed or given.stream):  # no bar among the outputs
                rest = watch.progress("lines", rest, None if total is None else total - done)
            for count, (text, best) in enumerate(rest, start=1):  # noqa: B007
                file.write(text)
                file.flush()  # for whoever reads along, and for --resume after a kill
                if writer.judged:
                    said.append(best)
            if long and given.input and _digest(given.input) != began_as:
                long.discard()
                raise UserError(f"{given.input} changed while it was translated: run the same command again")
    finally:
        if long and long.kept:
            watch.message(
                "the unfinished output is kept: to continue it, add --resume to the same command (with other "
                "input or options it starts again)"
            )
    seconds = time.monotonic() - start
    if given.output:
        speed = f"{counted(count, 'line')} in {seconds:.1f} s ({count / max(seconds, 1e-9):.1f}/s)"
        watch.message(f"{speed}, written to {given.output}")
    if given.verbose:
        watch.message(_programs())
    if is_main_process():
        for line in writer.scores(said):
            watch.message(line)


def _decoded(given: DecodeArguments, writer: Writer, done: int) -> Iterator[Written]:
    """The outputs after the first `done` lines. Each process computes a part of every few lines."""
    hosts, host = jax.process_count(), jax.process_index()

    def mine(numbered: Numbered) -> bool:
        return numbered is None or (numbered[0] - done - 1) // SHARE % hosts == host

    lines = (numbered for numbered in _lines(given) if numbered is None or numbered[0] > done)
    found = writer.of(filter(mine, lines))
    if hosts > 1:
        while any(parts := gathered(list(itertools.islice(found, SHARE)))):
            yield from itertools.chain.from_iterable(parts)
    yield from (written for written in found if written)


def _lines(given: DecodeArguments) -> Iterator[Numbered]:
    """The numbered lines of the input; None where no other has arrived."""
    if given.input:
        yield from enumerate(lines_of(given), 1)
        return
    number = itertools.count(1)
    for line in standard_input(patient=jax.process_count() > 1):
        yield None if line is None else (next(number), line)


def _digest(path: Path) -> str:
    """A hash of a file's content."""
    with open_regular(fetched(path)) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _output(given: DecodeArguments, writer: Writer, job: str) -> Output:
    """The output for the lines. From a file to a file, it can be resumed with the same model, text and
    options."""
    if not given.input or not given.output or is_device(given.output):
        if given.resume:
            raise UserError("--resume needs --input and --output: only files can be resumed")
        return Output(given.output)
    return LongOutput(given.output, job, resume=given.resume, each=writer.each)


def _written_before(output: LongOutput, writer: Writer) -> list[str]:
    """The outputs that an earlier process wrote.

    Raises:
      UserError: another program changed the file.
    """
    try:
        return [writer.read(line) for line in output.lines()]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{output.path} is damaged: run the command without --resume") from error


def _programs() -> str:
    kept = keep_programs()
    return f"compiled programs are kept in {kept}" if kept else "compiled programs are not kept"
