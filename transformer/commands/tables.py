"""The commands that make tables for a search: the lexical shortlist, and an n-gram language model."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from transformer.cli.output_file import check_output
from transformer.cli.parser import parsed_command
from transformer.config.ranges import SIZE, Range
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import check_local, check_writable, display_path, writing
from transformer.runtime.invocation import command

# The command that makes an n-gram language model of the tokens of a run.


MOST_UNKNOWN = 0.1
"""Share of the tokens of a text that may be unknown without a warning."""
log = logging.getLogger("transformer")


@dataclass(frozen=True)
class NgramArguments:
    """Make an n-gram language model of text in ARPA form, whose words are the tokens that a run writes, for
    decode.py --lm. Each line of the text is a sentence."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory of a model that writes text token by token."""
    input: Path
    """Text in the language of the outputs, one sentence per line."""
    output: Path = Path("lm.arpa")
    """File to write."""
    order: Annotated[int, Range(1, 9)] = 3
    """Length of the longest n-grams."""
    smoothing: Literal["kneser-ney", "witten-bell"] = "kneser-ney"
    """How probability is given to what the text has not; both interpolate with lower orders."""
    tokens: Path | None = None
    """Write the tokens of the text to this file, one sentence per line, for other programs that estimate
    n-gram models."""


@parsed_command(NgramArguments, "ngram")
def ngram_main(arguments: NgramArguments) -> None:
    """`python -m transformer ngram RUN --input FILE --output FILE`."""
    files = [("--input", arguments.input)]
    check_output("--output", arguments.output, files)
    if arguments.tokens:
        check_output("--tokens", arguments.tokens, [*files, ("--output", arguments.output)])
    from transformer.data.sources.text_files import one_line, read_lines
    from transformer.decoding.beside.arpa import MOST_NGRAMS, UNKNOWN, estimated
    from transformer.runs.run import Run
    from transformer.runtime.files import write_output
    from transformer.runtime.text import has_text
    from transformer.translator.beside import named_tokens, output_tokenizer, token_names

    run = Run(arguments.run_dir)
    tokenizer = output_tokenizer(run.system, run.task, f"{run.name}", "give a run that --lm is for")
    names = token_names(tokenizer)

    def sentences() -> Iterator[list[str]]:
        for line in read_lines(arguments.input):
            if has_text(line):
                yield named_tokens(tokenizer, names, one_line(line))

    lines = list(sentences())
    if not lines:
        raise UserError(f"--input {arguments.input} has no sentences")
    unknown = sum(line.count(UNKNOWN) for line in lines) / sum(map(len, lines))
    if unknown > MOST_UNKNOWN:
        log.warning(
            "%s: %.0f %% of the tokens are %s, which the vocabulary of %s lacks: is this text in the "
            "language of its outputs, and spelled as they are?",
            arguments.input,
            100 * unknown,
            UNKNOWN,
            run.name,
        )
    grams = estimated(lines, arguments.order, sum(map(bool, names)), arguments.smoothing)
    sizes = [len(ngrams) for ngrams in grams.orders]
    if sum(sizes) > MOST_NGRAMS:
        raise UserError(
            f"--input {arguments.input}: {sum(sizes):,} n-grams, and a search holds {MOST_NGRAMS:,}; choose "
            "a lower --order or less text"
        )
    with writing(arguments.output):
        grams.write(arguments.output)
    if arguments.tokens:
        with writing(arguments.tokens):
            write_output(arguments.tokens, "".join(f"{' '.join(words)}\n" for words in lines))
    counts = ", ".join(f"{size:,} {n}-grams" for n, size in enumerate(sizes, 1))
    print(f"Written to {display_path(arguments.output)}: {counts} of {counted(len(lines), 'sentence')}")
    print("Try:", command("decode", run.name, "--lm", str(arguments.output), "--lm-weight", "0.3"))


@dataclass(frozen=True)
class ShortlistArguments:
    """Make the lexical shortlist of a run (RUN/shortlist.bin, in Marian's format): for each source token its
    most probable translations in a parallel text, by IBM model 1 (Brown et al. 1993)."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory of a model that translates."""
    source: Path
    """Text in the source language, one sentence per line."""
    target: Path
    """Translations of --source, line by line."""
    best: Annotated[int, SIZE] = 50
    """Translations of each source token."""
    frequent: Annotated[int, SIZE] = 50
    """Number of the most frequent target tokens, which every output may have."""


@parsed_command(ShortlistArguments, "shortlist")
def shortlist_main(arguments: ShortlistArguments) -> None:
    """`python -m transformer shortlist RUN --source FILE --target FILE`."""
    check_local(arguments.run_dir, "the run directory")
    check_writable(arguments.run_dir)
    from transformer.data.sources.text_files import read_pairs
    from transformer.decoding.searches.shortlist import FILE, counted_table
    from transformer.runs.run import Run
    from transformer.translator.translator import translation_of

    run = Run(arguments.run_dir)
    if translation_of(run).tokenizers[1].has_codes:
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
    table = counted_table(pairs, sizes, model.special.eos, arguments.best, arguments.frequent)
    with writing(f"{run.name}/{FILE}"):
        table.write(run.path / FILE)
    print(f"Written to {run.name}/{FILE}: {len(table.ids):,} translations, from {len(pairs):,} pairs")
    print(f'Try: echo "..." | {command("decode", run.name, "--shortlist")}')
