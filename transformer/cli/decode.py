"""`decode.py`: lines in, translations or a page out."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import tyro

from transformer.cli.guard import guarded
from transformer.cli.input import standard_input
from transformer.cli.output import LongOutput, Output, is_device
from transformer.cli.train import fields_of
from transformer.commands import called, program
from transformer.config import Config, DecodingConfig, HostsConfig, Option
from transformer.errors import UserError
from transformer.files import open_regular, parse_object

if TYPE_CHECKING:
    from transformer.translator.translator import Hypothesis, Translator


@dataclass(frozen=True)
class DecodeArguments:
    """Translate text, a line at a time."""

    run_dir: tyro.conf.Positional[Path]
    """Run directory."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")]
    input: Path | None = None
    """Text to translate, one sentence per line. Default: standard input."""
    output: Path | None = None
    """Output file, one translation per line. Default: standard output."""
    reference: Path | None = None
    """Reference translations. Prints BLEU and chrF with their signatures at the end."""
    bleu_tokenize: Literal["13a", "none", "intl", "char", "zh"] | None = None
    """sacreBLEU's tokenizer for --reference. Default: the one of training."""
    checkpoint: str = "best"
    """best (by validation BLEU), last, average (of the last ones), or a step."""
    int8: bool = False
    """Use int8 weights: faster on CPUs, at similar quality."""
    format: Literal["text", "scores", "json"] = "text"
    """text: the translation; scores: its score, a tab, the translation; json: an object for each
    line: its number, source, source_tokens, and hypotheses with text, tokens, score, log_probability, and
    alignment if requested (a row for each token and <eos>, a column for each source token and <eos>)."""
    rescore: Path | None = None
    """Another run, whose model re-ranks the hypotheses (see --beam-size)."""
    n_best: int | None = None
    """Translations per sentence; text and scores have that many lines per sentence. Default: 1; with
    --explore, all hypotheses of the beam."""
    alignments: bool = False
    """json: add the cross-attention of every token."""
    explore: Path | None = None
    """Write an interactive page to this file instead of translations: attention and beam search of the first
    five sentences."""
    resume: bool = False
    """Continue an interrupted --output with the same input and options."""
    hosts: HostsConfig = field(default_factory=HostsConfig)
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    """Print the number of compiled programs, their lengths, and the cache folder."""


def decode_main() -> int:
    """`decode.py RUN [options]`."""
    return guarded(program("decode"), _decode)


def _decode(arguments: list[str]) -> None:
    from transformer.runtime.hosts import join

    with short_options():
        given = parse_decode(arguments)
        join(given.hosts)
        _write_page(given) if given.explore else _translate_lines(given)


@contextlib.contextmanager
def short_options() -> Iterator[None]:
    """Replaces option names in messages by the shorter names of these commands."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("--decoding.", "--")) from error


def parse_decode(arguments: list[str]) -> DecodeArguments:
    """Parses the command line, with the run's options as defaults."""
    return tyro.cli(
        DecodeArguments,
        args=arguments,
        default=DecodeArguments(tyro.MISSING_NONPROP, run_defaults(arguments).decoding),
        prog=program("decode"),
        description=(
            f"Translate text with a trained model: {called('decode')} RUN < in > out. One line in, one line "
            "out; an empty line stays empty. Options of the search default to those stored with the run.\n\n"
            f"See why: {called('decode')} RUN --input FILE --explore page.html"
        ),
    )


def run_defaults(arguments: list[str]) -> Config:
    """The config of the run that is named in the arguments, for default options."""
    words = (word for before, word in itertools.pairwise(["", *arguments]) if before != "--rescore")
    run_dir = next((Path(word) for word in words if Path(word, "config.json").exists()), None)
    if run_dir is None:
        return Config()
    from transformer.runs.run import Run

    return Run(run_dir).config


