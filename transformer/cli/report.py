"""`python -m transformer report`: the page of a run, or of several side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from transformer.cli.guard import run_command
from transformer.cli.parser import parse
from transformer.runtime.commands import program
from transformer.runtime.errors import UserError
from transformer.runtime.files import check_local, display_path


@dataclass(frozen=True)
class ReportArguments:
    """Write the page of a run anew (RUN/report.html), or compare several runs on one page."""

    run_dirs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)"),
    ]
    """Run directories."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None
    """The page that compares several. Default: comparison.html."""


def report_main() -> int:
    """`python -m transformer report RUN ... [--output PAGE]`."""
    return run_command(program("report"), _report)


def _report(command_line: list[str]) -> None:
    arguments = parse(ReportArguments, command_line, "report")
    from transformer.runs.report import write_comparison, write_report

    if not arguments.run_dirs:
        raise UserError(f"no run directory: {program('report')} RUN [RUN ...]")
    if len(arguments.run_dirs) == 1 and arguments.output:
        raise UserError("--output is for several runs: the page of one is RUN/report.html")
    page = arguments.output or Path("comparison.html")
    check_local(page, "--output")
    try:
        if len(arguments.run_dirs) == 1:
            page = write_report(arguments.run_dirs[0])
        else:
            write_comparison(arguments.run_dirs, page)
    except OSError as error:
        where = arguments.run_dirs[0] if len(arguments.run_dirs) == 1 else f"--output {page}"
        raise UserError(f"cannot write {where}: {error.strerror}") from error
    print(f"Written to {display_path(page)}")
