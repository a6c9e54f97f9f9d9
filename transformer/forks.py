"""Telling a forked process that it cannot use JAX, instead of letting it hang.

JAX's threads do not exist in a child that `os.fork` made (as `multiprocessing` does on Linux before Python
3.14), and what waits for them waits forever.
"""

import os
import sys

from transformer.errors import UserError

_forked = False


def _note() -> None:
    """In the child: was JAX running in its parent? (It has no public function that tells.)"""
    global _forked
    _forked = _forked or bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


os.register_at_fork(after_in_child=_note)


def refuse_forked() -> None:
    """Raises UserError in a process that was forked from one that used JAX."""
    if _forked:
        raise UserError(
            "this process was forked from one that used JAX, which cannot go on here: start it with "
            "multiprocessing.get_context('spawn') and load the model there, or use threads"
        )
