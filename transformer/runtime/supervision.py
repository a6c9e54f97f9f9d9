"""A parent process that watches one process of a job of several and reports why it ended.

When a process of the job is lost, JAX's coordination service aborts the others in native code, where no
`except` reaches. A collective operation may fail first, with a traceback. So each process of the job is the
child of a small parent. It holds back what the child writes about an error until the cause is known: if
another process was lost, the parent prints one line instead and ends with status `LOST`.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import IO

CHILD = "TRANSFORMER_SUPERVISED"  # set in the environment of the child
LOST = 75  # EX_TEMPFAIL in sysexits.h, a temporary failure: start the job again
HEARTBEAT = 60  # seconds of silence after which a process counts as lost, unless an option says otherwise
SETTLE = 2.0  # seconds until an error is written completely

# How Python and the commands (`guarded`) report an error, and what JAX's runtime logs about its coordination
# service: warnings (W), errors (E) and the reason why it aborts the process (F, for fatal).
_ERROR = re.compile(r"^(Traceback \(|\S+\.py: )", re.MULTILINE)
_NATIVE = re.compile(r"[WEF]\d{4} [\d:.]+ +\d+ .*(coordination|distributed service)")
_ABORT = re.compile(r"F\d{4} [\d:.]+ +\d+ .*(coordination|distributed service)")
_CUT_OFF = re.compile(r"(^(Traceback \(| ).*\n|[^\n])\Z", re.MULTILINE)  # by another thread's log

# An error caused by another process.
_CONNECTION = re.compile(
    r"Gloo .*(by peer|timed? ?out|refused|broken pipe)|remote process exited|heartbeat timeout"
    r"|stopped sending heartbeats|(barrier|GetKeyValue\(\)) (timed out|failed)"
    r"|failed to send RPC to coordination",
    re.IGNORECASE,
)

# Which process is lost, in the words of the runtime.
_SILENT = re.compile(r"task[: ]+(\d+) heartbeat timeout", re.IGNORECASE)
_UNHEALTHY = re.compile(r"stopped sending heartbeats\):\n(.*?)\nThe tasks have", re.DOTALL)
_EARLY = re.compile(r"Id: Shutdown::.*?first task at the barrier: \S*?(\d+)\.", re.DOTALL)
_COORDINATOR = re.compile(r"failed to send RPC to coordination|coordination +leader|Service/Heartbeat", re.I)


def is_child() -> bool:
    """Whether a parent watches this process already."""
    return CHILD in os.environ


def end_with_parent() -> None:
    """From now on this process ends soon after its parent, also if that is killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(LOST)

    threading.Thread(target=watch, daemon=True).start()


