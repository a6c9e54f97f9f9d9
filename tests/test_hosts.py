"""Several processes train as one job: complete runs of the command, on this machine."""

import json
import os
import random
import shlex
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
from transformer.commands.train_arguments import parse_train
from transformer.config.options import HostsConfig, MeshConfig
from transformer.runs.config_json import to_json
from transformer.runtime import hosts
from transformer.runtime.console import ProgressReporter
from transformer.runtime.supervision import LOST
from transformer.trainer.resolved import resume_command
from transformer.trainer.train import train

ROOT = Path(__file__).parent.parent
TRAIN = """
import sys
from transformer.config.options import HostsConfig
from transformer.config.options import MeshConfig
from transformer.runs.config_json import from_json
from transformer.runtime.hosts import join
from transformer.cli.guard import run_command
from transformer.trainer.train import train
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


@pytest.mark.thorough
@pytest.mark.parametrize("shard_pairs", [0, 50])
def test_two_processes_train_like_one(config: Config, tmp_path: Path, shard_pairs: int) -> None:
    short = replace(config, training=replace(config.training, steps=6, evaluate_every=3))
    short = replace(short, data=replace(short.data, shard_pairs=shard_pairs))
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
    lines = map(json.loads, (two.path / "metrics.jsonl").read_text().splitlines())
    waits = [(line["input_wait"], line["input_waits"]) for line in lines if line["kind"] == "training"]
    assert waits
    assert all(len(of_hosts) == 2 and slowest == max(of_hosts) for slowest, of_hosts in waits)


@pytest.mark.slow
def test_two_processes_without_a_shared_disk(config: Config, tmp_path: Path) -> None:
    config = replace(config, data=replace(config.data, shard_pairs=50))  # four shards
    train(config, tmp_path / "one", watch=ProgressReporter(quiet=True))
    where = f"file://{tmp_path}/bucket/run"
    exchange = Path(f"file://{tmp_path}/bucket/shards")
    apart = replace(config, data=replace(config.data, cache_dir=None, exchange=exchange))
    sharded = replace(apart, mesh=MeshConfig(fsdp=2), training=replace(apart.training, steps=8))
    assert ended(start(sharded, tmp_path, 2, where)) == [0, 0], log_of(tmp_path, 0)
    assert ended(start(apart, tmp_path, 2, where)) == [0, 0], log_of(tmp_path, 0)
    assert f"Resuming {where} from step 8" in log_of(tmp_path, 0)
    made = {path.parent.name for path in tmp_path.glob("bucket/shards/*/*/*/about.json")}
    assert len(made) == 4
    one, two = Run(tmp_path / "one"), Run(where)
    assert one.checkpoints.steps() == two.checkpoints.steps()
    shapes = one.shapes
    weights = (jax.tree.leaves(run.checkpoints.variables(12, shapes)) for run in (one, two))
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert one.log.records("evaluation")[-1]["step"] == two.log.records("evaluation")[-1]["step"] == 12


@pytest.mark.slow
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
    shown = (tmp_path / "run" / "log.txt").read_text()  # by the main process alone
    assert [shown.count(words) for words in ("===", f"Stopped at step {step} and saved")] == [2, 1]
    # one process resumes the run of two
    train(replace(endless, training=replace(endless.training, steps=step + 2)), tmp_path / "run")
    assert Run(tmp_path / "run").checkpoints.steps()[-1] == step + 2


@pytest.mark.slow
def test_all_stop_at_the_same_step_when_their_time_is_over(config: Config, tmp_path: Path) -> None:
    limited = replace(config, training=replace(config.training, minutes=0.001, evaluate_every=100))
    processes = start(limited, tmp_path, 2)
    assert ended(processes) == [0, 0], log_of(tmp_path, 0) + log_of(tmp_path, 1)
    for index in (0, 1):
        log = log_of(tmp_path, index)
        assert "Stopped after 0.001 minutes (--training.minutes) at step 8 and saved." in log
        assert f"--hosts.processes 2 --hosts.process {index}" in log
    assert Run(tmp_path / "run").checkpoints.steps()[-1] == 8


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


@pytest.mark.slow
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
        *(
            ({"coordinator": host, "processes": 2, "process": 1}, "give HOST:PORT")
            for host in ("a", "a..b:1", ".a:1", f"{'a' * 64}:1", "a b:1", "[::1:1", "::1:1")
        ),
        ({"heartbeat": 0}, "at least 1 second"),
    ],
)
def test_bad_options(given: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        HostsConfig(**given)


def slurm(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_"))]:
        monkeypatch.delenv(name)
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    for name, value in (job | variables).items():
        monkeypatch.setenv(name, value)


def test_a_batch_script_without_srun_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_given", [])
    slurm(monkeypatch)
    with pytest.raises(UserError, match=r"has 4 tasks \(SLURM_NTASKS\), .* not started by srun") as refused:
        hosts.join(None, None, None, 60)
    assert "wait for 3 processes (all from 0 to 3 but 0), which nobody starts. Put srun" in str(refused.value)
    assert str(refused.value).endswith("To run alone, add --hosts.processes 1")
    arguments = parse_train(TrainLine.of(["--hosts.processes", "1"]), Config())
    hosts.join(**vars(arguments.hosts))  # returns at once
    assert hosts.hosts_given() == ("--hosts.processes", "1")


@pytest.mark.parametrize(
    ("given", "variables", "message"),
    [
        (("a:1", 2, 1), {}, "Waiting for process 0 at a:1. To run alone, add --hosts.processes 1\n"),
        (("a:1", 3, 0), {}, "Waiting for 2 processes (all from 0 to 2 but 0) at a:1. "),
        (
            (None,) * 3,
            {"SLURM_STEP_NODELIST": "n1"},
            "Waiting for 3 processes (all from 0 to 3 but 0) of SLURM. ",
        ),
        (
            (None,) * 3,
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},  # mpirun in a batch script
            "Waiting for process 1 of Open MPI. ",
        ),
    ],
    ids=["options", "three", "srun", "mpirun"],
)
def test_whom_a_process_waits_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, given: tuple, variables: dict, message: str
) -> None:
    monkeypatch.setattr(hosts, "_given", [])
    slurm(monkeypatch, **variables)
    monkeypatch.setattr(hosts, "is_child", lambda: True)
    monkeypatch.setattr(hosts, "end_with_parent", lambda: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: None)
    hosts.join(*given, 60)
    assert message in capfd.readouterr().err


def test_the_line_that_resumes_names_the_job(
    monkeypatch: pytest.MonkeyPatch, untrained_run: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(hosts, "_given", [])
    assert "--hosts" not in resume_command(Run(untrained_run))
    hosts.join(None, None, None, 30)
    assert "--hosts.heartbeat has no effect" in capsys.readouterr().err
    hosts.join("node1:99", 1, 0, 30)
    line = resume_command(Run(untrained_run))
    _, *words = shlex.split(line)[1:]
    parsed = parse_train(TrainLine.of(words), Config())
    assert parsed.hosts == HostsConfig("node1:99", 1, 0, 30)


def test_options_and_one_process(config: Config) -> None:
    arguments = ["--hosts.coordinator", "first:99", "--hosts.processes", "2", "--hosts.process", "1"]
    assert parse_train(TrainLine.of(arguments), config).hosts == HostsConfig("first:99", 2, 1)
    assert hosts.gathered("said") == ["said"]
    assert hosts.by_turns([1, 2, 3], lambda some: [2 * x for x in some]) == [2, 4, 6]
