"""The commands: arguments in, a library call, an exit status out."""

from transformer.cli.average import average_main
from transformer.cli.decode import decode_main
from transformer.cli.decode_arguments import run_defaults, short_options
from transformer.cli.guard import run_command
from transformer.cli.train import train_main

__all__ = ["average_main", "decode_main", "run_command", "run_defaults", "short_options", "train_main"]
