"""The lock of a run directory: one training at a time."""

import contextlib
import fcntl
import os
import socket

from transformer.runtime.errors import UserError

LONGEST = 200  # bytes of a name that are shown


def lock(file: int, where: str) -> None:
    """Locks an open file, and writes into it which process has it.

    Args:
      file: its descriptor, to read and write. The lock ends when it is closed, or with the process.
      where: the run directory, for the message.

    Raises:
      UserError: another process has the lock.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = os.pread(file, LONGEST, 0).decode(errors="replace").strip()
        holder = f" ({who})" if who.isprintable() and who else ""
        raise UserError(
            f"{where}: another process trains there{holder}; wait for it, or choose another --run-dir"
        ) from error
    with contextlib.suppress(OSError):  # a full disk is reported when it matters
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
