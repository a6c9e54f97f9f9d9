"""Several processes train as one job: complete runs of the command, on this machine."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from small_run import WORDS, small_config
from small_translator import small_translator, stored

from transformer import Config, Run, UserError
from transformer.cli.command_line import TrainLine
from transformer.cli.train_arguments import parse_train
from transformer.config import HostsConfig, MeshConfig
from transformer.runs.config_json import to_json
from transformer.runtime import hosts
from transformer.runtime.console import ProgressReporter
from transformer.runtime.supervision import LOST, lost_processes
from transformer.training.loop.train import train

ROOT = Path(__file__).parent.parent
TRAIN = """
import sys
from transformer.config import HostsConfig, MeshConfig
from transformer.runs.config_json import from_json
from transformer.runtime.hosts import join
from transformer.cli.guard import run_command
from transformer.training.loop.train import train
config, run_dir, port, count, index = sys.argv[1:]
def command(_):
    join(f"localhost:{port}", int(count), int(index), heartbeat=10)
    print("joined", flush=True)
    train(from_json(open(config).read()), run_dir)
raise SystemExit(run_command("train.py", command))
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def start(config: Config, folder: Path, count: int, run_dir: str = "") -> list[subprocess.Popen]:
    """The processes of a training into `folder/run`, each with a log in `folder`; or into a remote run
    directory, each with its own disk."""
    (folder / "config.json").write_text(to_json(config))
    port, processes = free_port(), []
    for index in range(count):
        arguments = [folder / "config.json", run_dir or folder / "run", port, count, index]
        own = {"TRANSFORMER_CACHE": str(folder / f"disk-{index}")} if run_dir else {}
        with open(folder / f"{index}.log", "w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-u", "-c", TRAIN, *map(str, arguments)],
                    env={**os.environ, "JAX_PLATFORMS": "cpu"} | own,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return processes


