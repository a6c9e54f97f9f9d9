"""Following a run: other tools that track it, a trace of its steps, what held the memory; Adafactor."""

import dataclasses
import gzip
import io
import json
import logging
import math
import re
import shutil
import types

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


def test_a_negative_number_of_traced_updates(refused):
    assert "--profile -1: must be a number of updates" in refused(train_main, "--profile", "-1")


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


def terminal(width):
    """A reporter on a terminal, and what it wrote, without control sequences."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None, soft_wrap=True)
    return ProgressReporter(console), lambda: re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", out.getvalue())


def test_what_is_shown_has_no_control_characters():
    """Names and texts of strangers: of a run, or of its training text."""
    watch, _ = terminal(60)
    watch.message("a \x1b]0;evil\x07")
    record = {"step": 1, "best": True, "measure": {"name": "x", "title": "X"}, "x": 1.0, "seconds": 1.0}
    watch.evaluation(record, [("b \x1b]0;evil\x07", "c", "d\xa0\x9b2J")])
    watch.result("results", [("label", "e \x1b[2J")])
    shown = watch.console.file.getvalue()
    assert not any(text in shown for text in ("\x1b]", "\x07", "\x9b", "\x1b[2J"))
    for text in (r"a \x1b]0;evil\x07", r"b \x1b]0;evil\x07", "d\xa0\\x9b2J", r"e \x1b[2J"):
        assert text in shown


def test_the_bar_fits_in_a_narrow_terminal(monkeypatch):
    """It has the number of steps and the time left; the speed is what gives way."""
    monkeypatch.setenv("TERM", "xterm")
    for width, has_speed in ((60, False), (100, True)):
        watch, written = terminal(width)
        with watch.training(0, 20_000):
            watch.step(19_999, 20_000, {"loss": 1.253}, 34_584, "tokens", 1.0)
            watch._bar.refresh()
        assert "19999/20000 loss  1.253" in written()
        assert ("tokens/s" in written()) == has_speed
        assert "…" not in written()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bar_says_what_is_done_and_keeps_the_loss(monkeypatch, width):
    monkeypatch.setenv("TERM", "xterm")
    watch, written = terminal(width)
    with watch.training(0, 60):
        watch.compiling()
        watch.advance(1, math.inf)
        watch._bar.refresh()
        assert "ETA" not in written().rpartition("1/60")[2]  # a first step says nothing about others
        watch.step(60, 60, {"loss": 1.253}, 34_584, "tokens", 0.0, is_least=True)
        watch._bar.refresh()
        assert written().rstrip().endswith("ETA >0:01")
        for what, count, left, shown in (
            ("evaluating", 64, 3661.0, "evaluating 64 of 128 ETA 1:01:01"),
            ("testing", 128, 0.2, "testing 128 of 128 ETA 0:01"),
        ):
            watch._last_update = 0.0
            watch.phase(what, count, 128, left)
            watch._bar.refresh()
            assert shown in written()
            assert ("loss  1.253  " + shown in written()) == (width >= 80)
    last = written().rstrip().splitlines()[-1]
    assert "60/60 loss  1.253" in last
    assert "ETA" not in last
    assert "0:00" not in written().replace("0:00:", "")


def test_without_a_terminal_an_evaluation_has_a_line_every_30_seconds(monkeypatch):
    seconds = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: seconds[0], time=lambda: 0.0)
    monkeypatch.setattr("transformer.runtime.console.time", clock)
    out = io.StringIO()
    watch = ProgressReporter(Console(file=out, width=100))
    with watch.training(0, 60):
        for count in range(100):
            seconds[0] += 1.0
            watch.phase("evaluating", count, 100, 100.0 - count)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "  evaluating 30 of 100  ETA 1:10"


@pytest.mark.slow
def test_the_time_left_counts_evaluations_and_the_test(config, tmp_path):
    """Once one of them was seen: until then it is the least."""
    told = []

    class Told(ProgressReporter):
        def phase(self, what, count, total, seconds_left, is_least=False):
            told.append((what, count, total, is_least))
            assert seconds_left >= 0

        def step(self, step, total, values, rate, unit, seconds_left, is_least=False):
            told.append((step, seconds_left > 0, is_least))

    train(changed(config, steps=4, evaluate_every=2, log_every=1), tmp_path / "run", watch=Told(quiet=True))
    assert [each for each in told if isinstance(each[0], int)] == [
        (1, True, False),  # nothing is known
        (2, True, True),
        (3, True, False),
        (4, True, False),
    ]
    phases = [each[:3] for each in told if isinstance(each[0], str)]
    assert [count for what, count, total in phases if (what, total) == ("evaluating", 8)] == [*range(9)] * 2
    assert [count for what, count, total in phases if (what, total) == ("testing", 12)] == [*range(13)]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_word_is_cut_at_the_width_of_the_terminal(monkeypatch, width):
    monkeypatch.setenv("TERM", "xterm")
    watch, written = terminal(width)
    sentence = " ".join(f"word{number:03}" for number in range(30))
    path = "runs/" + "long-name/" * 12 + "report.html"
    watch.message(f"  {sentence}. Resume with: python train.py --run-dir {path}")
    record = {"step": 30, "best": True, "seconds": 9.1, "measure": {"name": "bleu", "title": "BLEU"}}
    numbers = {"bleu": 1.25, "perplexity": 427.561, "scored": "first 256 of 1,000 pairs"}
    watch.evaluation(record | numbers, [(sentence, sentence[:-1], sentence), ("日本" * 40, "", "")])
    lines = written().splitlines()
    assert f"python train.py --run-dir {path}" in written()  # to be copied
    assert set(sentence.split()) <= set(written().replace(".", "").split())
    assert all(len(line) <= width for line in lines if "word" in line or "BLEU" in line)
    assert sum(len(line) > width - 8 for line in lines if "word" in line) >= 3
    first = next(index for index, line in enumerate(lines) if line.startswith("  -> "))
    assert lines[first + 1].startswith("     word")  # below the first word
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
    watch.result("Trained", [("test BLEU", signature), ("report", path)])
    table = written()[written().index("Trained") :]
    cells = [line.split("│")[2].strip() for line in table.splitlines() if line.count("│") == 3]
    assert "".join(cells) == signature + path
    assert all(part.endswith(("|", "/", "2.6.0", "report.html")) for part in cells)
