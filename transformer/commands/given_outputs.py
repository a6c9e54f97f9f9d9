"""The commands about outputs that are there: how probable a model finds translations, and when each word of a
text is said in its recording."""

import contextlib
import itertools
import math
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from transformer.cli.input import digest_of
from transformer.cli.output_file import Output, check_output, resumable, resumable_output
from transformer.cli.parser import parsed_command
from transformer.config.ranges import Range
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import Stopped, UserError, counted
from transformer.runtime.files import Json, json_line, prefixed_errors
from transformer.runtime.machine import check_libraries
from transformer.runtime.text import has_text

if TYPE_CHECKING:
    from transformer.data.sources.recordings import Listed
    from transformer.data.store import Pair
    from transformer.runs.run import Run
    from transformer.translator.translator import Translator


def _write(
    arguments: "ScoreArguments | AlignArguments",
    job: str,
    texts: Callable[[int], Iterator[str]],
    total: int,
    watch: ProgressReporter,
    unit: str,
    deed: str,
) -> None:
    """Writes the outputs of a command, and shows how far it is.

    Args:
      arguments: of the command.
      job: what its output depends on.
      texts: (number of items that are left out at the beginning) -> the output of each other one.
      total: number of items.
      watch: shows the progress.
      unit: what an item is called.
      deed: what is done with each, such as scored.
    """
    output = resumable_output(arguments.output, job, resume=arguments.resume, needs="--output")
    with resumable(output, watch, unit), output as file:
        if done := output.done:
            watch.message(f"  continuing after {unit} {done:,}")
        outputs: Iterable[str] = texts(done)
        if arguments.output or not (sys.stdout and sys.stdout.isatty()):  # no bar among the outputs
            outputs = watch.progress(f"{unit}s {deed}", outputs, total - done)
        for text in outputs:
            file.write(text)
    where = f", written to {arguments.output}" if arguments.output else ""
    watch.message(f"{counted(total, unit)} {deed}{where}")


# Translations.


WINDOW = 8192  # pairs that are scored together, so that those of like length share a batch


@dataclass(frozen=True)
class ScoreArguments:
    """Score translations that are there by a trained model, to compare them or to leave the worst out."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory of a model that translates, or makes other texts of texts; or of a masked language model
    (masked-lm, BERT), which scores the targets alone."""
    source: Path
    """Sources, one on each line."""
    target: Path
    """Translations of the sources, line by line."""
    output: Path | None = None
    """File for the scores, a line for each pair, with tabs: the score; log P(target | source) in nats; the
    tokens of the target, with <eos>; with --reverse also log P(source | target) and the tokens of the source.
    The score is log P by token, unless --reverse says otherwise; -inf if a side is empty. A masked language
    model adds up log P of each token of the target given all others (Salazar et al. 2020). Default: standard
    output."""
    reverse: Path | None = None
    """Run directory of a model of the other direction. The score is then between 0 and 1: exp(-(|a - b| + (a
    + b) / 2)), where a and b are -log P by token under the two models (dual conditional cross-entropy,
    Junczys-Dowmunt 2018)."""
    keep: Annotated[float | None, Range(0, 1, above=True)] = None
    """Share of the pairs, those with the best scores, that is written into --output-source and
    --output-target."""
    output_source: Path | None = None
    """File for the sources that --keep keeps, in their order."""
    output_target: Path | None = None
    """File for the translations of these sources."""
    source_language: str | None = None
    """Code of the source language, for a model of many languages. Default: the one of the run."""
    target_language: str | None = None
    """Code of the target language."""
    checkpoint: str = "best"
    """Checkpoint to score with: best (by the first score of the validation), last, average (of the last
    ones), or a step."""
    int8: bool = False
    """Use int8 weights: faster on CPUs, at similar quality."""
    resume: bool = False
    """Continue an interrupted --output with the same input and options."""


@parsed_command(ScoreArguments, "score")
def score_main(arguments: ScoreArguments) -> None:
    """`python -m transformer score RUN --source FILE --target FILE`."""
    files = [("--source", arguments.source), ("--target", arguments.target)]
    for name in ("output", "output_source", "output_target"):
        if path := getattr(arguments, name):
            check_output(option := f"--{name.replace('_', '-')}", path, files)
            files.append((option, path))
    needed = arguments.keep, arguments.output_source, arguments.output_target
    if any(needed) and not all((*needed, arguments.output)):
        raise UserError(
            "--keep SHARE, --output-source FILE and --output-target FILE need each other, and --output FILE: "
            "give all of them"
        )
    from transformer.data.sources.text_files import read_pairs

    scorer, identity = _scorer_of(arguments)
    watch = ProgressReporter.beside_output()
    counting = watch.progress("reading", read_pairs(arguments.source, arguments.target), None)
    total = sum(1 for _ in counting)
    digests = [digest_of(arguments.source), digest_of(arguments.target)]
    job = repr(["score", *identity, digests])
    with contextlib.suppress(*[Stopped] * bool(arguments.keep)):  # finished, and other pairs may be kept now

        def scores(done: int) -> Iterator[str]:
            pairs = itertools.islice(enumerate(read_pairs(arguments.source, arguments.target), 1), done, None)
            while window := list(itertools.islice(pairs, WINDOW)):
                for numbers in scorer(window):
                    yield "\t".join(f"{number:.6g}" for number in numbers) + "\n"

        _write(arguments, job, scores, total, watch, "pair", "scored")
    if arguments.keep:
        watch.message(_write_best(arguments))


