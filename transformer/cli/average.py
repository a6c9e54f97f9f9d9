"""`python -m transformer average`: checkpoint averaging."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from transformer.cli.guard import run_command
from transformer.cli.parser import parse
from transformer.runtime.commands import command, program
from transformer.runtime.errors import UserError, counted


@dataclass(frozen=True)
class AverageArguments:
    """Average checkpoints (section 6.1) into the checkpoint "average" of their run."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    last: int | None = None
    """Number of newest checkpoints to average. Default: --training.keep-last of the run."""
    steps: tuple[int, ...] = ()
    """Steps of the checkpoints to average instead."""


def average_main() -> int:
    """`python -m transformer average RUN [--last K | --steps ...]`."""
    return run_command(program("average"), _average)


def _average(command_line: list[str]) -> None:
    arguments = parse(AverageArguments, command_line, "average")
    if arguments.last is not None and (arguments.last < 1 or arguments.steps):
        raise UserError("--last must be at least 1, and excludes --steps")

    from transformer.runs.run import Run

    run = Run(arguments.run_dir)
    if arguments.last is not None and arguments.last > len(run.checkpoints.steps()):
        available = counted(len(run.checkpoints.steps()), "checkpoint")
        raise UserError(f"--last {arguments.last}: {run.name} has {available}")
    last = arguments.last or run.config.training.keep_last
    steps = list(arguments.steps) or run.checkpoints.steps()[-last:]
    checkpoint = run.checkpoints.store_average(run.checkpoints.averaged(steps, run.shapes))
    print(f"Averaged steps {', '.join(map(str, steps))} into {run.name}/{checkpoint.name}")
    print("Try:", command("decode", run.name, "--checkpoint", "average"))
