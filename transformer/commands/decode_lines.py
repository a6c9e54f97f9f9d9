"""`decode.py RUN`: lines or a document in; lines, a document or a page out."""

import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import jax

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.input import check_files, digest_of, lines_of, read_files, standard_input
from transformer.cli.output_file import LongOutput, Output, check_output, resumable, resumable_output
from transformer.cli.writer import Numbered, Writer, Written, is_given, writer_of
from transformer.commands.translations import translator_of
from transformer.data.remote import fetched
from transformer.data.sources.text_files import whole_text
from transformer.documents.document import TranslatedDocument, TranslatedSentence, check_translates
from transformer.runtime.compilation import keep_programs
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import address, brief, failing, json_line, read_bytes
from transformer.runtime.hosts import gathered, is_main_process
from transformer.runtime.text import printable
from transformer.translator.beside import checked_weight
from transformer.translator.search_outputs import Extras

# `decode.py RUN --document FILE`: a document in, its translation out, and what is suspicious about it.


MARKDOWN = (".md", ".markdown")
"""Names of Markdown files end so."""
OTHERS = (".doc", ".docx", ".odt", ".rtf", ".pdf", ".epub", ".tex", ".htm", ".html", ".xml", ".srt", ".vtt")
"""Names of documents that are neither Markdown nor plain text end so."""
SHOWN = 10  # flagged sentences that are shown


def translate_file(arguments: DecodeArguments) -> None:
    """Translates a document.

    Raises:
      UserError: an option or the file is wrong, or the run does not translate.
    """
    assert arguments.document
    writer_of(arguments.run_dir).checked_way(arguments)
    check_files(arguments)
    if arguments.flags:
        outputs = [("--output", arguments.output)] if arguments.output else []
        check_output("--flags", arguments.flags, [*read_files(arguments), *outputs])
    text = read_document(arguments.document)
    translator = translator_of(arguments)
    check_translates(translator.task)
    watch = ProgressReporter.beside_output()
    with Output(arguments.output) as file:
        document = translator.translate_document(
            text,
            "markdown" if arguments.document.suffix.lower() in MARKDOWN else "text",
            progress=lambda items, total: watch.progress("sentences", items, total),
            **vars(arguments.decoding),
        )
        file.write(document.text)
    if arguments.flags:
        with Output(arguments.flags, "--flags") as file:
            file.writelines(json_line(sentence.to_dict()) for sentence in document.flagged)
    for line in report(document):
        watch.message(line)


def read_document(path: Path) -> str:
    """The text of a document.

    Raises:
      UserError: it cannot be read, is no text, or has none.
    """
    if path.suffix.lower() in OTHERS:
        raise UserError(
            f"--document {path}: give plain text or Markdown, into which other documents can be converted, "
            "for example with pandoc"
        )
    with failing(f"cannot read --document {path}"):
        text = whole_text(read_bytes(fetched(path)), f"--document {path}")
    if "\0" in text:
        raise UserError(f"--document {path} is a binary file: give plain text or Markdown")
    if not text.strip():
        raise UserError(f"--document {path} is empty: there is nothing to translate")
    return text


def report(document: TranslatedDocument) -> list[str]:
    """What is suspicious about a translated document, on a line each."""
    flagged = document.flagged
    lines = [f"{len(flagged):,} of {counted(len(document.sentences), 'sentence')} flagged"]
    lines += map(_shown, flagged[:SHOWN])
    if len(flagged) > SHOWN:
        lines.append(f"  and {len(flagged) - SHOWN:,} more: --flags FILE lists all")
    return lines


def _shown(sentence: TranslatedSentence) -> str:
    flags = ", ".join(sentence.flags)
    return f"  line {sentence.line:,}: {flags}: {brief(sentence.source)} -> {brief(sentence.text)}"


SHARE = 256  # consecutive lines that one process decodes


def write_page(arguments: DecodeArguments) -> None:
    """Writes the page of `transformer.explorer.explorer`."""
    assert arguments.explore
    writer = writer_of(arguments.run_dir)
    writer.checked_way(arguments)
    check_files(arguments)
    page, title = writer.page(arguments)
    with Output(arguments.explore, "--explore") as output:
        output.write(page.html)
    print(f"{title}, {len(page.html) / 1e3:,.0f} kB, written to {arguments.explore}: open it in a browser")


