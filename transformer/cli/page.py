"""`decode.py RUN --explore`: a page instead of lines."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from transformer.cli.decode_arguments import DecodeArguments, check_files
from transformer.cli.output_file import Output
from transformer.cli.writer import lines_given, writer_of
from transformer.errors import UserError
from transformer.text import has_text

if TYPE_CHECKING:
    from transformer.inspection.explorer import Explorer

FOR_LINES = (
    *("output", "reference", "rescore", "rescore_weights", "bleu_tokenize"),
    *("alignments", "token_scores", "resume", "until", "stream", "times"),
)


def write_page(given: DecodeArguments) -> None:
    """Writes the page of `transformer.inspection.explorer`."""
    assert given.explore
    for option in FOR_LINES:
        if getattr(given, option):
            raise UserError(
                f"--{option.replace('_', '-')} is for lines, --explore writes a page: leave one out"
            )
    if given.format != "text":
        raise UserError(f"--format {given.format} is for lines, --explore writes a page: leave one out")
    if given.ensemble:
        raise UserError("--explore shows one model: leave out the other runs")
    check_files(given)
    writer_of(given).refuse_unused(given)

    page, what = writer_of(given).page(given)
    with Output(given.explore, "--explore") as output:
        output.write(page.html)
    print(f"{what}, {len(page.html) / 1e6:.1f} MB, written to {given.explore}: open it in a browser")


def page_of_sounds(given: DecodeArguments) -> "tuple[Explorer, str]":
    """The page of a task whose records are recordings, and what is on it."""
    from transformer.inspection.explorer import SENTENCES
    from transformer.inspection.sounds import explore_sounds
    from transformer.tasks.recordings import Recordings
    from transformer.translator.decoder import Decoder

    decoder: Decoder[Recordings] = Decoder.load(given.run_dir, given.checkpoint, int8=given.int8)
    place = given.input or Path("standard input")
    lines = enumerate(lines_given(given), start=1)
    numbered = ((number, line) for number, line in lines if has_text(line))
    some = itertools.islice(numbered, SENTENCES)
    records = [decoder.task.listed(line, place, number) for number, line in some]
    if not records:
        raise UserError("nothing to explore: the input has no line")
    page = explore_sounds(decoder, records, n_best=given.n_best, **vars(given.decoding))
    return page, f"{page.hypotheses} outputs of {page.sentences} lines (at most {SENTENCES})"