def ended(processes: list[subprocess.Popen], seconds: float = 300) -> list[int]:
    try:
        return [process.wait(seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()


def log_of(folder: Path, index: int) -> str:
    return (folder / f"{index}.log").read_text()


def wait_for(text: str, folder: Path, index: int) -> None:
    """Waits until the log of a process has the text."""
    until = time.monotonic() + 240
    while text not in log_of(folder, index):
        assert time.monotonic() < until, log_of(folder, index)
        time.sleep(0.1)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    small = small_config(tmp_path_factory.mktemp("text"))
    optimizer = replace(small.optimizer, epsilon=1e-4)  # above the rounding of sums: see test_sharding.py
    return replace(small, model=replace(small.model, dropout=0.0), optimizer=optimizer)


def evaluations(run_dir: Path) -> list[tuple[int, float, float, list[str]]]:
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [(r["step"], r["nll"], r["bleu"], r["samples"]) for r in records if r["kind"] == "evaluation"]


def test_two_processes_train_like_one(config: Config, tmp_path: Path) -> None:
    short = replace(config, training=replace(config.training, steps=6, evaluate_every=3))
    train(short, tmp_path / "one", watch=ProgressReporter(quiet=True))
    assert ended(start(short, tmp_path, 2)) == [0, 0], log_of(tmp_path, 0)
    assert "Trained" in log_of(tmp_path, 0)
    assert "Trained" not in log_of(tmp_path, 1)
    one, two = Run(tmp_path / "one"), Run(tmp_path / "run")
    shapes = one.shapes
    weights = (jax.tree.leaves(run.checkpoints.variables(6, shapes)) for run in (one, two))
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    for ours, theirs in zip(evaluations(one.path), evaluations(two.path), strict=True):
        assert ours[0] == theirs[0]
        assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
        assert ours[2:] == theirs[2:]
    results = [json.loads((run.path / "results.json").read_text()) for run in (one, two)]
    assert results[0] == results[1]


@pytest.mark.slow
def test_two_processes_without_a_shared_disk(config: Config, tmp_path: Path) -> None:
    train(config, tmp_path / "one", watch=ProgressReporter(quiet=True))
    where = f"file://{tmp_path}/bucket/run"
    apart = replace(config, data=replace(config.data, cache_dir=None))
    sharded = replace(apart, mesh=MeshConfig(fsdp=2), training=replace(apart.training, steps=8))
    assert ended(start(sharded, tmp_path, 2, where)) == [0, 0], log_of(tmp_path, 0)
    assert ended(start(apart, tmp_path, 2, where)) == [0, 0], log_of(tmp_path, 0)
    assert f"Resuming {where} from step 8" in log_of(tmp_path, 0)
    one, two = Run(tmp_path / "one"), Run(where)
    assert one.checkpoints.steps() == two.checkpoints.steps()
    shapes = one.shapes
    weights = (jax.tree.leaves(run.checkpoints.variables(12, shapes)) for run in (one, two))
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert one.log.records("evaluation")[-1]["step"] == two.log.records("evaluation")[-1]["step"] == 12


def test_if_one_is_asked_to_stop_all_do_at_the_same_step(config: Config, tmp_path: Path) -> None:
    endless = replace(config.training, steps=1_000_000, evaluate_every=1_000_000, log_every=1)
    endless = replace(config, training=endless)
    processes = start(endless, tmp_path, 2)
    wait_for("tokens/s", tmp_path, 0)
    # some job systems signal the process and its children; it counts once
    processes[1].send_signal(signal.SIGTERM)
    subprocess.run(["pkill", "-TERM", "-P", str(processes[1].pid)], check=True)
    assert ended(processes, 60) == [128 + signal.SIGTERM] * 2
    (step,) = Run(tmp_path / "run").checkpoints.steps()
    assert f"Stopped at step {step} and saved" in log_of(tmp_path, 0)
    # one process resumes the run of two
    train(replace(endless, training=replace(endless.training, steps=step + 2)), tmp_path / "run")
    assert Run(tmp_path / "run").checkpoints.steps()[-1] == step + 2


LOSSES = 20


@pytest.mark.slow
def test_twenty_losses_at_random_moments(config: Config, tmp_path: Path) -> None:
    # a checkpoint and an evaluation at every other step, so that many losses come during one
    often = replace(config.training, steps=1_000_000, evaluate_every=2, log_every=1)
    moments, reached, seconds, named = random.Random(0), [0], [], 0
    for _ in range(LOSSES):
        processes = start(replace(config, training=often), tmp_path, 2)
        victim, sign = moments.randrange(2), moments.choice([signal.SIGKILL, signal.SIGSTOP])
        moment = moments.uniform(0, 20)
        other = 1 - victim
        try:
            wait_for("joined", tmp_path, 0)
            wait_for("joined", tmp_path, 1)
            time.sleep(moment)
            assert [process.poll() for process in processes] == [None, None], log_of(tmp_path, other)
            # the child that trains
            subprocess.run(["pkill", f"-{sign}", "-P", str(processes[victim].pid)], check=True)
            lost = time.monotonic()
            status = processes[other].wait(60)
            seconds.append(time.monotonic() - lost)
            assert status == LOST, log_of(tmp_path, other)
            ended_so = LOST if sign == signal.SIGSTOP else 128 + signal.SIGKILL
            assert processes[victim].wait(10) == ended_so, log_of(tmp_path, victim)
        finally:
            ended(processes, 1)
        log = log_of(tmp_path, other)
        print(
            f"process {victim}, {sign.name} after {moment:.1f} s: {seconds[-1]:.1f} s. {log.splitlines()[-1]}"
        )
        assert "of the job was lost" in log
        assert "Traceback" not in log
        assert "coordination" not in log
        named += f"process {victim} of the job was lost, so this one ends too" in log
        reached.append(
            max(Run(tmp_path / "run").checkpoints.steps(), default=0) if (tmp_path / "run").exists() else 0
        )
        assert reached[-1] >= reached[-2], "a checkpoint was lost"
    print(
        f"{len(seconds)} losses: {named} named the process; the other ended with status {LOST} after "
        f"{max(seconds):.1f} s at most, with a heartbeat of 10 s; checkpoints {reached}"
    )
    finished = replace(config, training=replace(often, steps=reached[-1] + 4))
    assert ended(start(finished, tmp_path, 2)) == [0, 0], log_of(tmp_path, 0)
    assert Run(tmp_path / "run").checkpoints.steps()[-1] == reached[-1] + 4


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


def test_two_processes_translate_like_one(tmp_path: Path) -> None:
    translator = small_translator()
    run_dir = stored(translator, tmp_path / "run")
    (tmp_path / "in").write_text("".join(f"{a} {b}\n" for a in WORDS for b in ("", *WORDS)))
    port, processes = free_port(), []
    for index in range(2):
        hosts = f"--hosts.coordinator localhost:{port} --hosts.processes 2 --hosts.process {index}".split()
        files = ["--input", tmp_path / "in", "--output", tmp_path / "two", "--reference", tmp_path / "in"]
        with open(tmp_path / f"{index}.log", "w") as log:
            command = [sys.executable, ROOT / "decode.py", run_dir, *files, *hosts]
            processes.append(
                subprocess.Popen(
                    list(map(str, command)),
                    env={**os.environ, "JAX_PLATFORMS": "cpu"},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    assert ended(processes) == [0, 0], log_of(tmp_path, 0) + log_of(tmp_path, 1)
    lines = (tmp_path / "in").read_text().splitlines()
    assert (tmp_path / "two").read_text().splitlines() == translator.translate(lines)
    assert "BLEU" in log_of(tmp_path, 0)
    assert "BLEU" not in log_of(tmp_path, 1)


def test_launchers_are_told_by_what_they_set() -> None:
    assert hosts.cluster({}) is None
    assert hosts.cluster({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == "SLURM"
    assert hosts.cluster({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None
    assert hosts.cluster({"SLURM_NTASKS": "4"}) is None  # inside an allocation, but not started by srun
    assert hosts.cluster({"OMPI_COMM_WORLD_SIZE": "2"}) == "Open MPI"
    assert hosts.cluster({"TPU_WORKER_HOSTNAMES": "a,b"}) == "Cloud TPU"
    assert hosts.cluster({"TPU_WORKER_HOSTNAMES": "localhost"}) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coordinator": "a:1"}, "all three, or none"),
        ({"coordinator": "a:1", "processes": 2, "process": 2}, "must be from 0 to 1"),
        ({"coordinator": "a", "processes": 2, "process": 1}, "give HOST:PORT"),
        ({"heartbeat": 0}, "at least 1 second"),
    ],
)
def test_bad_options(given: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        HostsConfig(**given)


def test_options_and_one_process(config: Config) -> None:
    arguments = ["--hosts.coordinator", "first:99", "--hosts.processes", "2", "--hosts.process", "1"]
    assert parse_train(TrainLine.of(arguments), config).hosts == HostsConfig("first:99", 2, 1)
    assert hosts.gathered("said") == ["said"]
    assert hosts.by_turns([1, 2, 3], lambda some: [2 * x for x in some]) == [2, 4, 6]
