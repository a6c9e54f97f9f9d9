"""`decode.py RUN`: lines in, lines or a page out."""

import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import jax

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.input import check_files, digest_of, lines_of, standard_input
from transformer.cli.output_file import LongOutput, Output, check_unfinished, resumable, resumable_output
from transformer.cli.writer import OF_FUSION, OF_JSON, OF_LONG, Numbered, Writer, Written, is_given, writer_of
from transformer.runtime.compilation import keep_programs
from transformer.runtime.console import ProgressReporter, SteadyConsole
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import address
from transformer.runtime.hosts import gathered, is_main_process
from transformer.translator.fusion import checked_weight

SHARE = 256  # consecutive lines that one process decodes
FOR_LINES = (
    *OF_FUSION,
    *("output", "reference", "rescore", "rescore_weights", "bleu_tokenize", "choices"),
    "temperature_of_choices",
    *("history", *OF_JSON, "timestamps", *OF_LONG, "resume", "until", "stream"),
)
"""Options that a page of --explore does not have."""


def write_page(arguments: DecodeArguments) -> None:
    """Writes the page of `transformer.translator.explorer.explorer`."""
    assert arguments.explore
    for option in FOR_LINES:
        if is_given(arguments, option):
            raise UserError(
                f"--{option.replace('_', '-')} is for lines, --explore writes a page: leave one out"
            )
    if arguments.format != "text":
        raise UserError(f"--format {arguments.format} is for lines, --explore writes a page: leave one out")
    if arguments.ensemble:
        raise UserError("--explore shows one model: leave out the other runs")
    check_files(arguments)
    writer_of(arguments.run_dir).refuse_unused(arguments)

    page, what = writer_of(arguments.run_dir).page(arguments)
    with Output(arguments.explore, "--explore") as output:
        output.write(page.html)
    print(f"{what}, {len(page.html) / 1e3:,.0f} kB, written to {arguments.explore}: open it in a browser")


def decode_lines(arguments: DecodeArguments) -> None:
    """Decodes every line of the input, and scores the outputs.

    Raises:
      UserError: an option or a file is wrong, or the input changed meanwhile.
    """
    if arguments.flags:
        raise UserError("--flags is for --document: it lists the suspicious sentences of one")
    if (kind := writer_of(arguments.run_dir)).write_file(arguments):
        return
    total = check_files(arguments)
    if arguments.input and not address(arguments.input):  # whose files would all be fetched
        kind.check_input(arguments)
    writer = kind(arguments)
    watch = ProgressReporter(
        SteadyConsole(stderr=True, highlight=False, soft_wrap=True, quiet=not is_main_process())
    )
    if len(arguments.lm_weight) > 1 or len(arguments.bias_weight) > 1:
        compare_weights(arguments, writer, total, watch)
        return
    digest = digest_of(arguments.input) if arguments.input else ""
    job = repr([*writer.job, digest]) if arguments.input and arguments.output else ""
    if arguments.resume and not arguments.reference and jax.process_count() == 1:
        check_unfinished(arguments.output, job)
    output = resumable_output(
        arguments.output if is_main_process() else Path(os.devnull),
        job,
        resume=arguments.resume and is_main_process(),
        needs="--input and --output",
        lines_per_result=writer.lines_per_input,
    )
    writer.claim(job, total)
    long = output if isinstance(output, LongOutput) else None
    outputs: list[str] = []
    start = time.monotonic()
    count = 0
    with resumable(output, watch, "line"), output as file:
        done = gathered(long.done if long else 0)[0]
        if long and done:
            watch.message(f"  continuing after line {done:,}")
            outputs = _written_before(long, writer)
        if long and long.has_discarded:
            watch.message("  starting again: dropping an earlier unfinished output")
        rest: Iterable[Written] = _decoded(arguments, writer, done)
        typed = sys.stdout and sys.stdout.isatty()
        if arguments.output or not (typed or arguments.stream):  # no bar among the outputs
            rest = watch.progress("lines", rest, None if total is None else total - done)
        for count, (text, best) in enumerate(rest, start=1):  # noqa: B007
            file.write(text)
            file.flush()  # for whoever reads along, and for --resume after a kill
            if writer.is_scored:
                outputs.append(best)
        if long and arguments.input and digest_of(arguments.input) != digest:
            long.discard()
            raise UserError(f"{arguments.input} changed while it was translated: run the same command again")
    seconds = time.monotonic() - start
    if arguments.output:
        speed = f"{counted(count, 'line')} in {seconds:.1f} s ({count / max(seconds, 1e-9):.1f}/s)"
        watch.message(f"{speed}, written to {arguments.output}")
    if arguments.verbose:
        watch.message(_programs())
    if is_main_process():
        for line in writer.scores(outputs):
            watch.message(line)


def compare_weights(
    arguments: DecodeArguments, writer: Writer, total: int | None, watch: ProgressReporter
) -> None:
    """Prints the scores of the outputs with each of the weights of a language model, or of names.

    Args:
      arguments: with several weights.
      writer: with the language model.
      total: the number of input lines, if it is known.
      watch: shows the progress.

    Raises:
      UserError: there is nothing to compare with, the input cannot be read several times, or a weight is out
        of range.
    """
    decoder = writer.decoder
    weights, option = arguments.lm_weight, "--lm-weight"
    if len(arguments.bias_weight) > 1:
        if len(weights) > 1:
            raise UserError("--lm-weight, --bias-weight: only one of them can have several weights at a time")
        weights, option = arguments.bias_weight, "--bias-weight"
    if not (writer.is_scored and arguments.input) or arguments.output:
        raise UserError(
            f"{option}: several weights are compared by their scores; give --input and --reference, and no "
            "--output"
        )
    for weight in [checked_weight(weight, option) for weight in weights]:
        if decoder.language_model and option == "--lm-weight":
            decoder.language_model = replace(decoder.language_model, weight=weight)
        if decoder.bias and option == "--bias-weight":
            decoder.bias = replace(decoder.bias, weight=weight)
        several = watch.progress(f"lines with {option} {weight:g}", _decoded(arguments, writer, 0), total)
        outputs = [best for _, best in several]
        if is_main_process():
            for line in writer.scores(outputs):
                print(f"{option} {weight:g}: {line}", flush=True)


def _decoded(arguments: DecodeArguments, writer: Writer, done: int) -> Iterator[Written]:
    """The outputs after the first `done` lines. Each process computes a part of every few lines."""
    num_processes = jax.process_count()
    process_index = jax.process_index()

    def is_own_share(numbered: Numbered) -> bool:
        return numbered is None or (numbered[0] - done - 1) // SHARE % num_processes == process_index

    every = writer.in_order(_lines(arguments))
    lines = (numbered for numbered in every if numbered is None or numbered[0] > done)
    outputs = writer.of(filter(is_own_share, lines))
    if num_processes > 1:
        while any(parts := gathered(list(itertools.islice(outputs, SHARE)))):
            yield from itertools.chain.from_iterable(parts)
    yield from (written for written in outputs if written)


def _lines(arguments: DecodeArguments) -> Iterator[Numbered]:
    """The numbered lines of the input; None where no other has arrived."""
    if arguments.input:
        yield from enumerate(lines_of(arguments), 1)
        return
    number = itertools.count(1)
    for line in standard_input(patient=jax.process_count() > 1):
        yield None if line is None else (next(number), line)


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
    folder = keep_programs()
    return f"compiled programs are cached in {folder}" if folder else "compiled programs are not cached"
