"""See `python train.py --help`."""

from transformer.cli.guard import leave
from transformer.commands.train import train_main

if __name__ == "__main__":
    leave(train_main())
