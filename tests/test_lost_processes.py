"""A job that lost a process ends with one message, by what the other processes wrote last."""

import subprocess
import sys

import pytest

from transformer.runtime.supervision import LOST, lost_processes

# The last output of processes whose job had lost another one, with JAX 0.10.0 and 0.12.0, shortened.
FATAL = (
    "F1122 11:19:18.758101    3282 client.h:80] Terminating process because the JAX distributed service "
    "detected fatal errors. This most likely indicates that another task died. absl::Status: "
)
FATAL_12 = FATAL.replace("client.h:80", "client.h:86")
POLLED = (
    "E1122 11:19:18.757879    3282 coordination_service_agent.cc:289] Polled an error from coordination "
    "service (this can be an error from this or another task).\n"
)
POLL = "\n\nRPC: /xla.coordination.CoordinationService/PollForError [type.googleapis.com/tensorflow='']\n"
STACK = "*** Check failure stack trace: ***\n    @     0x7fe432440634  absl::log_internal::SendToLog()\n"
SOURCE_12 = "=== Source Location Trace: ===\nexternal/xla+/xla/coordination/coordination_service.cc:232\n"
UNHEALTHY = (
    "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n1\nThe tasks have "
    "crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, eviction)."
)
TOLD = (  # by JAX 0.12 on process 0, before the error reaches it
    "E1122 19:02:36.066320   11298 coordination_service.cc:1518] [1514250868490806796] Use error polling to "
    f"propagate the following error to all tasks: {UNHEALTHY}\n{SOURCE_12}\n"
)
SILENT = (
    "INTERNAL: Shutdown barrier has failed.\nBarrier result: 'INTERNAL: Barrier failed because: task is set "
    "to ERROR: UNAVAILABLE: Task 1 heartbeat timeout. This indicates that the remote task has failed, got "
    "preempted, or crashed unexpectedly. Barrier Id: Shutdown::4323206287941351451::0, Task: 1"
)
NO_COORDINATOR = (
    "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/"
    "restarted unexpectedly or this task is experiencing network issues.\nAdditional GRPC error information "
    "from remote target coordination_service while calling /xla.coordination.CoordinationService/PollForErr"
    'or:\n:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"Socket closed"}\n'
)
LATE = "DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/"
LEFT_ALONE = (
    "INTERNAL: Shutdown barrier has failed.\nBarrier result: 'DEADLINE_EXCEEDED: Barrier timed out. Id: "
    "Shutdown::10461483412530515713::0. This usually happens because a task triggered the barrier too early "
    "or too slowly.\n# of tasks that reached the barrier: 1/2.\nThe first task at the barrier: 1. Some timed "
    "out task names:\n0\n"
)
PREEMPTION = (
    "W1122 11:54:41.218141   31166 preemption_sync_manager.cc:147] Failed to retrieve preemption notice from "
    "coordination service: UNAVAILABLE: Stream removed (recvmsg:Connection reset by peer (104))\n"
)
FAILED = 'Traceback (most recent call last):\n  File "<string>", line 13, in <module>\n'
CLOSED = (
    f"{FAILED}jax.errors.JaxRuntimeError: UNKNOWN: Gloo AllGather failed: "
    "[external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:11931\n"
)
RESET_12 = (
    f"{FAILED}ValueError: UNKNOWN: Gloo all-reduce failed: [external/xla++third_party_ext+gloo/gloo/"
    "transport/tcp/pair.cc:538] Read error [127.0.0.1]:54942: Connection reset by peer\n"
)
NOT_WRITTEN = (
    "train.py: could not write to runs/a: UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/"
    f"pair.cc:538] Read error [127.0.0.1]:2459: Connection reset by peer. Is the disk full?\n{FAILED}"
    "RuntimeError: Event loop is closed\n"
)
BUG = f"{FAILED}KeyError: 'bug'\n"
FULL = f"{FAILED}jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 400000000 bytes.\n"
RESTART = (
    "Start all of them again: training resumes from the last checkpoint, and decode.py --resume after the "
    "last line"
)


@pytest.mark.parametrize(
    ("log", "lost"),
    [
        (POLLED + FATAL + UNHEALTHY + POLL + STACK, [1]),
        (POLLED + FATAL_12 + UNHEALTHY + POLL + SOURCE_12 + STACK, [1]),
        (POLLED + FATAL + UNHEALTHY.replace("\n1\n", "\n1\n13\n") + POLL + STACK, [1, 13]),
        (CLOSED + POLLED + FATAL + SILENT + POLL + STACK, [1]),
        (RESET_12 + POLLED + FATAL_12 + UNHEALTHY + SOURCE_12 + STACK, [1]),
        (NOT_WRITTEN + POLLED + FATAL + SILENT + POLL + STACK, [1]),
        (POLLED + FATAL + NO_COORDINATOR + STACK, [0]),
        (POLLED + FATAL + NO_COORDINATOR + CLOSED + STACK, [0]),  # from another thread
        (PREEMPTION + POLLED + FATAL_12 + NO_COORDINATOR + RESET_12 + STACK, [0]),
        (FATAL + LATE + "Heartbeat\n" + STACK, [0]),
        (FATAL_12 + LATE + "Heartbeat\n" + SOURCE_12 + STACK, [0]),
        (FATAL + LATE + "RegisterTask\n" + STACK, []),  # some never came
        (POLLED + FATAL + LEFT_ALONE + POLL + STACK, [1]),  # its own error ended process 1
        (BUG + POLLED + FATAL + UNHEALTHY + POLL + STACK, [1]),
        # written while another thread was writing a line
        (CLOSED.replace("line 13, in", f"line {FATAL + UNHEALTHY + POLL}13, in"), [1]),
        (CLOSED, []),
        (RESET_12, []),
        (NOT_WRITTEN, []),
        ("", None),
        (BUG, None),
        (FULL, None),
        ("train.py: could not write to runs/a: No space left on device. Is the disk full?\n", None),
        ("train.py: cannot join the other processes (coordinator_address should be defined.)\n", None),
        ("train.py: interrupted\n", None),
        ("F1122 11:19:18.758101    3282 hlo.cc:80] Check failed: size > 0\n" + STACK, None),
        (BUG + POLLED + FATAL + LEFT_ALONE + POLL + STACK, None),  # of process 1 itself
        ("train.py: bad input\n" + POLLED + FATAL + LEFT_ALONE + POLL + STACK, None),
    ],
)
def test_a_loss_is_told_from_other_ends(log: str, lost: list[int] | None) -> None:
    assert lost_processes(log) == lost


