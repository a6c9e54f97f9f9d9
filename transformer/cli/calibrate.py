"""The command that learns what is usual for a run."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from transformer.cli.guard import run_command
from transformer.cli.parser import parse
from transformer.config.ranges import LONGEST, Range, check_ranges
from transformer.runtime.commands import command, program
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import check_local


@dataclass(frozen=True)
class CalibrateArguments:
    """Learn when a translation is suspicious (RUN/limits.json, for `decode.py --document`): what is rare
    among the translations of usual sentences."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory of a model that translates."""
    input: Path | None = None
    """Usual text, a sentence a line. Default: the validation text of the run."""
    sentences: Annotated[int, Range(1, LONGEST)] = 500
    """Of it that are translated."""
    false_alarms: Annotated[float, Range(0.0, 1.0)] = 0.005
    """Share of these that each sign may flag."""

    def __post_init__(self) -> None:
        check_ranges("", self)


def calibrate_main() -> int:
    """`python -m transformer calibrate RUN`."""
    return run_command(program("calibrate"), _calibrate)


def _calibrate(command_line: list[str]) -> None:
    arguments = parse(CalibrateArguments, command_line, "calibrate")
    check_local(arguments.run_dir, "the run directory")
    from transformer.data.sources.context import in_context
    from transformer.data.sources.text_files import read_lines
    from transformer.runs.run import Run
    from transformer.runtime.text import has_text
    from transformer.translator.documents.document import check_translates
    from transformer.translator.documents.suspicion import FILE
    from transformer.translator.translator import Translator, translation_of

    run = Run(arguments.run_dir)
    check_translates(task := translation_of(run))
    if arguments.input:
        lines = in_context(read_lines(arguments.input), task.data.context)
    else:
        try:
            corpus = task.open_corpus(run.config)
        except UserError as error:
            raise UserError(f"the validation text of {run.name} is not here: give --input") from error
        lines = (record[0] for record in corpus.splits["validation"])
    sources = list(itertools.islice(filter(has_text, lines), arguments.sentences))
    limits = Translator.load(run.path).usual_limits(sources, arguments.false_alarms)
    try:
        limits.write(run.path)
    except OSError as error:
        raise UserError(f"cannot write {run.name}/{FILE}: {error.strerror}") from error
    print(f"Written to {run.name}/{FILE}: limits of {counted(len(sources), 'translation')}")
    print(f"Try: {command('decode', run.name, '--document', 'FILE.md')}")
