"""A parent that watches one process of a job of several.

When a process of the job is lost, JAX's runtime ends the others by aborting them in native code, where no
`except` reaches. So each is the child of a small parent, which says what happened in one line and ends
with a status of its own.
"""

import collections
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

CHILD = "TRANSFORMER_SUPERVISED"  # set in the environment of the child
LOST = 75  # what sysexits.h calls a failure that may pass: start the job again
_LEADER = re.compile(r"coordination service.*leader|failed to connect to the coordination", re.IGNORECASE)
_TASK = re.compile(r"[Tt]ask:? (\d+) heartbeat timeout")
_TROUBLE = re.compile(r"^(Traceback|F\d{4} |E\d{4} .*coordination_service)")


def is_child() -> bool:
    """Whether a parent watches already."""
    return CHILD in os.environ


def end_with_parent() -> None:
    """From now on this process ends soon after its parent, also if that is killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(LOST)

    threading.Thread(target=watch, daemon=True).start()


def supervise() -> int:
    """Runs this same command as a child to its end; returns the status to end with."""
    child = subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env={**os.environ, CHILD: "1"},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,  # what a terminal sends to its group comes through here, once
    )

    def pass_on(number: int, frame: Any) -> None:
        child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    held: collections.deque[str] = collections.deque(maxlen=1000)  # from the first sign of an end on
    assert child.stderr
    for line in child.stderr:
        if held or _TROUBLE.match(line):
            held.append(line)
        else:
            print(line, end="", file=sys.stderr, flush=True)
    status = child.wait()
    lost = lost_process("".join(held)) if status else None
    if lost is not None:
        print(
            f"process {lost} of the job was lost, so this one ends too. Start all of them again: training "
            "goes on from the last checkpoint, and decode.py --resume after the last line",
            file=sys.stderr,
        )
        return LOST
    print("".join(held), end="", file=sys.stderr)
    return status if status >= 0 else 128 - status


def lost_process(log: str) -> int | None:
    """The number of the process that the runtime says it lost. None: it says no such thing."""
    if task := _TASK.search(log):
        return int(task[1])
    return 0 if _LEADER.search(log) else None
