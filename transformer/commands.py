"""The commands, and how to call each: `python train.py` in a checkout, otherwise `transformer train`."""

import importlib
import shlex
import sys
from pathlib import Path

COMMANDS = {
    "train": ("transformer.cli.train", "train_main", "train a model, resume a run, fine-tune"),
    "decode": (
        "transformer.cli.decode",
        "decode_main",
        "translate lines, list n-best, explore attention",
    ),
    "average": ("transformer.cli.average", "average_main", "average the last checkpoints of a run"),
    "distill": (
        "transformer.cli.distill",
        "distill_main",
        "translate a model's training text for distillation",
    ),
    "import": ("transformer.cli.interop", "import_main", "import a Marian (OPUS-MT) model as a run"),
    "export": ("transformer.cli.interop", "export_main", "export to transformers and CTranslate2"),
    "report": ("transformer.cli.report", "report_main", "write the page of a run, compare several runs"),
}
"""Name: module, function, what it does."""


def command_for(name: str) -> str:
    """How to call a command from here, such as `python decode.py` or `transformer decode`."""
    if not Path("transformer/commands.py").is_file():
        return f"transformer {name}"
    return f"python {name}.py" if Path(f"{name}.py").is_file() else f"python -m transformer {name}"


def command(name: str, *arguments: str) -> str:
    """A command line to print, quoted for a shell."""
    return shlex.join((*command_for(name).split(), *arguments))


def program(name: str) -> str:
    """The same without the interpreter, for messages and `usage:`."""
    return command_for(name).removeprefix("python -m ").removeprefix("python ")


def version() -> str:
    """The versions of this program and its main dependencies."""
    import platform
    from importlib import metadata

    import transformer

    parts = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("jax", "flax", "optax", "orbax-checkpoint")
    )
    return f"transformer {transformer.__version__} ({parts}, Python {platform.python_version()})"


def main() -> int:
    """`transformer COMMAND ...`."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name not in COMMANDS:
        from transformer.cli.about import about_main

        return about_main()
    module, function, _ = COMMANDS[name]
    sys.argv = [f"{sys.argv[0]} {name}", *rest]
    status: int = getattr(importlib.import_module(module), function)()
    return status
