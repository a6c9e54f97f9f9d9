"""Shared code of the commands: options are checked before anything is measured, and errors are reported as by
`train.py`."""

import argparse
import importlib.util
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer.cli.guard import run_command
from transformer.runtime.errors import UserError

EXTRA = "pip install '.[bench]'"


def run(module: str, main: Callable[[list[str]], None]) -> int:
    """Runs `python -m module`. An error that the user can fix becomes one message and exit status 2."""

    def command(arguments: list[str]) -> None:
        try:
            main(arguments)
        except ModuleNotFoundError as error:
            raise UserError(f"{error.name} is not installed: {EXTRA}") from error
        except (RuntimeError, subprocess.SubprocessError) as error:
            raise UserError(str(error)) from error

    return run_command(module, command)


def needs(*modules: str) -> None:
    """Raises UserError if one of the modules is not installed."""
    if missing := [module for module in modules if importlib.util.find_spec(module) is None]:
        raise UserError(f"{', '.join(missing)} not installed: {EXTRA}")


def positive(text: str) -> int:
    """The number of an option, at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, at least 1")
    return int(text)


def work_folder(text: str) -> Path:
    """The folder of an option: one that exists, or a new one."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a file: name a folder")
    return path


def new_file(text: str) -> Path:
    """The file of an option, which can be written."""
    path = Path(text)
    if not path.name or path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: name a file")
    if not os.access(path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written: its folder is missing or read-only")
    return path


def drawing_options(
    module: str,
    about: str | None,
    repeats: int,
    arguments: list[str] | None,
    panels: Sequence[str] = (),
) -> argparse.Namespace:
    """The command line of a benchmark that writes OUTPUT.json and draws OUTPUT.png: `output`, `repeats`,
    `quick`, and if there are panels to choose from, `panels`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    stem = Path(module.rpartition(".")[2])
    parser.add_argument("--output", type=new_file, default=stem, help="writes OUTPUT.json, OUTPUT.png")
    parser.add_argument(
        "--repeats", type=positive, default=repeats, help=f"timed runs of each size ({repeats})"
    )
    parser.add_argument("--quick", action="store_true", help="a few small sizes, to test that it runs")
    if panels:
        parser.add_argument(
            "--panels", nargs="+", choices=panels, default=panels, help="what to measure (all)"
        )
    given = parser.parse_args(arguments)
    needs("matplotlib")
    return given