Window = list[tuple[int, "Pair"]]
"""Some pairs, with the numbers of their lines."""
Scorer = Callable[[Window], Iterator[tuple[float, ...]]]
"""The numbers of each pair."""


def _scorer_of(arguments: ScoreArguments) -> tuple[Scorer, tuple[Any, ...]]:
    """What scores the pairs of a command, and what the scores depend on.

    Raises:
      UserError: a run gives no scores, or options are not for it.
    """
    from transformer.runs.run import Run
    from transformer.translator.translator import Translator, translation_of

    runs = [Run(path) for path in (arguments.run_dir, arguments.reverse) if path]
    languages = arguments.source_language, arguments.target_language
    if runs[0].system.fluency:
        for option, value in ("--reverse", arguments.reverse), ("--int8", arguments.int8):
            if value:
                raise UserError(f"{option}: {runs[0].name} is a masked language model; leave it out")
        if any(languages):
            raise UserError(f"{runs[0].name} is a masked language model: leave out the languages")
        return _fluency(runs[0], arguments.checkpoint)
    for run in runs:
        translation_of(run)
        run.system.required("scores")
    models = [
        Translator.load(run.path, arguments.checkpoint, int8=arguments.int8).between(*ordered)
        for run, ordered in zip(runs, (languages, languages[::-1]), strict=False)
    ]
    identity = (*(model.fingerprint() for model in models), languages)
    return lambda window: scored_pairs(models, window), identity


def scored_pairs(models: "Sequence[Translator]", window: Window) -> Iterator[tuple[float, ...]]:
    """The numbers of each pair, as `ScoreArguments.output` says.

    Args:
      models: of the direction of the pairs, and perhaps of the other one.
      window: the pairs.
    """
    full = [(line, pair) for line, pair in window if all(map(has_text, pair))]
    columns = list[list[float]]()
    lines, sides = [line for line, _ in full], list(zip(*(pair for _, pair in full), strict=True))
    for model in models if full else ():
        log_p, counts = model.log_probabilities(*sides, lines=lines)
        columns += [log_p.tolist(), counts.tolist()]
        sides.reverse()
    numbers = iter(zip(*columns, strict=True))
    for _, pair in window:
        if all(map(has_text, pair)):
            of_pair = next(numbers)
            yield dual_score(*of_pair), *of_pair
        else:
            yield -math.inf, *(-math.inf, 0) * len(models)


POSITIONS = 2048  # of a batch that a masked language model reads at once