def supervised(child: str, heartbeat: float = 1) -> subprocess.CompletedProcess:
    """The result of a parent whose child runs this code."""
    program = (
        "import os, signal, subprocess, sys, time\n"
        "from transformer.runtime import supervision\n"
        "supervision.SETTLE = 0.2\n"
        f"if not supervision.is_child(): sys.exit(supervision.supervise({heartbeat}))\n"
        "def write(text): print(text, end='', file=sys.stderr, flush=True)\n"
    )
    command = [sys.executable, "-c", program + child]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("log", "end", "message"),
    [
        (POLLED + FATAL + UNHEALTHY + POLL + STACK, "os.abort()", "process 1 of the job was lost"),
        (CLOSED + POLLED + FATAL + SILENT + POLL + STACK, "os.abort()", "process 1 of the job was lost"),
        (FATAL + LATE + "Heartbeat\n" + STACK, "os.abort()", "process 0 of the job was lost"),
        (FAILED + POLLED + FATAL + NO_COORDINATOR + STACK, "os.abort()", "process 0 of the job was lost"),
        (
            POLLED + FATAL + UNHEALTHY.replace("\n1\n", "\n1\n2\n") + POLL,
            "os.abort()",
            "processes 1, 2 of the job were lost",
        ),
        (
            TOLD,
            f"time.sleep(1); write({POLLED + FATAL_12 + UNHEALTHY!r}); os.abort()",
            "process 1 of the job was lost",
        ),
        (NOT_WRITTEN, "sys.exit(2)", "another process of the job was lost or cannot be reached"),
    ],
)
def test_a_loss_is_one_message(log: str, end: str, message: str) -> None:
    found = supervised(f"write('step 1\\n'); write({log!r}); {end}")
    assert found.returncode == LOST
    before, last = found.stderr.splitlines()
    assert before == "step 1"
    assert last == f"{message}, so this one ends too. " + RESTART


@pytest.mark.parametrize(
    ("child", "status", "shown"),
    [
        ("pass", 0, ""),
        (f"write({BUG!r}); sys.exit(1)", 1, BUG),
        (f"write({FULL!r}); sys.exit(1)", 1, FULL),
        ("write('train.py: bad input\\n'); sys.exit(2)", 2, "train.py: bad input\n"),
        ("write('train.py: interrupted\\n'); sys.exit(130)", 130, "train.py: interrupted\n"),
        ("write('a crash\\n'); os.abort()", 134, "a crash\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, ""),
        # at first only this process ended; then all were aborted
        (f"write({BUG!r}); time.sleep(1); write({POLLED + FATAL + LEFT_ALONE!r}); os.abort()", 1, BUG),
        (f"write('train.py: bad\\n' + {POLLED + FATAL + LEFT_ALONE!r}); os.abort()", 2, "train.py: bad\n"),
        # the parent is stopped, not the child
        (
            "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(0.5); write('step 1\\n'); "
            "os.kill(os.getppid(), signal.SIGCONT)",
            0,
            "step 1\n",
        ),
        # an error that was not fatal
        (f"write({BUG!r}); time.sleep(1); write('step 2\\n')", 0, BUG + "step 2\n"),
    ],
)
def test_other_ends_are_as_they_were(child: str, status: int, shown: str) -> None:
    found = supervised(child)
    assert (found.returncode, found.stderr) == (status, shown)


def test_an_error_is_shown_while_its_process_waits_for_the_others() -> None:
    """Not only at its end, which may be minutes later."""
    program = f"write({BUG!r}); time.sleep(0.8); os.kill(os.getppid(), signal.SIGKILL)"
    assert supervised(program).stderr == BUG


@pytest.mark.slow
def test_a_stopped_process_ends_once_the_others_count_it_as_lost() -> None:
    stop = "write('step 1\\n'); os.kill(os.getpid(), signal.SIGSTOP); write('step 2\\n')"
    found = supervised(stop, heartbeat=1)
    assert found.returncode == LOST
    assert found.stderr == (
        f"step 1\nthis process was stopped for 0.5 seconds, so the others end without it. {RESTART}\n"
    )
    continue_soon = "subprocess.Popen(f'sleep 0.2; kill -CONT {os.getpid()}', shell=True); "
    found = supervised(continue_soon + stop + "; time.sleep(5)", heartbeat=8)
    assert (found.returncode, found.stderr) == (0, "step 1\nstep 2\n")
