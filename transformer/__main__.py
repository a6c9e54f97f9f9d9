"""`python -m transformer COMMAND`, the same as `transformer COMMAND`."""

from transformer.commands import main

if __name__ == "__main__":
    raise SystemExit(main())
