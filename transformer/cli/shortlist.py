"""The command that makes the lexical shortlist of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from transformer.cli.guard import run_command
from transformer.cli.parser import parse
from transformer.config.ranges import LONGEST, Range, check_ranges
from transformer.runtime.commands import command, program
from transformer.runtime.errors import UserError
from transformer.runtime.files import check_local


@dataclass(frozen=True)
class ShortlistArguments:
    """Make the lexical shortlist of a run (RUN/shortlist.bin, in Marian's format): for each source token its
    most probable translations in a parallel text, by IBM model 1 (Brown et al. 1993)."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory of a model that translates."""
    source: Path
    """Text in the source language, one sentence per line."""
    target: Path
    """Its translations, line by line."""
    best: Annotated[int, Range(1, LONGEST)] = 50
    """Translations of each source token."""
    frequent: Annotated[int, Range(1, LONGEST)] = 50
    """Number of the most frequent target tokens, which every output may have."""

    def __post_init__(self) -> None:
        check_ranges("", self)


def shortlist_main() -> int:
    """`python -m transformer shortlist RUN --source FILE --target FILE`."""
    return run_command(program("shortlist"), _shortlist)


def _shortlist(command_line: list[str]) -> None:
    arguments = parse(ShortlistArguments, command_line, "shortlist")
    check_local(arguments.run_dir, "the run directory")
    from transformer.data.features.shortlist import FILE, counted
    from transformer.data.sources.text_files import read_pairs
    from transformer.runs.run import Run
    from transformer.translator.translator import translation_of

    run = Run(arguments.run_dir)
    if any(tokenizer.has_codes for tokenizer in translation_of(run).tokenizers):
        raise UserError(
            f"{run.name} translates between several languages, and a shortlist is for one direction: search "
            "without it"
        )
    texts = zip(*read_pairs(arguments.source, arguments.target), strict=True)
    tokenizers = translation_of(run).tokenizers
    ids = [tokenizer.encode_all(lines) for tokenizer, lines in zip(tokenizers, texts, strict=True)]
    model = run.config.model
    sizes = model.vocab_size, model.output_size
    pairs = list(zip(*ids, strict=True))
    table = counted(pairs, sizes, model.special.eos, arguments.best, arguments.frequent)
    try:
        table.write(run.path / FILE)
    except OSError as error:
        raise UserError(f"cannot write {run.name}/{FILE}: {error.strerror}") from error
    print(f"Written to {run.name}/{FILE}: {len(table.ids):,} translations, from {len(pairs):,} pairs")
    print(f'Try: echo "..." | {command("decode", run.name, "--shortlist")}')