def _translate_lines(given: DecodeArguments) -> None:
    import jax

    from transformer.data.sources.corpora import read_lines
    from transformer.runtime.console import SteadyConsole, Watch
    from transformer.runtime.hosts import by_turns, gathered, is_main_process
    from transformer.translator.rescoring import rescored
    from transformer.translator.translator import WINDOW, Translator

    if given.alignments and given.format != "json":
        raise UserError("--alignments needs --format json: the text formats do not have them")
    if given.bleu_tokenize and not given.reference:
        raise UserError("--bleu-tokenize needs --reference: without it nothing is scored")
    total = _check_files(given)
    if given.n_best is None:
        given = dataclasses.replace(given, n_best=1)
    translator = Translator.load(given.run_dir, given.checkpoint, int8=given.int8)
    judge = Translator.load(given.rescore) if given.rescore else None
    options = dict(fields_of(given.decoding))
    translator.settings(given.n_best, options)  # refuses invalid options
    kept = None if judge else given.n_best  # a reranker needs all hypotheses

    def translate(numbered: list[tuple[int, str]]) -> list[tuple[str, str]]:
        """For each numbered line the text to write, and the best translation."""
        if not numbered:
            return []
        lines = [line for _, line in numbered]
        start = numbered[0][0]
        found = translator.search(
            lines, n_best=kept, alignments=given.alignments, first_line=start, **options
        )
        several = rescored(lines, found, judge, first_line=start) if judge else found
        chosen = [hypotheses[: given.n_best] for hypotheses in several]
        if given.format == "json":
            tokens = (_source_tokens(translator, line, options) for line in lines)
            each = zip(numbered, tokens, chosen, strict=True)
            texts = [f"{_as_json(number, line, read, best)}\n" for (number, line), read, best in each]
        else:
            texts = ["".join(f"{line}\n" for line in _formatted(best, given)) for best in chosen]
        return [(text, best[0].text) for text, best in zip(texts, chosen, strict=True)]

    def sources() -> Iterator[list[str]]:
        """The lines to translate, in windows."""
        most = WINDOW * jax.process_count()
        if not given.input:
            return standard_input(most, patient=jax.process_count() > 1)
        lines = read_lines(given.input)
        return iter(lambda: list(itertools.islice(lines, most)), [])

    def translated(done: int, file: TextIO) -> Iterator[tuple[str, str]]:
        """The results of `translate` after the first `done` lines. Each process computes a part."""
        start = 1
        for window in sources():
            numbered = [(line, text) for line, text in enumerate(window, start) if line > done]
            yield from by_turns(numbered, translate)
            file.flush()
            start += len(window)

    watch = Watch(SteadyConsole(stderr=True, highlight=False, soft_wrap=True, quiet=not is_main_process()))
    began_as = _digest(given.input) if given.input else ""
    output = _output(given, translator, judge, began_as) if is_main_process() else Output(Path(os.devnull))
    long = output if isinstance(output, LongOutput) else None
    best, start, count = [], time.monotonic(), 0
    try:
        with output as file:
            done = gathered(long.done if long else 0)[0]
            if long and done:
                watch.message(f"  continuing after line {done:,}")
                best = _written_before(long, given)
            if long and long.dropped:
                watch.message("  starting again: dropping an earlier unfinished output")
            rest: Iterable[tuple[str, str]] = translated(done, file)
            if given.output or not (sys.stdout and sys.stdout.isatty()):  # no bar among the translations
                rest = watch.progress("sentences", rest, None if total is None else total - done)
            for count, (text, said) in enumerate(rest, start=1):  # noqa: B007
                file.write(text)
                if given.reference:
                    best.append(said)
            if long and given.input and _digest(given.input) != began_as:
                long.discard()
                raise UserError(f"{given.input} changed while it was translated: run the same command again")
    finally:
        if long and long.kept:
            watch.message("the unfinished output is kept: to continue it, add --resume to the same command")
    seconds = time.monotonic() - start
    if given.output:
        speed = f"{count:,} lines in {seconds:.1f} s ({count / max(seconds, 1e-9):.1f}/s)"
        watch.message(f"{speed}, written to {given.output}")
    if given.verbose:
        watch.message(_programs(translator))
    if given.reference and is_main_process():
        for line in _scores(best, given, translator):
            watch.message(line)


