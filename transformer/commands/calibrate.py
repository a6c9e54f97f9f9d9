"""The command that learns what is usual for a run, and how sure it may be of its words."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from transformer.cli.parser import parsed_command
from transformer.config.ranges import SIZE, Range
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import check_local, check_writable, writing
from transformer.runtime.invocation import command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformer.runs.run import Run
    from transformer.tasks.texts.requests import Sentence
    from transformer.translator.calibration import Calibration
    from transformer.translator.translator import Translator


FALSE_ALARMS = 0.005


@dataclass(frozen=True)
class CalibrateArguments:
    """Learn when a translation is suspicious (RUN/limits.json, for `decode.py --document`): what is rare
    among the translations of usual sentences. With references, learn the probability that a word is right
    (RUN/confidence.json, for `decode.py --word-confidences`)."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory of a model that translates, or makes other texts of texts."""
    input: Path | None = None
    """Usual text, one sentence per line. Default: the validation text of a run of a built-in corpus or a TFDS
    set, with its references."""
    reference: Path | None = None
    """Reference translations of --input, line by line."""
    source_language: str | None = None
    """Code of the source language, for a model of many languages. Default: the one of the run."""
    target_language: str | None = None
    """Code of the target language."""
    sentences: Annotated[int, SIZE] = 500
    """Number of sentences of the text to translate."""
    false_alarms: Annotated[float, Range(0.0, 1.0)] = FALSE_ALARMS
    """Share of these sentences that each kind of flag may mark (limits.json)."""


@parsed_command(CalibrateArguments, "calibrate")
def calibrate_main(arguments: CalibrateArguments) -> None:
    """`python -m transformer calibrate RUN`."""
    if arguments.reference and not arguments.input:
        raise UserError("--reference has the translations of --input FILE: give both")
    check_local(arguments.run_dir, "the run directory")
    check_writable(arguments.run_dir)
    from transformer.documents.document import can_translate
    from transformer.documents.suspicion import FILE as LIMITS_FILE
    from transformer.runs.run import Run
    from transformer.tasks.texts.languages import SIDES
    from transformer.tasks.texts.requests import TranslationRequest
    from transformer.translator.confidence import FILE
    from transformer.translator.translator import Translator, translation_of

    run = Run(arguments.run_dir)
    task, languages = translation_of(run), (arguments.source_language, arguments.target_language)
    if any(languages):
        task = task.between(*languages)
    for side in range(len(SIDES)):  # refuses what needs a language and has none
        task.start(TranslationRequest(""), side)
    records = _records(arguments, run, task.data.context)
    references = [task.shown(record, "")[1] for record in records]
    is_referenced = any(references)
    has_limits = can_translate(task)
    if needs_confidence := bool(arguments.reference) or not has_limits:
        run.system.required("scores")
    if arguments.reference and not is_referenced:
        raise UserError(f"{arguments.reference}: no sentence of {arguments.input} has a translation there")
    if not has_limits and not is_referenced:
        raise UserError(
            f"{run.name} does not translate, so only the confidence of its words can be learned: give "
            "--reference"
        )
    if not has_limits and arguments.false_alarms != FALSE_ALARMS:
        raise UserError(f"--false-alarms: {run.name} does not translate, so it has no limits; leave it out")
    translator = Translator.load(run.path).between(*languages)
    named = zip(SIDES, languages, strict=True)
    options = [word for side, code in named if code for word in (f"--{side}-language", code)]
    watch = ProgressReporter.beside_output()
    last, calibration = "", None
    if is_referenced and run.system.scores:
        calibration = _confidence(translator, records, references, watch, needs_confidence)
    if has_limits:
        sources = [record[0] for record in records]
        limits = translator.usual_limits(sources, arguments.false_alarms)
        with writing(f"{run.name}/{LIMITS_FILE}"):
            limits.write(run.path)
        print(f"Written to {run.name}/{LIMITS_FILE}: limits of {counted(len(records), 'translation')}")
        last = command("decode", run.name, "--document", "FILE.md", *options)
    if calibration:
        with writing(f"{run.name}/{FILE}"):
            calibration.confidence.write(run.path)
        print(f"Written to {run.name}/{FILE}: {_described(calibration)}")
        last = command("decode", run.name, "--format", "json", "--word-confidences", *options)
    print(f"Try: {last}")


def _records(arguments: CalibrateArguments, run: "Run", context: int) -> "list[Sentence]":
    """The sentences to translate, after so many before each, with their references if these are known."""
    from transformer.data.sources.context import pairs_in_context
    from transformer.data.sources.text_files import read_lines, read_pairs
    from transformer.runtime.text import has_text

    if arguments.input and arguments.reference:
        records = pairs_in_context(read_pairs(arguments.input, arguments.reference), context)
    elif arguments.input:
        records = pairs_in_context(((line, "") for line in read_lines(arguments.input)), context)
    else:
        records = iter(_validation_records(run))
    filled = (record for record in records if has_text(record[0]))
    chosen: list[Sentence] = list(itertools.islice(filled, arguments.sentences))
    if not chosen:
        raise UserError(f"{arguments.input or run.name}: there is no sentence to learn from")
    return chosen


def _validation_records(run: "Run") -> "Iterable[Sentence]":
    """Those of a built-in corpus or a TFDS set. Raises UserError for text at a path that the run names."""
    from transformer.config.options import with_named_corpus

    config = with_named_corpus(run.config, f"{run.name}: give --input, and --reference for confidences")
    try:
        return run.system.task.open_corpus(config).splits["validation"]
    except UserError as error:
        raise UserError(f"the validation text of {run.name} is not here: give --input") from error


def _confidence(
    translator: "Translator",
    records: "list[Sentence]",
    references: list[str],
    watch: ProgressReporter,
    required: bool,
) -> "Calibration | None":
    """What is learned of the records that have a reference. None: nothing, and it was not required."""
    from transformer.translator.calibration import calibrated, scored_outputs
    from transformer.translator.confidence import FILE

    pairs = [pair for pair in zip(records, references, strict=True) if pair[1]]
    outputs = scored_outputs(
        translator,
        [record for record, _ in pairs],
        lambda items, total: watch.progress("sentences", items, total),
    )
    try:
        return calibrated(outputs, [reference for _, reference in pairs])
    except UserError as error:
        if required:
            raise
        watch.message(f"{FILE} is not written: {error}")
        return None


def _described(calibration: "Calibration") -> str:
    """How good it is, in a line."""
    before, after = calibration.before, calibration.after
    return (
        f"{counted(calibration.words, 'word')}, {calibration.wrong:.1%} wrong; "
        f"area under the ROC curve {after.area:.3f} (probability alone: {before.area:.3f}), "
        f"calibration error {after.error:.3f} ({before.error:.3f})"
    )
