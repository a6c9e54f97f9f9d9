"""`decode.py RUN --explore`: a page instead of lines."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from transformer.cli.decode_arguments import DecodeArguments, check_files
from transformer.cli.output_file import Output
from transformer.cli.writer import OF_JSON, input_lines, writer_of
from transformer.runtime.errors import UserError, counted
from transformer.runtime.text import has_text

if TYPE_CHECKING:
    from transformer.translator.explorer.explorer import Explorer

FOR_LINES = (
    *("output", "reference", "rescore", "rescore_weights", "bleu_tokenize"),
    *(*OF_JSON, "resume", "until", "stream"),
)


def write_page(arguments: DecodeArguments) -> None:
    """Writes the page of `transformer.translator.explorer.explorer`."""
    assert arguments.explore
    for option in FOR_LINES:
        if getattr(arguments, option):
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


def page_of_sounds(arguments: DecodeArguments) -> "tuple[Explorer, str]":
    """The page of a task whose records are recordings, and what is on it."""
    from transformer.tasks.recordings import Recordings
    from transformer.translator.decoder import Decoder
    from transformer.translator.explorer.explorer import SENTENCES
    from transformer.translator.explorer.sounds import explore_sounds

    decoder: Decoder[Recordings] = Decoder.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
    manifest = arguments.input or Path("standard input")
    lines = enumerate(input_lines(arguments), start=1)
    numbered = ((number, line) for number, line in lines if has_text(line))
    some = itertools.islice(numbered, SENTENCES)
    records = [decoder.task.listed(line, manifest, number) for number, line in some]
    if not records:
        raise UserError("nothing to explore: the input has no line")
    page = explore_sounds(decoder, records, n_best=arguments.n_best, **vars(arguments.decoding))
    return (
        page,
        f"{counted(page.hypotheses, 'output')} of {counted(page.sentences, 'line')} (at most {SENTENCES})",
    )
