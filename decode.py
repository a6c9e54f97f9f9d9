"""See `python decode.py --help`."""

from transformer.cli.decode import decode_main
from transformer.cli.guard import leave

if __name__ == "__main__":
    leave(decode_main())
