"""`python -m transformer COMMAND`, the same as `transformer COMMAND`."""

from transformer.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
