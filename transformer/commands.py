"""The commands, and by what name each of them is called from here.

In a checkout that is `python train.py`; where the package is installed, `transformer train`.
"""

import importlib
import sys
from pathlib import Path

COMMANDS = {
    "train": ("transformer.cli.train", "train_main", "train a model, resume a run, fine-tune"),
    "decode": ("transformer.cli.decode", "decode_main", "translate lines, score them, explore the attention"),
    "average": ("transformer.cli.average", "average_main", "average the last checkpoints of a run"),
    "distill": (
        "transformer.distill",
        "distill_main",
        "translate a training text for students to learn",
    ),
    "import": ("transformer.interop.__main__", "import_main", "make a run of a Marian (OPUS-MT) model"),
    "export": ("transformer.interop.__main__", "export_main", "write a run for transformers and CTranslate2"),
    "report": ("transformer.report.__main__", "report_main", "write the page of a run anew"),
}
"""Name: module, function, what it does."""


def called(name: str) -> str:
    """How a command is called from here, such as `python decode.py` or `transformer decode`."""
    if not Path("transformer/commands.py").is_file():
        return f"transformer {name}"
    return f"python {name}.py" if Path(f"{name}.py").is_file() else f"python -m transformer {name}"


def program(name: str) -> str:
    """The same as messages and `usage:` have it, without the interpreter."""
    return called(name).removeprefix("python -m ").removeprefix("python ")


def version() -> str:
    """This program's version, and those of what it runs on."""
    import platform
    from importlib import metadata

    import transformer

    parts = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("jax", "flax", "optax", "orbax-checkpoint")
    )
    return f"transformer {transformer.__version__} ({parts}, Python {platform.python_version()})"


def main() -> int:
    """`transformer COMMAND ...`."""
    from transformer.cli.guard import guarded

    name, *rest = sys.argv[1:] or ["--help"]
    if name not in COMMANDS:
        return guarded("transformer", _about)
    module, function, _ = COMMANDS[name]
    sys.argv = [f"{sys.argv[0]} {name}", *rest]
    status: int = getattr(importlib.import_module(module), function)()
    return status


def _about(arguments: list[str]) -> None:
    from transformer.errors import UserError, nearest

    name = arguments[0] if arguments else "--help"
    if name not in ("--help", "-h"):
        raise UserError(f"no command {name!r}{nearest(name, COMMANDS) or '; see transformer --help'}")
    print("usage: transformer COMMAND [options]\n")
    for command, (_, _, what) in COMMANDS.items():
        print(f"  {command:9} {what}")
    print("\ntransformer COMMAND --help tells more; --version tells the versions.")
