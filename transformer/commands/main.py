"""`transformer COMMAND ...`: the commands, and a list of them."""

import functools
import importlib
import sys
from typing import NoReturn

from transformer.cli.guard import leave, run_command
from transformer.runtime.errors import UserError, nearest
from transformer.runtime.machine import interrupt_silently, use_large_pages

COMMANDS = {
    "train": ("commands.train", "train a model, resume a run, fine-tune"),
    "decode": ("commands.decode", "translate lines, list n-best, explore attention"),
    "decode-files": ("commands.decode_files", "decode many files, also on a Ray cluster"),
    "align": ("commands.given_outputs", "say when each word of a recording's text is said"),
    "score": ("commands.given_outputs", "score translations that are there"),
    "average": ("commands.models", "average the last checkpoints of a run"),
    "distill": ("commands.models", "translate a model's training text for distillation"),
    "import": ("commands.models", "import a pretrained model as a run"),
    "export": ("commands.models", "export to transformers and CTranslate2"),
    "shortlist": ("commands.tables", "make the lexical shortlist of a run"),
    "calibrate": ("commands.calibrate", "learn which outputs and words to doubt"),
    "ngram": ("commands.tables", "make an n-gram language model of a run's tokens"),
    "serve": ("serve.command", "serve runs over HTTP"),
    "doctor": ("commands.doctor", "examine the installation and this machine"),
    "report": ("commands.models", "write the page of a run, compare several runs"),
}
"""Name: module, in which the command is a function such as `decode_files_main`; what it does."""


def main() -> int:
    """`transformer COMMAND ...`."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name not in COMMANDS:
        return run_command("transformer", _list)
    module = importlib.import_module(f"transformer.{COMMANDS[name][0]}")
    sys.argv = [f"{sys.argv[0]} {name}", *rest]
    status: int = getattr(module, f"{name.replace('-', '_')}_main")()
    return status


def run(*words: str) -> NoReturn:
    """`transformer COMMAND ...` as a process; these words come first."""
    sys.argv[1:1] = words
    if sys.argv[1:2] == ["train"]:
        use_large_pages()
    interrupt_silently()
    leave(main())


run_train, run_decode = functools.partial(run, "train"), functools.partial(run, "decode")
"""`transformer-train ...` and `transformer-decode ...` as processes."""


def _list(arguments: list[str]) -> None:
    """`transformer --help`, and what is no command."""
    name = arguments[0] if arguments else "--help"
    if name not in ("--help", "-h"):
        raise UserError(f"no command {name!r}{nearest(name, COMMANDS) or '; see transformer --help'}")
    print("usage: transformer COMMAND [options]\n")
    for command, (_, summary) in COMMANDS.items():
        print(f"  {command:12} {summary}")
    print("\nFor details: transformer COMMAND --help. For versions: transformer --version.")
