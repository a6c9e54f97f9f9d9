"""See `python decode.py --help`."""

from transformer.cli.decode import decode_main

if __name__ == "__main__":
    raise SystemExit(decode_main())
