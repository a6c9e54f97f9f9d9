"""Refuses JAX in a forked process, where it would hang.

JAX's threads do not exist in a child created by `os.fork` (which `multiprocessing` uses on Linux before
Python 3.14), so waiting for them never ends.
"""

import os
import sys

from transformer.runtime.errors import UserError

_forked = False


def _note() -> None:
    """Notes in the child whether the parent was using JAX, which has no public function for this."""
    global _forked
    _forked = _forked or bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


os.register_at_fork(after_in_child=_note)


def refuse_forked() -> None:
    """Raises UserError in a process that was forked from one that used JAX."""
    if _forked:
        raise UserError(
            "this process was forked from one that used JAX, which would hang here: start it with "
            "multiprocessing.get_context('spawn') and load the model there, or use threads"
        )
