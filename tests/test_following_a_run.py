"""Following a run: other tools that track it, a trace of its steps, what held the memory; Adafactor."""

import dataclasses
import gzip
import io
import json
import logging
import shutil

import jax
import numpy as np
import optax
import pytest
from rich.console import Console
from small_run import changed, quiet, same, small_config

from transformer import OptimizerConfig, Run
from transformer.commands.train import train_main
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError
from transformer.trainer import loop
from transformer.trainer.train import train
from transformer.training.schedule import make_optimizer


@pytest.fixture
def config(tmp_path):
    return changed(small_config(tmp_path), steps=6, evaluate_every=6)


@pytest.mark.thorough
def test_a_tool_gets_every_record(config, tmp_path):
    records = []
    run = Run(train(config, tmp_path / "run", watch=quiet(), track=records.append))
    logged = [each for each in run.log.records() if each["kind"] not in ("start", "test")]
    got = json.loads(json.dumps(records))
    assert got == [{k: v for k, v in each.items() if k not in ("elapsed", "spent")} for each in logged]
    assert {each["kind"] for each in records} == {"training", "evaluation"}


@pytest.mark.slow
def test_a_tool_that_fails_costs_nothing(config, tmp_path, caplog):
    def fail(record):
        raise ConnectionError("no route to host")

    with caplog.at_level(logging.WARNING, "transformer"):
        run = Run(train(config, tmp_path / "run", watch=quiet(), track=fail))
    assert run.checkpoints.steps()[-1] == 6
    assert [each.message for each in caplog.records] == ["tracking ends: ConnectionError: no route to host"]


@pytest.mark.slow
def test_a_trace_of_two_steps(config, tmp_path):
    train(config, tmp_path / "run", watch=quiet(), profile=2)
    (trace,) = (tmp_path / "run" / "profile").rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert len(events) > 10


def test_a_negative_number_of_traced_updates(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["train.py", "--profile", "-1"])
    assert train_main() == 2
    assert "--profile -1: must be a number of updates" in capsys.readouterr().err


def test_out_of_memory_says_what_to_lower_and_what_held_it(config, tmp_path, monkeypatch):
    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.\nmore")

    monkeypatch.setattr(loop, "configured_step", lambda *_: fail)
    monkeypatch.setattr("transformer.training.sharding.Replicas.compile_step", lambda self, step, **_: step)
    with pytest.raises(UserError, match=r"lower --data.batch-tokens, .*memory.prof") as failed:
        train(config, tmp_path / "run", watch=quiet())
    assert "\n" not in str(failed.value)
    assert (tmp_path / "run" / "memory.prof").stat().st_size > 0


def algorithm_4(gradients, rate):
    """Shazeer and Stern (2018), Algorithm 4, without relative steps and momentum, for one matrix."""
    rows = columns = 0.0
    change = 0.0
    for t, g in enumerate(gradients, start=1):
        decay = 1 - t**-0.8
        squares = g**2 + 1e-30
        rows = decay * rows + (1 - decay) * squares.mean(axis=1)
        columns = decay * columns + (1 - decay) * squares.mean(axis=0)
        update = g / np.sqrt(np.outer(rows, columns) / rows.mean())
        change -= rate * update / max(1.0, np.sqrt((update**2).mean()))
    return change


def test_adafactor_is_that_of_its_paper(config):
    gradients = [np.random.default_rng(n).standard_normal((128, 160)) for n in range(4)]
    given = OptimizerConfig(algorithm="adafactor", schedule="constant", peak=0.1, warmup_steps=1)
    optimizer = make_optimizer(dataclasses.replace(config, optimizer=given))
    params = {"kernel": np.zeros((128, 160), np.float32)}
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update({"kernel": np.float32(gradient)}, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params["kernel"], algorithm_4(gradients, 0.1), atol=1e-5)
    assert sum(x.size for x in jax.tree.leaves(state)) < 128 + 160 + 10


@pytest.mark.slow
def test_adafactor_resumes_bit_for_bit(config, tmp_path):
    config = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, algorithm="adafactor")
    )
    config = changed(config, evaluate_every=3)
    whole = train(config, tmp_path / "whole", watch=quiet())
    shutil.copytree(whole, tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "6")
    assert same(whole, train(config, tmp_path / "killed", watch=quiet()))


def test_the_bar_fits_in_a_narrow_terminal(monkeypatch):
    """It has the number of steps and the time left; the speed is what gives way."""
    monkeypatch.setenv("TERM", "xterm")
    for width, has_speed in ((60, False), (100, True)):
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=width, color_system=None)
        watch = ProgressReporter(console)
        with watch.training(0, 20_000):
            watch.step(19_999, 20_000, {"loss": 1.253}, 34_584, "tokens", 1.0)
            watch._bar.refresh()
        assert "19999/20000 loss  1.253" in out.getvalue()
        assert ("tokens/s" in out.getvalue()) == has_speed
        assert "…" not in out.getvalue()
