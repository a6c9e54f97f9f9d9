"""The command that says when each word of a text is said in its recording."""

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

import tyro

from transformer.cli.guard import run_command
from transformer.cli.output_file import Output
from transformer.cli.parser import parse
from transformer.runtime.commands import program
from transformer.runtime.console import ProgressReporter, SteadyConsole
from transformer.runtime.errors import UserError, counted
from transformer.runtime.extras import check_libraries
from transformer.runtime.files import Json


class Aligner(Protocol):
    """What aligns texts with recordings: a `Decoder` of recordings."""

    @classmethod
    def load(cls, path: Path, checkpoint: str, *, int8: bool) -> Self:
        """That of a run."""
        ...

    def check_ctc(self) -> None:
        """Raises UserError if its run has no CTC."""
        ...

    def align(self, source: Path, text: str) -> Any:
        """When each word of a text is said in a recording, as a value with `to_dict`."""
        ...


@dataclass(frozen=True)
class AlignArguments:
    """Align texts with their recordings: when each word is said, by CTC. This needs a recogniser of speech
    that was trained with --model.ctc-weight."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    input: Path | None = None
    """Lines of a file name, relative to this file, a tab and what is said."""
    output: Path | None = None
    """File for the alignments, a JSON object on each line: line, recording, text, words and tokens with their
    times in seconds, and the log-probability of the text. Default: standard output."""
    checkpoint: str = "best"
    """Checkpoint to align with: best (by the first score of the validation), last, average (of the last
    ones), or a step."""
    int8: bool = False
    """Use int8 weights: faster on CPUs, at similar quality."""


def align_main() -> int:
    """`python -m transformer align RUN --input LIST`."""
    return run_command(program("align"), _align)


def _align(command_line: list[str]) -> None:
    arguments = parse(AlignArguments, command_line, "align")
    if arguments.input is None:
        raise UserError("--input is missing: a file with a recording, a tab and its text on each line")
    from transformer.runs.run import Run

    run = Run(arguments.run_dir)
    module = getattr(run.system.task, "aligner", "")
    if not module:
        raise UserError(
            f"{run.name} holds a system that does not align texts with recordings: {run.config.system}"
        )
    check_libraries(("soundfile", "soxr"), f"hearing with {arguments.run_dir}")
    kind: type[Aligner] = importlib.import_module(module).ALIGNER
    aligner = kind.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
    aligner.check_ctc()
    watch = ProgressReporter(SteadyConsole(stderr=True, highlight=False, soft_wrap=True))
    count = 0
    with Output(arguments.output) as file:
        for alignment in aligned_lines(aligner, arguments.input):
            file.write(json.dumps(alignment, ensure_ascii=False) + "\n")
            count += 1
    where = f", written to {arguments.output}" if arguments.output else ""
    watch.message(f"{counted(count, 'recording')} aligned{where}")


def aligned_lines(aligner: Aligner, manifest: Path) -> Iterator[Json]:
    """The alignment of each line of a manifest.

    Raises:
      UserError: a line has no text, or its recording cannot be read or aligned; the message names the line.
    """
    from transformer.data.sources.recording_lists import read_manifest

    for listed in read_manifest(manifest):
        where = f"{manifest}, line {listed.number}"
        if not listed.text:
            raise UserError(f"{where}: there is no text after the name of the recording, and a tab")
        try:
            alignment = aligner.align(listed.path, listed.text)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        yield {"line": listed.number, "recording": listed.path.name, **alignment.to_dict()}
