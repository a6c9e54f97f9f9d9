"""`decode.py RUN --explore`: a page instead of lines."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from transformer.cli.decode_arguments import DecodeArguments, check_files, lines_of
from transformer.cli.input import standard_input
from transformer.cli.output import Output
from transformer.cli.train import fields_of
from transformer.errors import UserError
from transformer.runs.run import Run
from transformer.systems.registry import find_system
from transformer.text import has_text

if TYPE_CHECKING:
    from transformer.inspection.explorer import Explorer

FOR_LINES = (
    *("output", "reference", "rescore", "rescore_weights", "bleu_tokenize"),
    *("alignments", "token_scores", "resume", "until", "stream", "times"),
)
FOR_SENTENCES = ("tsv", "glossary", "keep")


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

    page, what = _page(given)
    with Output(given.explore, "--explore") as output:
        output.write(page.html)
    print(f"{what}, {len(page.html) / 1e6:.1f} MB, written to {given.explore}: open it in a browser")


def _page(given: DecodeArguments) -> tuple["Explorer", str]:
    """The page, and what is on it."""
    from transformer.data.sources.corpora import read_lines
    from transformer.inspection.explorer import SENTENCES, explore_texts
    from transformer.systems.language_model.task import LanguageModelling
    from transformer.tasks.recordings import Recordings
    from transformer.translator.generator import Generator

    task = find_system(Run(given.run_dir).config.system).task
    if issubclass(task, Recordings):
        return _sounds(given)
    lines = read_lines(given.input) if given.input else standard_input(patient=True)
    if not issubclass(task, LanguageModelling):
        return _translations(given, (line for line in lines if line is not None))
    generator = Generator.load(given.run_dir, given.checkpoint, int8=given.int8)
    texts = (generator.task.record(line) for line in lines if line is not None)
    prompts = list(itertools.islice(texts, SENTENCES))
    if not prompts:
        raise UserError("nothing to explore: the input has no line")
    options = dict(fields_of(given.decoding))
    page = explore_texts(generator, prompts, n_best=given.n_best, **options)
    return page, f"{page.hypotheses} texts after {page.sentences} prompts (at most {SENTENCES})"


def _translations(given: DecodeArguments, lines: Iterable[str]) -> tuple["Explorer", str]:
    from transformer.cli.asked import Asking
    from transformer.inspection.explorer import SENTENCES, explore
    from transformer.translator.translator import Translator

    translator = Translator.load(given.run_dir, given.checkpoint, int8=given.int8)
    asking = Asking(given, translator)
    read = (asking(number, line) for number, line in enumerate(lines, start=1) if line)
    asked = list(itertools.islice((each for each in read if has_text(each.source)), SENTENCES))
    if not asked:
        raise UserError("nothing to explore: the input has no sentence")
    page = explore(
        translator,
        [each.source for each in asked],
        n_best=given.n_best,
        prefixes=[each.prefix for each in asked],
        terms=[each.terms for each in asked],
        **dict(fields_of(given.decoding)),
    )
    sentences = f"of {page.sentences} of the input's sentences (at most {SENTENCES})"
    return page, f"{page.hypotheses} translations {sentences}"


def _sounds(given: DecodeArguments) -> tuple["Explorer", str]:
    from transformer.cli.outputs import refuse
    from transformer.inspection.explorer import SENTENCES
    from transformer.inspection.sounds import explore_sounds
    from transformer.tasks.recordings import Recordings
    from transformer.translator.decoder import Decoder

    refuse(given, FOR_SENTENCES, f"{given.run_dir} reads or speaks recordings")
    decoder: Decoder[Recordings] = Decoder.load(given.run_dir, given.checkpoint, int8=given.int8)
    place = given.input or Path("standard input")
    lines = lines_of(given) if given.input else standard_input(patient=True)
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line and has_text(line))
    some = itertools.islice(numbered, SENTENCES)
    records = [decoder.task.listed(line, place, number) for number, line in some]
    if not records:
        raise UserError("nothing to explore: the input has no line")
    page = explore_sounds(decoder, records, n_best=given.n_best, **dict(fields_of(given.decoding)))
    return page, f"{page.hypotheses} outputs of {page.sentences} lines (at most {SENTENCES})"
