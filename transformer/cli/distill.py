"""`python -m transformer distill`: a new corpus of a teacher's translations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from transformer.cli.command_line import options_in, with_method
from transformer.cli.decode_arguments import run_defaults, short_options
from transformer.cli.guard import run_command
from transformer.cli.parser import parse
from transformer.config import DataConfig, DecodingConfig, text_data
from transformer.config.locations import without_locations
from transformer.config.names import SEARCH
from transformer.runtime.commands import program
from transformer.runtime.files import check_local
from transformer.translator.distill import distill


@dataclass(frozen=True)
class DistillArguments:
    """Translate a run's training text into a new corpus."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory of the teacher."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Folder for the new corpus."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")]
    data: DataConfig
    """The training text, if it came from files: paths stored in a run directory are not opened by default."""
    checkpoint: str = "best"
    """Checkpoint to translate with: best (by validation BLEU), last, average (of the last ones), or a
    step."""


def distill_main() -> int:
    """`python -m transformer distill RUN FOLDER [options]`."""
    return run_command(program("distill"), _distill)


def _distill(command_line: list[str]) -> None:
    with short_options():
        arguments = _parsed(command_line)
        check_local(arguments.folder, "the folder")
        distill(arguments.run_dir, arguments.folder, arguments.checkpoint, arguments.decoding, arguments.data)


def _parsed(command_line: list[str]) -> DistillArguments:
    defaults = run_defaults(command_line)
    return parse(
        DistillArguments,
        command_line,
        "distill",
        names=SEARCH,
        default=DistillArguments(
            tyro.MISSING_NONPROP,
            tyro.MISSING_NONPROP,
            with_method(defaults.decoding, options_in(command_line), "--"),
            without_locations(text_data(defaults)),
        ),
        about=(
            "Translate the text that a model was trained on into a new corpus, for students that learn "
            "the teacher's translations instead of the originals. If interrupted, the same command continues."
        ),
    )
