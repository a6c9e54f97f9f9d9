"""`transformer --help`: the commands."""

from transformer.cli.guard import run_command
from transformer.commands import COMMANDS
from transformer.errors import UserError, nearest


def about_main() -> int:
    """`transformer` without a command, or with one that does not exist."""
    return run_command("transformer", _about)


def _about(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name not in ("--help", "-h"):
        raise UserError(f"no command {name!r}{nearest(name, COMMANDS) or '; see transformer --help'}")
    print("usage: transformer COMMAND [options]\n")
    for command, (_, _, what) in COMMANDS.items():
        print(f"  {command:9} {what}")
    print("\nFor details: transformer COMMAND --help. For versions: transformer --version.")