def _digest(path: Path) -> str:
    """A hash of a file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _output(
    given: DecodeArguments, translator: "Translator", judge: "Translator | None", text: str
) -> Output:
    """The output for the lines. From a file to a file, it can be resumed with the same model, text and
    options."""
    if not given.input or not given.output or is_device(given.output):
        if given.resume:
            raise UserError("--resume needs --input and --output: only files can be resumed")
        return Output(given.output)
    models = [translator.fingerprint(), judge and judge.fingerprint()]
    job = repr([models, text, given.n_best, given.format, given.alignments, given.decoding])
    each = 1 if given.format == "json" else given.n_best or 1
    return LongOutput(given.output, job, resume=given.resume, each=each)


def _written_before(output: LongOutput, given: DecodeArguments) -> list[str]:
    """The translations that an earlier process wrote.

    Raises:
      UserError: another program changed the file.
    """
    try:
        return [_said(line, given) for line in output.lines()]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{output.path} is damaged: run the command without --resume") from error


def _said(line: str, given: DecodeArguments) -> str:
    """The translation in a line of the output."""
    if given.format == "json":
        return str(parse_object(line)["hypotheses"][0]["text"])
    return line.partition("\t")[2] if given.format == "scores" else line


def _write_page(given: DecodeArguments) -> None:
    assert given.explore
    for option in ("output", "reference", "rescore", "bleu_tokenize", "alignments", "resume"):
        if getattr(given, option):
            raise UserError(
                f"--{option.replace('_', '-')} is for lines, --explore writes a page: leave one out"
            )
    if given.format != "text":
        raise UserError(f"--format {given.format} is for lines, --explore writes a page: leave one out")
    _check_files(given)

    from transformer.data.sources.corpora import read_lines
    from transformer.inspection.explorer import SENTENCES, explore
    from transformer.translator.translator import Translator

    read = standard_input(SENTENCES, patient=True)
    lines = read_lines(given.input) if given.input else itertools.chain.from_iterable(read)
    sources = list(itertools.islice(filter(str.strip, lines), SENTENCES))
    if not sources:
        raise UserError("nothing to explore: the input has no sentence")
    translator = Translator.load(given.run_dir, given.checkpoint, int8=given.int8)
    page = explore(translator, sources, n_best=given.n_best, **dict(fields_of(given.decoding)))
    with Output(given.explore, "--explore") as output:
        output.write(page.html)
    print(
        f"{page.hypotheses} translations of {page.sentences} of the input's sentences (at most {SENTENCES}), "
        f"{len(page.html) / 1e6:.1f} MB, written to {given.explore}: open it in a browser"
    )


def _programs(translator: "Translator") -> str:
    from transformer.runtime.compilation import keep_programs

    lengths = sorted({length for length, _ in translator.programs})
    kept = keep_programs()
    return (
        f"compiled programs: {len(translator.programs)}, for sources padded to "
        f"{', '.join(map(str, lengths)) or '-'}; " + (f"cached in {kept}" if kept else "not cached")
    )


def _check_files(given: DecodeArguments) -> int | None:
    """The number of lines to translate, or None if it is unknown. Raises UserError for bad files."""
    from transformer.data.sources.corpora import read_lines

    option, output = ("--explore", given.explore) if given.explore else ("--output", given.output)
    if output and not is_device(output):
        if output.is_dir() or not output.name:
            raise UserError(f"{option} {output} is a folder: name a file")
        if not os.access(output.absolute().parent, os.W_OK):
            raise UserError(f"cannot write {option} {output}: its folder is missing or read-only")
        for source, path in (("--input", given.input), ("--reference", given.reference)):
            if path and path.exists() and output.exists() and path.samefile(output):
                raise UserError(f"{option} {output} is the file of {source}, which would be lost")
    for option, path in (("--input", given.input), ("--reference", given.reference)):
        if path and is_device(path):
            pipe = "< FILE" if option == "--input" else "a file"
            raise UserError(f"{option} {path} can be read only once: give {pipe}")
    total = sum(1 for _ in read_lines(given.input)) if given.input else None
    if given.reference:
        references = sum(1 for _ in read_lines(given.reference))
        if total is not None and references != total:
            raise UserError(f"{given.input} has {total} lines but {given.reference} has {references}")
    return total


def _source_tokens(translator: "Translator", source: str, options: dict[str, Option]) -> list[str]:
    """The subwords of a truncated source: the columns of an alignment, except <eos>."""
    if not source.strip():
        return []
    ids = translator.source_row(source, **options)[0]
    special = translator.config.model.special
    words = [index for index in ids if index not in (special.pad, special.eos)]
    pieces: list[str] = translator.tokenizers[0].for_source(source).pieces(words)
    return pieces


def _as_json(line: int, source: str, source_tokens: list[str], hypotheses: Sequence["Hypothesis"]) -> str:
    """One line of --format json."""
    fields = [dataclasses.asdict(hypothesis) for hypothesis in hypotheses]
    for values in fields:
        del values["ids"]
        alignment = values.pop("alignment")
        if alignment is not None:
            values["alignment"] = [[round(float(x), 4) for x in row] for row in alignment]
    about = {"line": line, "source": source, "source_tokens": source_tokens, "hypotheses": fields}
    return json.dumps(about, ensure_ascii=False)


def _formatted(hypotheses: Sequence["Hypothesis"], given: DecodeArguments) -> Iterable[str]:
    from transformer.data.sources.corpora import one_line

    # always n_best lines: the only translation of an empty sentence is repeated
    hypotheses = list(hypotheses) + [hypotheses[-1]] * ((given.n_best or 1) - len(hypotheses))
    # a model may output a line break, but a translation is one line
    texts = [one_line(hypothesis.text) for hypothesis in hypotheses]
    if given.format == "scores":
        return [f"{hypothesis.score:.4f}\t{text}" for hypothesis, text in zip(hypotheses, texts, strict=True)]
    return texts


def _scores(translations: list[str], given: DecodeArguments, translator: "Translator") -> list[str]:
    """The scores of the translations by --reference, one line each."""
    from transformer.data.sources.corpora import read_lines
    from transformer.evaluation.scores import bleu, chrf, exact_match

    assert given.reference
    references = [translator.tokenizers[1].plain(line) for line in read_lines(given.reference)]
    if len(references) != len(translations):
        raise UserError(
            f"{len(translations)} lines were translated but {given.reference} has {len(references)}"
        )
    if not references:
        return []
    tokenize = given.bleu_tokenize or translator.config.training.bleu_tokenize
    several = (bleu(translations, references, tokenize), chrf(translations, references))
    scores = [f"{score.detail}   {score.signature}" for score in several]
    return [*scores, exact_match(translations, references).detail]
