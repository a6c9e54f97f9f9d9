"""Several processes train as one: whole trainings through the command, on this machine."""

import json
import os
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

from transformer import Config, Run, UserError, hosts
from transformer.cli.train import parse_train
from transformer.config import HostsConfig
from transformer.config_json import to_json
from transformer.decoding.translator import model_shapes
from transformer.supervision import LOST
from transformer.training.train import train
from transformer.training.watch import Watch

ROOT = Path(__file__).parent.parent
TRAIN = """
import sys
from transformer.config import HostsConfig
from transformer.config_json import from_json
from transformer.hosts import join
from transformer.cli.guard import guarded
from transformer.training.train import train
config, run_dir, port, count, index = sys.argv[1:]
def command(_):
    join(HostsConfig(f"localhost:{port}", int(count), int(index), heartbeat=10))
    train(from_json(open(config).read()), run_dir)
raise SystemExit(guarded("train.py", command))
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def start(config: Config, folder: Path, count: int) -> list[subprocess.Popen]:
    """The processes of a training into `folder/run`, each with a log in `folder`."""
    (folder / "config.json").write_text(to_json(config))
    port, processes = free_port(), []
    for index in range(count):
        arguments = [folder / "config.json", folder / "run", port, count, index]
        with open(folder / f"{index}.log", "w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-u", "-c", TRAIN, *map(str, arguments)],
                    env={**os.environ, "JAX_PLATFORMS": "cpu"},
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


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    small = small_config(tmp_path_factory.mktemp("text"))
    optimizer = replace(small.optimizer, epsilon=1e-4)  # above the rounding of sums: see test_parallel.py
    return replace(small, model=replace(small.model, dropout=0.0), optimizer=optimizer)


def evaluations(run_dir: Path) -> list[tuple[int, float, float, list[str]]]:
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [(r["step"], r["nll"], r["bleu"], r["samples"]) for r in records if r["kind"] == "evaluation"]


def test_two_processes_train_like_one(config: Config, tmp_path: Path) -> None:
    train(config, tmp_path / "one", watch=Watch(quiet=True))
    assert ended(start(config, tmp_path, 2)) == [0, 0], log_of(tmp_path, 0)
    assert "Trained" in log_of(tmp_path, 0)
    assert "Trained" not in log_of(tmp_path, 1)
    one, two = Run(tmp_path / "one"), Run(tmp_path / "run")
    shapes = model_shapes(one.config)
    weights = (jax.tree.leaves(run.variables(12, shapes)) for run in (one, two))
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    for ours, theirs in zip(evaluations(one.path), evaluations(two.path), strict=True):
        assert ours[0] == theirs[0]
        assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
        assert ours[2:] == theirs[2:]
    results = [json.loads((run.path / "results.json").read_text()) for run in (one, two)]
    assert results[0] == results[1]


def test_if_one_is_asked_to_stop_all_do_at_the_same_step(config: Config, tmp_path: Path) -> None:
    endless = replace(config.training, steps=1_000_000, evaluate_every=1_000_000, log_every=1)
    endless = replace(config, training=endless)
    processes = start(endless, tmp_path, 2)
    until = time.monotonic() + 240
    while "tokens/s" not in log_of(tmp_path, 0):
        assert time.monotonic() < until, log_of(tmp_path, 0)
        time.sleep(0.1)
    # as some job systems do: to the process, and to its children; it counts once
    processes[1].send_signal(signal.SIGTERM)
    subprocess.run(["pkill", "-TERM", "-P", str(processes[1].pid)], check=True)
    assert ended(processes, 60) == [128 + signal.SIGTERM] * 2
    (step,) = Run(tmp_path / "run").steps()
    assert f"Stopped at step {step} and saved" in log_of(tmp_path, 0)
    # and one process goes on with what two began
    train(replace(endless, training=replace(endless.training, steps=step + 2)), tmp_path / "run")
    assert Run(tmp_path / "run").steps()[-1] == step + 2


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_if_one_is_lost_the_other_ends_and_the_job_can_go_on(
    config: Config, tmp_path: Path, victim: int
) -> None:
    long = replace(config, training=replace(config.training, steps=100_000, log_every=1))
    processes = start(long, tmp_path, 2)
    until = time.monotonic() + 240
    while not list(tmp_path.glob("run/checkpoints/*/manifest.json")):
        assert time.monotonic() < until, log_of(tmp_path, 0)
        time.sleep(0.1)
    subprocess.run(["pkill", "-KILL", "-P", str(processes[victim].pid)], check=True)  # the child that trains
    died = time.monotonic()
    other = processes[1 - victim]
    assert other.wait(60) == LOST, log_of(tmp_path, 1 - victim)
    print(f"the other ended {time.monotonic() - died:.1f} s later, with a heartbeat of 10 s")
    ended(processes, 60)
    assert f"process {victim} of the job was lost" in log_of(tmp_path, 1 - victim)
    assert "Traceback" not in log_of(tmp_path, 1 - victim)
    step = Run(tmp_path / "run").steps()[-1]
    assert ended(start(replace(long, training=replace(long.training, steps=step + 4)), tmp_path, 2)) == [0, 0]
    assert Run(tmp_path / "run").steps()[-1] == step + 4


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
    assert hosts.found({}) is None
    assert hosts.found({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == "SLURM"
    assert hosts.found({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None
    assert hosts.found({"SLURM_NTASKS": "4"}) is None  # inside an allocation, but not started by srun
    assert hosts.found({"OMPI_COMM_WORLD_SIZE": "2"}) == "Open MPI"
    assert hosts.found({"TPU_WORKER_HOSTNAMES": "a,b"}) == "Cloud TPU"
    assert hosts.found({"TPU_WORKER_HOSTNAMES": "localhost"}) is None


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
    assert parse_train(arguments, config).hosts == HostsConfig("first:99", 2, 1)
    assert hosts.gathered("said") == ["said"]
    assert hosts.by_turns([1, 2, 3], lambda some: [2 * x for x in some]) == [2, 4, 6]
