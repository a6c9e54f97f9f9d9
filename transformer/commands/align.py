"""The command that says when each word of a text is said in its recording."""

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from transformer.cli.input import digest_of
from transformer.cli.output_file import LongOutput, check_output, resumable, resumable_output
from transformer.cli.parser import parsed_command
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, json_line
from transformer.runtime.machine import check_libraries

if TYPE_CHECKING:
    from transformer.data.sources.recordings import Listed


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
    kind = importlib.import_module(module).ALIGNER
    aligner = kind.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
    aligner.check_ctc()
    watch = ProgressReporter.beside_output()
    digest = digest_of(arguments.input)
    lines = checked_lines(aligner, arguments.input)
    job = repr(["align", aligner.fingerprint(), digest])
    output = resumable_output(arguments.output, job, resume=arguments.resume, needs="--output")
    with resumable(output, watch, "recording"), output as file:
        done = output.done if isinstance(output, LongOutput) else 0
        if done:
            watch.message(f"  continuing after recording {done:,}")
        alignments: Iterable[Json] = aligned_lines(aligner, lines[done:])
        if arguments.output or not (sys.stdout and sys.stdout.isatty()):  # no bar among the outputs
            alignments = watch.progress("recordings", alignments, len(lines) - done)
        for alignment in alignments:
            file.write(json_line(alignment))
    where = f", written to {arguments.output}" if arguments.output else ""
    watch.message(f"{counted(len(lines), 'recording')} aligned{where}")


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
        with _named(listed):
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
        with _named(listed):
            alignment = aligner.align(listed.path, listed.text)
        yield {"line": listed.number, "recording": listed.name, **alignment.to_json()}


@contextlib.contextmanager
def _named(listed: "Listed") -> Iterator[None]:
    """Names a line of a manifest in errors."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{listed.manifest}, line {listed.number}: {error}") from error
