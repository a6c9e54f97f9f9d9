"""The benchmarks without the peers: contestants take turns, and ours does the work that is timed."""

import argparse
import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from of_a_config import model_shapes

from benchmarks.__main__ import GROUPS, commands
from benchmarks.__main__ import main as list_commands
from benchmarks.command import needs, run
from benchmarks.measure import Contestant, Measurement, seconds_of, side_by_side
from benchmarks.quality import student
from benchmarks.quality.endurance import Watched, endure, watch
from benchmarks.runs import once
from benchmarks.speed import rows
from benchmarks.speed.decoding import agreement, model
from benchmarks.speed.peers import compare, rows_of
from benchmarks.speed.training import CASES, batch_of, jax_step
from transformer import UserError

ROOT = Path(__file__).parent.parent


def test_every_command_is_listed_with_a_line(capsys):
    """A module that can be run has the block at its end, so that is another way to find them."""
    runnable = {
        f"benchmarks.{path.parent.name}.{path.stem}"
        for path in ROOT.glob("benchmarks/*/*.py")
        if "run(__spec__.name, main)" in path.read_text(encoding="utf-8")
    }
    found = {name: about for group in GROUPS for name, about in commands(group).items()}
    assert found.keys() == runnable
    list_commands()
    lines = capsys.readouterr().out.splitlines()
    for name, about in found.items():
        assert about.endswith("."), name
        assert any(line.split() == [name, *about.split()] for line in lines), name


def test_commands_on_pages_exist():
    """Those of an earlier commit are after a comment that names it, to the end of their block of code."""
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    texts = (re.sub(r"^# at commit \w+:$.*?^```", "", page.read_text(), flags=re.M | re.S) for page in pages)
    typed = {name for text in texts for name in re.findall(r"-m\s+(benchmarks\.[\w.]+\w)", text)}
    assert len(typed) > 20
    assert typed <= {name for group in GROUPS for name in commands(group)}


def test_results_are_made_once(tmp_path):
    path = tmp_path / "results.json"
    assert [once(path, lambda value=value: {"value": value}) for value in (1, 2)] == [{"value": 1}] * 2


def make_counter(step: int):
    calls = []

    def run() -> int:
        calls.append(step)
        return sum(calls)

    return run


def make_nothing():
    raise ValueError("no such library")


@pytest.mark.slow
def test_everybody_is_warmed_up_and_timed_as_often():
    found = side_by_side(
        [Contestant(str(s), make_counter, {"step": s}) for s in (1, 10)], rounds=3, warm_up=2
    )
    assert [m.name for m in found] == ["1", "10"]
    assert [m.output for m in found] == [5, 50]
    assert all(len(m.seconds) == 3 and m.memory > 0 for m in found)


@pytest.mark.thorough
def test_a_contestant_that_cannot_take_part_is_named():
    with pytest.raises(RuntimeError, match="torch: ValueError: no such library"):
        side_by_side([Contestant("torch", make_nothing)], rounds=1)
    with pytest.raises(RuntimeError, match="exit 3"):
        seconds_of(["sh", "-c", "echo exit 3 >&2; exit 3"])


def test_ratios_are_to_the_first():
    found = [Measurement("ours", [1.0, 2.0, 9.0], None, 0), Measurement("theirs", [3.0, 4.0, 5.0], None, 0)]
    rows = rows_of("work", found, 100, "tokens/s", [1.0, agreement([["a"], ["b"]], [["a"], ["c"]])])
    assert [row.ratio for row in rows] == [1.0, 2.0]
    assert [row.rate for row in rows] == [50.0, 25.0]
    assert rows[1].agreement == 0.5


def test_chosen_sections_are_compared_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    measured = [Measurement("transformer", [2.0], None, 2**20), Measurement("peer", [3.0], None, 0)]
    sections = {name: partial(section, name, measured) for name in ("one", "other")}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.any")
    compare(parser, sections, ["other", "--output", str(tmp_path / "any")], [])
    rows = json.loads((tmp_path / "any.json").read_text())["rows"]
    assert [(row["section"], row["name"], row["ratio"]) for row in rows] == [
        ("other", "transformer", 1.0),
        ("other", "peer", 1.5),
    ]
    assert (tmp_path / "any.png").stat().st_size > 5_000
    assert "peer" in capsys.readouterr().out
    with pytest.raises(UserError, match="no_such not installed"):
        compare(argparse.ArgumentParser(prog="any"), sections, [], ["no_such"])


def test_processes_of_peers_do_not_import_jax():
    """Its memory and time would count as theirs."""
    modules = "benchmarks.speed.training, benchmarks.speed.decoding"
    program = f"import sys, {modules}; print('jax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "False\n", ran.stderr


def section(name, measured, given):
    return rows_of(name, measured, 10, "tokens/s", [None, None])


SMALL = {"num_layers": 1, "vocab_size": 50, "rows": 4, "d_model": 32, "d_ff": 32, "num_heads": 2}