def supervise(heartbeat: float) -> int:
    """Runs this same command as a child to its end.

    Args:
      heartbeat: seconds of silence after which the other processes count this one as lost.

    Returns:
      The status to end with: `LOST`, or the child's.
    """
    child = subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env={**os.environ, CHILD: "1"},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,  # Ctrl-C in a terminal reaches the child only through this process
    )
    sent: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        sent.append(number)
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(child.pid, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    assert child.stderr
    errors = _Errors(child.stderr, keep=SETTLE + 2 * heartbeat)
    # Heartbeats are sent every heartbeat / 2 seconds: that long after a stop, the others may already end.
    child.returncode, was_stopped = _wait(child.pid, heartbeat / 2)
    errors.finish()
    status = child.returncode
    log = errors.released + errors.held
    aborted = _ABORT.search(log)
    lost = lost_processes(log) if status else None
    hidden = aborted or lost is not None
    _write(_own_error(errors.held) if hidden else errors.held)
    if was_stopped:
        reason = f"this process was stopped for {heartbeat / 2:g} seconds, so the others end without it"
    elif lost is not None:
        reason = f"{_named(lost)}, so this one ends too"
    elif aborted:  # after its own error, whose status the abort replaced
        status = 1 if "Traceback (" in log else 2
        return 128 + sent[-1] if sent else status
    else:
        return status if status >= 0 else 128 - status
    _write(
        f"{reason}. Start all of them again: training resumes from the last checkpoint, and decode.py "
        "--resume after the last line\n"
    )
    return LOST


def lost_processes(log: str) -> list[int] | None:
    """Finds out whether a process ended because others were lost.

    Args:
      log: what it wrote to standard error, from the first sign of an error on.

    Returns:
      The indices of the lost processes, or [] if they are not named. None if it ended for another reason.
    """
    if not _ABORT.search(log):
        return [] if _ERROR.search(log) and _CONNECTION.search(log) else None
    named = {int(index) for index in _SILENT.findall(log)}
    for tasks in _UNHEALTHY.findall(log):
        named |= {int(index) for index in re.findall(r"(?<!\d)\d+$", tasks, re.MULTILINE)}
    if named:
        return sorted(named)
    if early := _EARLY.search(log):  # an error ended one process, which waited for the others
        return None if _own_error(log) else [int(early[1])]
    return [0] if _COORDINATOR.search(log) else []


def _own_error(log: str) -> str:
    """Returns what the process reported of an error that no other process caused, or ""."""
    native = _NATIVE.search(log)
    report = log[: native.start()] if native else log
    is_other = not _ERROR.search(report) or _CONNECTION.search(report) or _CUT_OFF.search(report)
    return "" if is_other else report


def _named(lost: list[int]) -> str:
    if not lost:
        return "another process of the job was lost or cannot be reached"
    if len(lost) == 1:
        return f"process {lost[0]} of the job was lost"
    return f"processes {', '.join(map(str, lost))} of the job were lost"


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, but the child continues
        print(text, end="", file=sys.stderr, flush=True)


def _wait(child: int, seconds: float) -> tuple[int, bool]:
    """Waits until the child ends, and kills it once it has been stopped (SIGSTOP) for this many seconds.

    Otherwise it would hold the lock of the run directory, and write to it if it is ever continued, while the
    job runs again.

    Returns:
      Its status (negative: the number of a signal), and whether it was killed while stopped.
    """
    timer = None
    while True:
        _, event = os.waitpid(child, os.WUNTRACED | os.WCONTINUED)
        if timer:
            timer.cancel()
        if os.WIFSTOPPED(event):
            timer = threading.Timer(seconds, os.kill, (child, signal.SIGKILL))
            timer.start()
        elif os.WIFCONTINUED(event):
            timer = None
        else:
            status = os.waitstatus_to_exitcode(event)
            return status, timer is not None and status == -signal.SIGKILL


class _Errors:
    """Copies a child's standard error to this process's, but holds back errors.

    Args:
      stream: the child's standard error.
      keep: how many seconds to hold an error caused by another process; all others are held for `SETTLE`.
    """

    def __init__(self, stream: IO[str], keep: float) -> None:
        self.held = self.released = ""  # released: the last error that was printed while the child ran
        self._keep = keep
        self._lock = threading.Lock()
        self._timer = threading.Timer(0, lambda: None)
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def finish(self) -> None:
        """Reads to the end; after that, `held` does not change."""
        self._reader.join(timeout=5)  # a grandchild may hold the stream open
        with self._lock:
            self._timer.cancel()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._lock:
                if self.held:
                    self.held += line
                elif _ERROR.search(line) or _NATIVE.search(line):
                    self.held = line
                    self._decide_after(SETTLE)
                else:
                    _write(line)

    def _decide_after(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._decide, (seconds,))
        self._timer.daemon = True
        self._timer.start()

    def _decide(self, waited: float) -> None:
        with self._lock:
            if self._timer.finished.is_set():  # cancelled
                return
            if waited < self._keep and _CONNECTION.search(self.held):
                self._decide_after(self._keep)
                return
            _write(self.held)
            self.held, self.released = "", self.held
