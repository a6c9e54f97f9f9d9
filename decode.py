"""See `python decode.py --help`."""

from transformer.cli.guard import leave
from transformer.commands.decode import decode_main

if __name__ == "__main__":
    leave(decode_main())