PACKED = {"dtype": "bfloat16", "sentences": 4}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, PACKED])
def test_our_step_learns_its_batch(changes):
    step = jax_step(replace(CASES["tiny"], **SMALL, time=32, dropout=0.0, **changes))
    losses = [step() for _ in range(8)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_timed_run_may_be_of_several_updates():
    case = replace(CASES["tiny"], **SMALL, time=32, dropout=0.0)
    one, three = jax_step(case), jax_step(replace(case, updates=3))
    assert [one() for _ in range(6)][2::3] == [three(), three()]


def test_rows_of_several_sentences_end_in_each_of_them():
    batch = batch_of(replace(CASES["base"], **SMALL, time=12, sentences=3))
    assert (batch["target"][:, [3, 7, 11]] == 2).all()
    assert batch["source_segments"][0].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]


@pytest.mark.slow
@pytest.mark.slow
def test_memory_is_watched_to_the_end(tmp_path):
    command = [sys.executable, "-c", "import time; x = bytearray(200 * 2**20); time.sleep(1); print('done')"]
    found = watch("two hundred", command, tmp_path / "log", every=0.05)
    assert max(found.memory) > 200 * 2**20
    assert (tmp_path / "log").read_text() == "done\n"
    assert Watched("grows", [i * 2**20 for i in range(100)]).growth == 60
    with pytest.raises(RuntimeError, match="three ended with status 3: see .*log"):
        watch("three", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log")


@pytest.mark.slow
def test_endurance_at_a_small_size(tmp_path):
    trained, decoded = endure(tmp_path, steps=4, lines=200, every=0.05)
    assert len(trained.memory) > 10
    assert len(decoded.memory) > 10


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("benchmarks.speed.training", ["--rounds", "0"], "--rounds: 0: must be a whole number, at least 1"),
        ("benchmarks.speed.decoding", ["--steps", "-3"], "--steps: -3: must be a whole number, at least 1"),
        ("benchmarks.speed.decoding", ["dekode"], "no section dekode: there are batch, sentence"),
        ("benchmarks.speed.grid", ["--layouts", "tensors"], "invalid choice: 'tensors'"),
    ],
)
def test_commands_refuse_before_they_measure(module, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(module).main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("it failed"), ModuleNotFoundError(name="torch")])
def test_errors_are_one_message(error, monkeypatch, capsys):
    def fail(arguments):
        raise error

    monkeypatch.setattr("sys.argv", ["benchmarks"])
    assert run("benchmarks", fail) == 2
    assert capsys.readouterr().err in (
        "benchmarks: it failed\n",
        "benchmarks: torch is not installed: pip install '.[bench]'\n",
    )
    with pytest.raises(UserError, match=r"no_such not installed: pip install '.\[bench\]'"):
        needs("json", "no_such")


@pytest.mark.slow
def test_few_rows_are_searched_to_the_limit():
    found = rows.ours(2, False, rows.QUICK, 100)()
    assert [len(tokens) for tokens in found] == [rows.LONGEST - 1] * 2  # and <eos>
    assert all(token.isdecimal() for tokens in found for token in tokens)


def test_the_model_of_a_quick_look_is_small(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer.train", lambda config, path: config)
    config = model(tmp_path, None, 2000, quick=True)
    network = replace(config.model, vocab_size=config.data.vocab_size)
    shapes = model_shapes(replace(config, model=network))
    assert sum(x.size for x in jax.tree.leaves(shapes)) < 200_000
    assert config.training.steps == 2


def test_a_student_is_compared_with_its_teacher_elsewhere():
    references = ["Ein Mann mit einem Hut steht dort.", "Zwei Hunde spielen im Schnee."]
    worse = [references[0], "Zwei Katzen schlafen."]
    seconds = {
        "student": [1.0, 4.0, 9.0],
        "student int8": [2.0],
        student.PEER: [20.0],
        f"{student.PEER} int8": [3.0],
    }
    measured = [
        Measurement(name, times, worse if "student" in name else references, 0, [1.0])
        for name, times in seconds.items()
    ]
    row, int8, peer, _ = student.compared(measured, references, "13a")
    assert (row["times_as_fast"], int8["times_as_fast"], peer["times_as_fast"]) == (5.0, 1.5, 1.0)
    assert row["sentences_per_second"] == 0.5
    assert row["bleu"] < peer["bleu"] == pytest.approx(100)


def test_a_student_and_its_teacher_are_each_measured_in_two_types(tmp_path):
    programs = student.contestants(tmp_path / "teacher", tmp_path / "student", tmp_path, ["a"])
    assert [each.name for each in programs] == [
        *("student", "student int8", "teacher", "teacher int8"),
        *(student.PEER, f"{student.PEER} int8"),
    ]
    assert [each.options.get("int8", each.options.get("kind")) for each in programs] == [
        *(False, True, False, True),
        *("float32", "int8"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("speed.start", ["tiney"], "no preset 'tiney': did you mean tiny"),
        ("speed.input", ["nothing-like-it"], "no preset 'nothing-like-it'; see --list-presets"),
        (
            "speed.input",
            ["speech", "--subword-sampling", "0.1"],
            "--subword-sampling: system speech has no such",
        ),
        (
            "speed.gpu",
            ["--quick", "--part", "train", "--case", "1 at once"],
            "--part train has no case 1 at once",
        ),
        ("speed.gpu", ["--table", "--output", "other.jsonl"], "not the output of an earlier call"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(module, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.jsonl").write_text('{"part": "train"}\n')
    with pytest.raises(UserError, match=re.escape(message)):
        importlib.import_module(f"benchmarks.{module}").main(arguments)
