"""`python -m transformer COMMAND`, the same as `transformer COMMAND`."""

from transformer.commands.main import run

if __name__ == "__main__":
    run()
