"""`python -m benchmarks.speed.pretrained_gpu` without a GPU: small sizes on the CPU, what is compared, what a
call leaves, the table."""

import json
import time

import jax
import numpy as np
import pytest
from of_a_config import job_of

from benchmarks.command import run
from benchmarks.speed import pretrained_gpu, pretrained_programs
from benchmarks.speed.gpu import time_limit
from benchmarks.speed.pretrained import LITTLE, SHAPES, config_of, shape_of
from benchmarks.speed.pretrained_gpu import markdown
from transformer import UserError
from transformer.systems.parameters import model_shapes
from transformer.training.schedule import make_optimizer
from transformer.training.step import TrainState, init_state

FAMILIES = ("T5-base", "NLLB-600M", "Whisper-small")
ABOUT = {"date": "2026-11-27"}
CARD = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def _environment_is_restored(monkeypatch):
    """`main` sets it for the processes that it starts."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.fixture
def output(tmp_path):
    return tmp_path / "measured.jsonl"


def lines(output):
    return [json.loads(line) for line in output.read_text().splitlines()]


def call(*arguments, output):
    pretrained_gpu.main(["--quick", "--rounds", "1", "--output", str(output), *arguments])


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES[1:])
def test_an_update_learns_and_a_search_has_outputs_of_one_length(name):
    updates = pretrained_programs.update(name, quick=True)
    first, later = updates(), updates()
    assert later["loss"] != first["loss"]
    assert np.isfinite(later["loss"])
    rows = 2 if name.startswith("Whisper") else LITTLE.tokens // LITTLE.length
    assert later["tokens"] == rows * (LITTLE.text if name.startswith("Whisper") else LITTLE.length)
    searched = pretrained_programs.search(name, quick=True)()
    rows = 1 if name.startswith("Whisper") else LITTLE.sentences
    assert (searched["tokens"], searched["steps"]) == (rows * LITTLE.length, LITTLE.length)
    assert searched["parameters"] == later["parameters"]


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_measured_is_what_is_planned(name):
    """The batch, and for transformers the options of the network."""
    job = job_of(config_of(name, 1))
    rows = pretrained_programs.rows_of(name, "update", quick=False)
    batch = pretrained_programs.batch_of(name, rows, quick=False)
    planned = {field: x for field, x in job.global_batch.items() if not field.endswith("segments")}
    assert jax.tree.map(lambda x: (x.shape, x.dtype), batch) == jax.tree.map(
        lambda x: (x.shape, x.dtype), planned
    )
    assert pretrained_programs.rows_of(name, "search", quick=False) == job.config.decoding.rows
    family, _ = shape_of(name)
    options = family.options(pretrained_programs.described(name), ())
    assert {key: getattr(job.config.model, key) for key in options} == options


@pytest.mark.thorough
@pytest.mark.by_default("T5-base")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_state_is_that_of_a_run(name):
    job = job_of(config_of(name, 1, quick=True))
    optimizer = make_optimizer(job.config)
    shapes = model_shapes(job.system, job.config)
    params = pretrained_programs.random_params(shapes["params"], "float32")
    state = TrainState(np.zeros((), np.int32), params, optimizer.init(params), {}, None)
    first = init_state(job.model, optimizer, 0, job.system.task.example(job.config))

    def described(tree):
        return jax.tree.map(lambda x: (x.shape, x.dtype), tree)

    assert described(state) == described(first)


@pytest.mark.slow
def test_a_call_records_what_it_measures_and_what_fails(output, capsys):
    call("--models", "T5-base", "--part", "search", "--prepare", "1", output=output)
    here, peer = lines(output)
    assert (here["case"], here["part"], here["program"]) == ("T5-base", "search", "transformer")
    assert here["median"] > 0
    assert here["memory"] > 0
    assert peer["program"] == "transformers"
    assert "median" in peer or "ModuleNotFoundError" in peer["failed"]
    printed = capsys.readouterr().out
    assert "| T5-base | a step of the search | " in printed
    assert "nothing is left" in printed


class Measured:
    """What each case has, without any process."""

    def __init__(self):
        self.cases, self.failing = [], set()

    def __call__(self, case, given):
        self.cases.append(" ".join(case))
        if case[0] in self.failing:
            return {"failed": "transformer: out of memory"}
        work = {"parameters": 10, "tokens": 40, "steps": 4}
        return {"median": 0.5, "seconds": [0.5], "memory": 2e9, **work}


@pytest.fixture
def measured(monkeypatch):
    fake = Measured()
    monkeypatch.setattr(pretrained_gpu, "measured", fake)
    return fake


ONE = ("--part", "update", "--programs", "transformer")


def test_failures_come_last_in_the_next_call(measured, output):
    measured.failing.add("NLLB-600M")
    call(*ONE, "--models", "NLLB-600M", "T5-base", output=output)
    measured.failing.clear()
    call(*ONE, "--models", "NLLB-600M", "T5-base", "Whisper-small", output=output)
    assert [name.split()[0] for name in measured.cases] == [
        "NLLB-600M",
        "T5-base",
        "Whisper-small",
        "NLLB-600M",
    ]
    call(*ONE, "--models", "NLLB-600M", "T5-base", "Whisper-small", output=output)
    assert len(measured.cases) == 4


def test_a_program_over_its_limit_does_not_stop_the_others(measured, output, monkeypatch):
    def slow(case, given):
        if case[0] == "NLLB-600M":
            time.sleep(60)
        return measured(case, given)

    monkeypatch.setattr(pretrained_gpu, "measured", slow)
    call(*ONE, "--models", "NLLB-600M", "T5-base", "--limit", "1", output=output)
    failed, finished = lines(output)
    assert failed["failed"] == "transformer: it takes longer than --limit 1 seconds"
    assert finished["case"] == "T5-base"


def test_nothing_begins_when_there_is_no_time(measured, output, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def long(case, given):
        now[0] += 240
        return measured(case, given)

    monkeypatch.setattr(pretrained_gpu, "measured", long)
    call(*ONE, output=output)
    assert [line["case"] for line in lines(output)] == ["NLLB-600M", "Whisper-small"]
    assert "left: T5-base update transformer, " in capsys.readouterr().out


def test_a_case_that_was_stopped_by_the_end_of_time_has_not_failed(measured, output, monkeypatch, capsys):
    monkeypatch.setattr(pretrained_gpu, "measured", lambda case, given: time.sleep(60))
    monkeypatch.setattr(pretrained_gpu, "time_limit", lambda seconds: time_limit(0.01))
    call(*ONE, "--models", "T5-base", "--minutes", "1", output=output)
    assert not output.exists()
    assert "left: T5-base update transformer" in capsys.readouterr().out


def test_the_table(tmp_path):
    def line(program, part="update", **more):
        names = {"case": "NLLB-600M", "part": part, "program": program, "card": CARD, "about": ABOUT}
        return names | {"median": 0.3, "memory": 9e9, "parameters": 100, "tokens": 4096, "steps": 3} | more

    failed = line("transformers") | {"case": "T5-base", "failed": "transformers: it has no memory"}
    del failed["median"]
    plan = tmp_path / "plan.json"
    found = {"seconds": {"slowest": 0.05}, "memory": {"total": 9.6e9}}
    row = {"model": "NLLB-600M", "machine": "h100:1", "what": "step", "found": found}
    plan.write_text(json.dumps({"rows": [row]}))
    table = markdown(
        [
            line("transformer"),
            line("transformers", median=0.6),
            line("transformer", "search", tokens=2560, steps=128, median=1.28),
            failed,
        ],
        plan,
    )
    update, search = [text for text in table.splitlines() if text.startswith("| NLLB")]
    assert update.split(" | ")[1:] == [
        *("an update", "100.0 ms", "200.0 ms", "2.00", "40,960", "20,480", "9.0 GB", "9.0 GB"),
        "50.0 ms, 9.6 GB |",
    ]
    assert search.split(" | ")[1:4] == ["a step of the search", "10.0 ms", ""]
    assert search.split(" | ")[5] == "2,000"
    assert "- T5-base, update, transformers: it has no memory" in table
    different = markdown([line("transformer"), line("transformers", parameters=120)])
    assert "- NLLB-600M, update: not comparable, parameters: 100 and 120" in different
    assert markdown([]) == "nothing is measured yet"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nvidia-smi finds no GPU: --quick tries everything on the CPU"),
        (["--plan", "missing.json"], "--plan missing.json: no such file"),
    ],
)
def test_mistakes_are_named(arguments, message, output, monkeypatch, capsys):
    monkeypatch.setattr(pretrained_gpu, "gpu", lambda: None)
    monkeypatch.setattr("sys.argv", ["pretrained_gpu", "--output", str(output), *arguments])
    assert run("benchmarks.speed.pretrained_gpu", pretrained_gpu.main) == 2
    assert message in capsys.readouterr().err


def test_another_file_is_no_plan(tmp_path):
    other = tmp_path / "other.json"
    other.write_text("[]")
    with pytest.raises(UserError, match="not the output of benchmarks.speed.pretrained"):
        markdown([{"card": "cpu", "case": "a", "part": "update", "program": "transformer"}], other)
