"""Errors as their users should meet them."""

import os
import sys
from collections.abc import Callable

from transformer.errors import Stopped, UserError

USAGE, INTERRUPTED = 2, 130


def guarded(program: str, command: Callable[[list[str]], None]) -> int:
    """Runs a command; what its user can mend becomes one message and exit status 2."""
    try:
        command(sys.argv[1:])
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE
    except Stopped as stopped:
        print(stopped)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0