def _fluency(run: "Run", checkpoint: str) -> tuple[Scorer, tuple[Any, ...]]:
    """What scores the targets of pairs alone, by the masked language model of a run; and what the scores
    depend on."""
    from transformer.runs.run import hash_of
    from transformer.translator.search_inputs import padded

    task, config, fluency = run.task, run.config.model, run.system.required("fluency")
    model, variables = run.system.model(config), run.variables(checkpoint)

    def scores(window: Window) -> Iterator[tuple[float, ...]]:
        ids = [example["source"] for example in task.examples([target for _, (_, target) in window])]
        for (line, _), sentence in zip(window, ids, strict=True):
            if config.longest and len(sentence) > config.longest:
                raise UserError(
                    f"line {line}: {len(sentence)} tokens, and {run.name} has {config.longest} positions"
                )
        numbers = np.zeros((len(ids), 2))
        lengths = [1 << (len(sentence) - 1).bit_length() for sentence in ids]
        for length in sorted(set(lengths)):
            rows = [row for row, row_length in enumerate(lengths) if row_length == length]
            size, width = max(1, POSITIONS // length), min(length, config.longest or length)
            for start in range(0, len(rows), size):
                chosen = rows[start : start + size]
                batch = padded([ids[row] for row in chosen], width, size, config.special.pad)
                numbers[chosen] = np.stack(fluency(model, variables, batch), 1)[: len(chosen)]
        for (_, pair), (log_p, count) in zip(window, numbers.tolist(), strict=True):
            scored = count and all(map(has_text, pair))
            yield (log_p / count, log_p, count) if scored else (-math.inf, -math.inf, 0)

    return scores, (hash_of(variables["params"]), task.content())


def dual_score(log_p: float, count: int, *reverse: float) -> float:
    """The score of a pair.

    Args:
      log_p: log P(target | source).
      count: tokens of the target.
      reverse: log P(source | target), and the tokens of the source.

    Returns:
      log P by token; with a reverse model that of dual conditional cross-entropy (Junczys-Dowmunt 2018).
    """
    if not reverse:
        return log_p / count
    a, b = -log_p / count, -reverse[0] / reverse[1]
    return math.exp(-(abs(a - b) + (a + b) / 2))


def _write_best(arguments: ScoreArguments) -> str:
    """Writes the pairs of --keep. Returns a sentence about them."""
    from transformer.data.sources.text_files import read_lines, read_pairs

    assert arguments.output
    assert arguments.keep
    scores = np.array([float(line.partition("\t")[0]) for line in read_lines(arguments.output)])
    best = np.argsort(-scores, kind="stable")[: max(1, round(arguments.keep * len(scores)))]
    best = best[np.isfinite(scores[best])]
    is_kept = np.zeros(len(scores), bool)
    is_kept[best] = True
    with (
        Output(arguments.output_source, "--output-source") as sources,
        Output(arguments.output_target, "--output-target") as targets,
    ):
        pairs = read_pairs(arguments.source, arguments.target)
        for source, target in itertools.compress(pairs, is_kept):
            sources.write(f"{source}\n")
            targets.write(f"{target}\n")
    least = f", with scores of at least {scores[best].min():.4g}" if len(best) else ""
    return f"{counted(len(best), 'pair')} of {len(scores):,} kept{least}"


# Recordings.


@dataclass(frozen=True)
class AlignArguments:
    """Align texts with their recordings: when each word is said, by CTC. This needs a recogniser of speech
    that was trained with --model.ctc-weight."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    input: Path | None = None
    """Lines of a file name, relative to this file, a tab and what is said. Nothing after the tab:
    silence."""
    output: Path | None = None
    """File for the alignments, a JSON object on each line: line, recording, text, words and tokens with their
    times in seconds (none of silence), and the log-probability of the text. Default: standard output."""
    checkpoint: str = "best"
    """Checkpoint to align with: best (by the first score of the validation), last, average (of the last
    ones), or a step."""
    int8: bool = False
    """Use int8 weights: faster on CPUs, at similar quality."""
    resume: bool = False
    """Continue an interrupted --output with the same input and options."""


@parsed_command(AlignArguments, "align")
def align_main(arguments: AlignArguments) -> None:
    """`python -m transformer align RUN --input LIST`."""
    if arguments.input is None:
        raise UserError("--input is missing: a file with a recording, a tab and its text on each line")
    if arguments.output:
        check_output("--output", arguments.output, [("--input", arguments.input)])
    from transformer.runs.run import Run

    run = Run(arguments.run_dir)
    module = getattr(run.system.task, "aligner", "")
    if not module:
        raise UserError(
            f"{run.name} holds a system that does not align texts with recordings: {run.config.system}"
        )
    check_libraries(("soundfile", "soxr"), f"hearing with {arguments.run_dir}")
    decoder_class = pkgutil.resolve_name(f"{module}:ALIGNER")
    aligner = decoder_class.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
    aligner.check_ctc()
    watch = ProgressReporter.beside_output()
    digest = digest_of(arguments.input)
    lines = checked_lines(aligner, arguments.input)
    job = repr(["align", aligner.fingerprint(), digest])

    def alignments(done: int) -> Iterator[str]:
        return map(json_line, aligned_lines(aligner, lines[done:]))

    _write(arguments, job, alignments, len(lines), watch, "recording", "aligned")


def checked_lines(aligner: Any, manifest: Path) -> "list[Listed]":
    """The lines of a manifest, all checked before the first recording is heard.

    Args:
      aligner: with `check_alignment` of `Transcriber`.
      manifest: a file.

    Raises:
      UserError: a line names no recording, or its text cannot be aligned; the message names the line.
    """
    from transformer.data.sources.recordings import read_recording_list

    lines = read_recording_list(manifest)
    for listed in lines:
        with prefixed_errors(f"{manifest}, line {listed.number}: "):
            aligner.check_alignment(listed.path, listed.text)
    return lines


def aligned_lines(aligner: Any, lines: "Sequence[Listed]") -> Iterator[Json]:
    """The alignment of each line of a manifest.

    Args:
      aligner: with `align` of `Transcriber`.
      lines: of the manifest.

    Raises:
      UserError: a recording cannot be read or aligned; the message names the line.
    """
    for listed in lines:
        with prefixed_errors(f"{listed.manifest}, line {listed.number}: "):
            alignment = aligner.align(listed.path, listed.text)
        yield {"line": listed.number, "recording": listed.name, **alignment.to_json()}