def decode_lines(arguments: DecodeArguments) -> None:
    """Decodes every line of the input, and scores the outputs.

    Raises:
      UserError: an option or a file is wrong, or the input changed meanwhile.
    """
    writer_class = writer_of(arguments.run_dir)
    if writer_class.write_file(arguments, writer_class.checked_way(arguments)):
        return
    total = check_files(arguments)
    if arguments.input and not address(arguments.input):  # whose files would all be fetched
        writer_class.check_input(arguments)
    writer = writer_class(arguments)
    watch = ProgressReporter.beside_output(quiet=not is_main_process())
    writer.within = watch.within
    if len(arguments.lm_weight) > 1 or len(arguments.bias_weight) > 1:
        compare_weights(arguments, writer, total, watch)
        return
    digest = digest_of(arguments.input) if arguments.input else ""
    job = repr([*writer.job, digest]) if arguments.input and arguments.output else ""
    output = resumable_output(
        arguments.output if is_main_process() else Path(os.devnull),
        job,
        resume=arguments.resume and is_main_process(),
        needs="--input and --output",
        again=bool(arguments.reference) or jax.process_count() > 1,
        lines_per_result=writer.lines_per_input,
    )
    writer.claim(job, total)
    outputs: list[str] = []
    start = time.monotonic()
    count = 0
    with resumable(output, watch, "line"), output as file:
        done = gathered(output.done)[0]
        if output.done:
            watch.message(f"  continuing after line {done:,}")
            outputs = output.results(writer.read)
        if output.has_discarded:
            watch.message("  starting again: dropping an earlier unfinished output")
        written: Iterable[Written] = _decoded(arguments, writer, done)
        typed = sys.stdout and sys.stdout.isatty()
        if arguments.output or not (typed or arguments.stream):  # no bar among the outputs
            written = watch.progress("lines", written, None if total is None else total - done)
        for count, (text, best) in enumerate(written, start=1):  # noqa: B007
            file.write(text)
            file.flush()  # for whoever reads along, and for --resume after a kill
            if writer.is_scored:
                outputs.append(best)
        if isinstance(output, LongOutput) and arguments.input and digest_of(arguments.input) != digest:
            output.discard()
            raise UserError(f"{arguments.input} changed while it was translated: run the same command again")
    seconds = time.monotonic() - start
    if arguments.output:
        speed = f"{counted(count, 'line')} in {seconds:.1f} s ({count / max(seconds, 1e-9):.1f}/s)"
        watch.message(f"{speed}, written to {arguments.output}")
    if arguments.verbose:
        folder = keep_programs()
        watch.message(f"compiled programs are {f'cached in {folder}' if folder else 'not cached'}")
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
    of_outputs = ["format", "n_best", "resume", *(item.name for item in fields(Extras))]
    if ignored := [f"--{name.replace('_', '-')}" for name in of_outputs if is_given(arguments, name)]:
        raise UserError(f"{option}: of several weights only scores are printed; leave {ignored[0]} out")
    for weight in [checked_weight(weight, option) for weight in weights]:
        if decoder.language_model and option == "--lm-weight":
            decoder.language_model = replace(decoder.language_model, weight=weight)
        if decoder.bias and option == "--bias-weight":
            decoder.bias = replace(decoder.bias, weight=weight)
        written = watch.progress(f"lines with {option} {weight:g}", _decoded(arguments, writer, 0), total)
        outputs = [best for _, best in written]
        if is_main_process():
            for line in writer.scores(outputs):
                print(printable(f"{option} {weight:g}: {line}"), flush=True)


def _decoded(arguments: DecodeArguments, writer: Writer, done: int) -> Iterator[Written]:
    """The outputs after the first `done` lines. Each process computes a part of every few lines."""
    num_processes = jax.process_count()
    process_index = jax.process_index()

    def is_own_share(numbered: Numbered) -> bool:
        return numbered is None or (numbered[0] - done - 1) // SHARE % num_processes == process_index

    numbered_lines = writer.in_order(_lines(arguments))
    lines = (numbered for numbered in numbered_lines if numbered is None or numbered[0] > done)
    outputs = writer.of(filter(is_own_share, lines))
    if num_processes > 1:
        while any(shares := gathered(list(itertools.islice(outputs, SHARE)))):
            yield from itertools.chain.from_iterable(shares)
    yield from (written for written in outputs if written)


def _lines(arguments: DecodeArguments) -> Iterator[Numbered]:
    """The numbered lines of the input; None where no other has arrived."""
    if arguments.input:
        yield from enumerate(lines_of(arguments), 1)
        return
    number = itertools.count(1)
    for line in standard_input(patient=jax.process_count() > 1):
        yield None if line is None else (next(number), line)
