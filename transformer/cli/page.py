"""`decode.py RUN --explore`: a page instead of lines."""

import itertools

from transformer.cli.decode_arguments import DecodeArguments, check_files
from transformer.cli.input import standard_input
from transformer.cli.output import Output
from transformer.cli.train import fields_of
from transformer.errors import UserError


def write_page(given: DecodeArguments) -> None:
    """Writes the page of `transformer.inspection.explorer`."""
    assert given.explore
    for option in (
        "output",
        "reference",
        "rescore",
        "rescore_weights",
        "bleu_tokenize",
        "alignments",
        "token_scores",
        "resume",
    ):
        if getattr(given, option):
            raise UserError(
                f"--{option.replace('_', '-')} is for lines, --explore writes a page: leave one out"
            )
    if given.format != "text":
        raise UserError(f"--format {given.format} is for lines, --explore writes a page: leave one out")
    if given.ensemble:
        raise UserError("--explore shows one model: leave out the other runs")
    check_files(given)

    from transformer.cli.asked import Asking
    from transformer.data.sources.corpora import read_lines
    from transformer.inspection.explorer import SENTENCES, explore
    from transformer.translator.translator import Translator

    lines = read_lines(given.input) if given.input else standard_input(patient=True)
    translator = Translator.load(given.run_dir, given.checkpoint, int8=given.int8)
    asking = Asking(given, translator)
    read = (asking(number, line) for number, line in enumerate(lines, start=1) if line)
    asked = list(itertools.islice((each for each in read if each.source.strip()), SENTENCES))
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
    with Output(given.explore, "--explore") as output:
        output.write(page.html)
    print(
        f"{page.hypotheses} translations of {page.sentences} of the input's sentences (at most {SENTENCES}), "
        f"{len(page.html) / 1e6:.1f} MB, written to {given.explore}: open it in a browser"
    )
