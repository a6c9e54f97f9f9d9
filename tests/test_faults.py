"""Faults during training: damaged files, a full disk, signals, a kill at any moment."""

import contextlib
import io
import os
import pty
import random
import re
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console
from small_run import changed, quiet, same, small_config

from transformer import OptimizerConfig, Run, Translator
from transformer.cli import guard
from transformer.config.options import as_options, locations
from transformer.runs.config_json import to_json
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError
from transformer.trainer.train import train


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut_short, flip_a_bit, Path.unlink])
@pytest.mark.parametrize("item", ["model", "training"])
def test_a_damaged_checkpoint_is_named(finished, tmp_path, damage, item):
    shutil.copytree(finished, tmp_path / "run")
    damage(largest_file(tmp_path / "run" / "checkpoints" / "12" / item))
    if item == "model":
        with pytest.raises(UserError, match="checkpoints/12/model/.* is damaged"):
            Translator.load(tmp_path / "run", "last")
    else:  # decoding does not need it
        Translator.load(tmp_path / "run", "last")


@pytest.mark.thorough
def test_training_goes_on_from_the_newest_checkpoint_that_is_whole(config, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    flip_a_bit(largest_file(tmp_path / "run" / "checkpoints" / "12" / "training"))
    before = Run(tmp_path / "run").checkpoints.steps()[-2]
    said = io.StringIO()
    train(changed(config, steps=12), tmp_path / "run", watch=ProgressReporter(Console(file=said, width=1000)))
    assert "checkpoints/12/training/" in said.getvalue()
    assert f"damaged/12; resuming from step {before}" in said.getvalue()
    run = Run(tmp_path / "run")
    assert (run.path / "damaged" / "12" / "model").is_dir()
    assert same(run.path, finished)

    for step in run.checkpoints.steps():
        cut_short(largest_file(run.path / "checkpoints" / str(step) / "model"))
    with pytest.raises(UserError, match="checkpoints/12/model/.* is damaged"):
        train(changed(config, steps=13), run.path, watch=quiet())
    assert Run(run.path).checkpoints.steps() == run.checkpoints.steps()


def largest_file(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(config, tmp_path):
    wild = replace(
        changed(config, evaluate_every=2),
        optimizer=OptimizerConfig(schedule="constant", peak=1e30, warmup_steps=1_000_000_000),
    )
    wild = replace(wild, optimizer=OptimizerConfig(schedule="paper", scale=1e25, warmup_steps=4))
    with pytest.raises(UserError, match=r"the loss is .* at step \d+: lower the learning rate"):
        train(wild, tmp_path / "run", watch=quiet())
    run = Run(tmp_path / "run")
    for step in run.checkpoints.steps():
        leaves = jax.tree.leaves(run.variables(step))
        assert all(np.isfinite(leaf).all() for leaf in leaves)


FULL_DISK = """
import resource, signal, sys
from transformer.runs.config_json import from_json
from transformer.runtime.errors import UserError
from transformer.trainer import loop
from transformer.trainer.train import train
from transformer.runtime.console import ProgressReporter

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ordinary = loop.Loop._checkpoint

def keep(self, stop):
    if self.step == 8:  # from here on no file may grow past 4 KiB: as if the disk were full
        self.run.checkpoints.finish_saving()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    ordinary(self, stop)

loop.Loop._checkpoint = keep
try:
    train(from_json(sys.argv[1]), sys.argv[2], watch=ProgressReporter(quiet=True))
except UserError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.slow
def test_a_full_disk_costs_no_earlier_checkpoint(config, tmp_path):
    run_dir = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, to_json(config), str(run_dir)], capture_output=True, text=True
    )
    assert ended.returncode == 2, ended.stderr
    assert "could not write to" in ended.stdout
    assert "--run-dir" in ended.stdout
    assert Run(run_dir).checkpoints.steps() == [4]
    train(config, run_dir, watch=quiet())
    assert Run(run_dir).checkpoints.steps()[-1] == 12


READ_ONLY = Path("/sys")  # where even root cannot write


@pytest.mark.skipif(not READ_ONLY.is_dir(), reason="only Linux has one")
def test_a_read_only_directory_is_refused_before_the_work(config):
    for run_dir in (READ_ONLY / "run", READ_ONLY / "a" / "run"):
        with pytest.raises(UserError, match="cannot create /sys/.*run: /sys is not a writable folder"):
            train(config, run_dir, watch=quiet())


def test_a_run_that_cannot_be_written_to_is_not_gone_on_with(finished, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    (run_dir / "lock").unlink()
    (run_dir / "lock").mkdir()  # root can write everywhere but not there
    with pytest.raises(UserError, match=f"cannot write to {run_dir}: Is a directory"), Run(run_dir).claimed():
        pass


@pytest.mark.slow
def test_a_second_signal_ends_at_once(config, tmp_path):
    program = (
        "import sys, time; from transformer.commands.train import train_main\n"
        "from transformer.trainer.loop import Loop\n"
        "Loop._checkpoint = lambda self, stop: time.sleep(600)\n"
        "sys.exit(train_main())"
    )
    (tmp_path / "config.json").write_text(to_json(config))
    options = ["--data.tokenizer", "whitespace", "--data.cache-dir", str(config.data.cache_dir)]
    for name in ("train", "validation"):
        for side in ("source", "target"):
            options += [f"--data.{name}-{side}", str(getattr(config.data, f"{name}_{side}"))]
    options += ["--run-dir", str(tmp_path / "run"), "--training.log-every", "1", "--training.steps", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    sent = False
    for line in process.stdout:
        if line.startswith("step") and not sent:
            process.send_signal(signal.SIGINT)
            sent = True
        if line.startswith("Stopping"):
            time.sleep(1.2)  # sooner, it would count as the same
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate()
    watchdog.cancel()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


def test_a_signal_that_is_swallowed_comes_again(monkeypatch, capsys):
    """For example in a callback of the garbage collector, or inside `except:`."""
    monkeypatch.setattr(guard, "AGAIN", 0.2)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]

    class Swallows:
        def __init__(self, number):
            self.number = number

        def __del__(self):
            os.kill(os.getpid(), self.number)
            time.sleep(0.01)

    for number in (signal.SIGTERM, signal.SIGINT):

        def command(arguments, number=number):
            Swallows(number)
            with contextlib.suppress(BaseException):
                time.sleep(30)
            time.sleep(30)

        assert guard.run_command("train.py", command) == 128 + number
        os.kill(os.getpid(), signal.SIGINT)  # the process ends: impatience no longer disturbs it
        signal.signal(signal.SIGINT, handlers[1])
    assert capsys.readouterr().err == "train.py: interrupted\n" * 2
    assert handlers == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_limits_are_restored():
    """The full-disk test limits its own process only."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_one_run_at_a_time_in_a_directory(finished):
    run = Run(finished)
    with run.claimed():
        with (
            pytest.raises(
                UserError, match=f"another process trains there .process {os.getpid()} on .*.; wait"
            ),
            Run(finished).claimed(),
        ):
            pass
    with run.claimed():
        pass


INTERRUPTS = int(os.environ.get("TRANSFORMER_INTERRUPTS", 50))
ROOT = Path(__file__).parent.parent
KILLS = 50
TRAIN = """
import sys
from transformer.runs.config_json import from_json
from transformer.trainer.train import train
train(from_json(open(sys.argv[1]).read()), sys.argv[2])
"""


@pytest.mark.slow
def test_killed_at_fifty_random_moments(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    small = small_config(tmp_path / "text")
    # a checkpoint at every other step, so that many kills come while one is written
    often = replace(small.training, steps=400, evaluate_every=2, log_every=1, evaluate_sentences=1)
    config = replace(small, training=often)
    begun = time.monotonic()
    train(config, tmp_path / "whole", watch=ProgressReporter(quiet=True))
    lasted = time.monotonic() - begun

    (tmp_path / "config.json").write_text(to_json(config))
    command = [sys.executable, "-c", TRAIN, str(tmp_path / "config.json"), str(tmp_path / "killed")]
    moments, kills, reached = random.Random(0), 0, [0]
    while True:
        with open(tmp_path / "log", "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ})
        try:
            # after the start-up, at a random moment of what one process would do
            process.wait(4 + moments.random() * max(4.0, 2 * lasted / KILLS) if kills < KILLS else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            folder = tmp_path / "killed" / "checkpoints"
            steps = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
            reached.append(max(steps, default=0))
            assert reached[-1] >= reached[-2], "a checkpoint was lost"
            continue
        assert process.returncode == 0, (tmp_path / "log").read_text()
        break
    print(f"killed {kills} times, at checkpoints {reached}")
    assert kills >= 10  # a fast machine may finish before the fiftieth
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    shapes = whole.shapes
    for ours, theirs in zip(
        *(jax.tree.leaves(run.checkpoints.variables(400, shapes)) for run in (whole, killed)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_interrupted_at_fifty_random_moments_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C as a terminal sends it, while the progress bar is drawn: each time training ends with 130,
    without a hang, and the next one resumes from an intact checkpoint."""
    small = small_config(tmp_path)
    often = replace(small.training, steps=10**6, evaluate_every=400, log_every=1, evaluate_sentences=1)
    config = replace(small, training=often)
    (tmp_path / "config.json").write_text(to_json(config))
    train(
        replace(config, training=replace(often, steps=1)),
        tmp_path / "run",
        watch=ProgressReporter(quiet=True),
    )
    command = [sys.executable, "train.py", "--run-dir", str(tmp_path / "run")]
    command += [*shlex.split(as_options(locations(config))), "--training.steps", str(often.steps)]
    moments, reached = random.Random(0), [1]
    for _ in range(INTERRUPTS):
        ended, said = interrupted(command, moments.uniform(0.5, 12))
        assert ended == 130, said
        assert "Traceback" not in said
        run = Run(tmp_path / "run")
        reached.append(run.checkpoints.steps()[-1])
        assert np.isfinite(jax.tree.leaves(run.variables("last"))[0]).all()
        if re.search(r"step +[\d,]+/", said):  # a step was taken, and logged
            assert reached[-1] > reached[-2], said
    print(f"interrupted {INTERRUPTS} times, at steps {reached}")
    assert len(set(reached)) > INTERRUPTS / 4


ON_ITS_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # what was started in the background ignores it
os.execv(sys.argv[1], sys.argv[1:])
"""


def interrupted(command: list[str], seconds: float) -> tuple[int, str]:
    """The exit status and the output of a program on its own terminal, after Ctrl-C at that time."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_ITS_TERMINAL, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        start_new_session=True,
    )
    os.close(theirs)
    said, typed, began = b"", False, time.monotonic()
    try:
        while True:
            waited = time.monotonic() - began
            assert waited < seconds + 120, f"it hangs: {said.decode()[-2000:]}"
            if waited > seconds and not typed:
                os.write(ours, b"\x03")
                typed = True
            if select.select([ours], [], [], 0.05)[0]:
                said += os.read(ours, 2**16)
    except OSError:  # the terminal ends with the last program on it
        return process.wait(), said.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
