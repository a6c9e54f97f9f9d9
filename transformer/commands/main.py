"""`transformer COMMAND ...`: the commands, and a list of them."""

import importlib
import sys
from typing import NoReturn

from transformer.cli.guard import leave, run_command
from transformer.runtime.errors import UserError, nearest
from transformer.runtime.machine import interrupt_silently, use_large_pages

COMMANDS = {
    "train": ("transformer.commands.train", "train_main", "train a model, resume a run, fine-tune"),
    "decode": (
        "transformer.commands.decode",
        "decode_main",
        "translate lines, list n-best, explore attention",
    ),
    "decode-files": (
        "transformer.commands.decode_files",
        "decode_files_main",
        "decode many files, also on a Ray cluster",
    ),
    "align": (
        "transformer.commands.given_outputs",
        "align_main",
        "say when each word of a recording's text is said",
    ),
    "score": ("transformer.commands.given_outputs", "score_main", "score translations that are there"),
    "average": ("transformer.commands.models", "average_main", "average the last checkpoints of a run"),
    "distill": (
        "transformer.commands.models",
        "distill_main",
        "translate a model's training text for distillation",
    ),
    "import": ("transformer.commands.models", "import_main", "import a pretrained model as a run"),
    "export": ("transformer.commands.models", "export_main", "export to transformers and CTranslate2"),
    "shortlist": ("transformer.commands.tables", "shortlist_main", "make the lexical shortlist of a run"),
    "calibrate": (
        "transformer.commands.calibrate",
        "calibrate_main",
        "learn which outputs and words to doubt",
    ),
    "ngram": ("transformer.commands.tables", "ngram_main", "make an n-gram language model of a run's tokens"),
    "serve": ("transformer.serve.command", "serve_main", "serve runs over HTTP"),
    "doctor": ("transformer.commands.doctor", "doctor_main", "examine the installation and this machine"),
    "report": ("transformer.commands.models", "report_main", "write the page of a run, compare several runs"),
}
"""Name: module, function, what it does."""


def main() -> int:
    """`transformer COMMAND ...`."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name not in COMMANDS:
        return run_command("transformer", _list)
    module, function, _ = COMMANDS[name]
    sys.argv = [f"{sys.argv[0]} {name}", *rest]
    status: int = getattr(importlib.import_module(module), function)()
    return status


def run() -> NoReturn:
    """`transformer COMMAND ...` as a process."""
    if sys.argv[1:2] == ["train"]:
        use_large_pages()
    interrupt_silently()
    leave(main())


def run_train() -> NoReturn:
    """`transformer-train ...` as a process."""
    _run_as("train")


def run_decode() -> NoReturn:
    """`transformer-decode ...` as a process."""
    _run_as("decode")


def _run_as(name: str) -> NoReturn:
    sys.argv[1:1] = [name]
    run()


def _list(arguments: list[str]) -> None:
    """`transformer --help`, and what is no command."""
    name = arguments[0] if arguments else "--help"
    if name not in ("--help", "-h"):
        raise UserError(f"no command {name!r}{nearest(name, COMMANDS) or '; see transformer --help'}")
    print("usage: transformer COMMAND [options]\n")
    for command, (_, _, summary) in COMMANDS.items():
        print(f"  {command:12} {summary}")
    print("\nFor details: transformer COMMAND --help. For versions: transformer --version.")
