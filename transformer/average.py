"""`python -m transformer.average RUN`: checkpoint averaging as a command."""

from transformer.cli import average_main

if __name__ == "__main__":
    raise SystemExit(average_main())
