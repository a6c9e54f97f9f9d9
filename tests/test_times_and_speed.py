"""Each number has one definition, and is named where it is shown: times, speed, and what a score is of."""

import dataclasses
import io
import json
import shutil
import time
import types

import numpy as np
import pytest
from rich.console import Console
from small_run import changed, small_config

from transformer import PRESETS, Run
from transformer.config.records import RecordingsConfig
from transformer.data.plans import Batcher
from transformer.data.sequences import arrays_of
from transformer.data.sources.recordings import Recording
from transformer.data.sources.source import InMemory, in_memory
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.runs.log import spent_of
from transformer.runs.report import write_comparison, write_report
from transformer.runs.report.logged import Logged, time_spent
from transformer.runtime.console import ProgressReporter
from transformer.systems.registry import find_system
from transformer.tasks.preparation import TrainingData
from transformer.trainer import journal as journals
from transformer.trainer import loop as loops
from transformer.trainer.journal import EVALUATION, TRAINING, WAITING, Clock
from transformer.trainer.train import train


def test_every_second_belongs_to_one_phase(monkeypatch):
    now = iter([0.0, 5.0, 6.0, 7.0, 8.0, 10.0, 11.0, 15.0, 20.0])
    monkeypatch.setattr(journals, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    clock = Clock()  # 0
    clock.enter(TRAINING)  # 5
    with clock.during(WAITING):  # 6
        pass  # 7
    with clock.during(EVALUATION):  # 8
        pass  # 10
    clock.enter(EVALUATION)  # 11
    assert clock.spent() == {
        "preparation": 5.0,
        "training": 3.0,
        "waiting for input": 1.0,
        "evaluation": 6.0,
    }  # 15
    clock.add({"training": 100.0, "evaluation": 1.0})
    assert clock.spent()["training"] == 103.0  # 20
    seconds = {"preparation": 5.0, "training": 104.0}
    assert time_spent(seconds) == "1 min 49 s (preparation 5 s, training 1 min 44 s)"


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
def test_waiting_for_input_is_measured_and_warned_of(tmp_path, monkeypatch, hosts):
    """Each batch takes a second to come, as the clocks of the trainer see it; on the last host."""
    seconds = [0.0]
    stream = Batcher.stream

    def slow(self, start, stop):
        for batch in stream(self, start, stop):
            seconds[0] += 1.0
            yield batch

    monkeypatch.setattr(Batcher, "stream", slow)
    now = types.SimpleNamespace(**vars(time) | {"monotonic": lambda: seconds[0]})
    monkeypatch.setattr(journals, "time", now)
    monkeypatch.setattr(loops, "gathered", lambda waited: [0.0, waited][-hosts:])
    out = io.StringIO()
    config = changed(small_config(tmp_path), steps=6, evaluate_every=6, log_every=2)
    train(config, tmp_path / "run", watch=ProgressReporter(console=Console(file=out, width=200)))
    records = Run(tmp_path / "run").log.records("training")
    waits = [record["input_wait"] for record in records]
    assert waits == [1.0, 1.0, 0.0]  # the last batches were placed ahead
    where = " on host 1" * (hosts == 2)
    warning = f"Training waited for its input 100% of the time up to step 2{where}. The"
    assert out.getvalue().count(warning) == 1
    assert spent_of(list(Run(tmp_path / "run").log.stream()))["waiting for input"] == 6.0


def test_time_of_earlier_versions_has_no_preparation():
    old = [
        {"kind": "start", "step": 0},
        {"kind": "training", "step": 2, "elapsed": 30.0},
        {"kind": "evaluation", "step": 4, "elapsed": 60.0, "seconds": 20.0},
        {"kind": "training", "step": 6, "elapsed": 100.0},
    ]
    assert spent_of(old) == {"training": 80.0, "evaluation": 20.0}
    assert spent_of(old[:1]) == {}
    new = {"kind": "test", "step": 6, "elapsed": 120.0, "spent": {"training": 90.0, "evaluation": 30.0}}
    assert spent_of([*old, new]) == new["spent"]
    for bad in ("x", float("nan"), -1.0, None):  # from a stranger's log
        assert spent_of([{"kind": "training", "step": 1, "elapsed": bad}]) == {}
        assert spent_of([*old, new | {"spent": {"training": bad}}])["evaluation"] == 20.0


@pytest.fixture(scope="module")
def shown(config, tmp_path_factory):
    """A run without test text that is resumed: its directory, and what both starts show."""
    data = dataclasses.replace(config.data, test_source=None, test_target=None)
    config = dataclasses.replace(changed(config, steps=2, evaluate_every=2), data=data)
    path, told = tmp_path_factory.mktemp("shown") / "run", []
    for steps in (2, 4):
        file = io.StringIO()
        train(changed(config, steps=steps), path, watch=ProgressReporter(Console(file=file, width=200)))
        told.append((file.getvalue(), Logged(path)))
    return path, told


@pytest.mark.slow
def test_the_summary_and_the_report_have_the_same_time(shown):
    path, told = shown
    totals = []
    for text, logged in told:
        time = logged.summary()["time"]
        assert time in text
        assert all(phase in time for phase in ("preparation", "training", "evaluation"))
        totals.append(logged.spent)
    assert all(totals[1][phase] >= totals[0][phase] for phase in totals[0])  # all starts count
    assert told[1][1].summary()["time"] in write_report(path).read_text()
    records = Run(path).log.records()
    assert [record["step"] for record in records if record["kind"] == "test"] == [2, 4]
    assert records[-1]["elapsed"] == pytest.approx(sum(records[-1]["spent"].values()))


@pytest.mark.thorough
def test_each_score_says_what_it_is_of(shown, tmp_path):
    path, told = shown
    text, logged = told[1]
    (evaluation,) = [line for line in text.splitlines() if "step 4: validation" in line]
    assert "(first 8 of 12 pairs)" in evaluation
    table = text[text.index("Trained") :]
    best = logged.summary()["best checkpoint"]
    assert "first 8 of 12 pairs" in best
    assert "by validation loss, since BLEU below 1 says nothing  " in table  # a loss of all of them
    assert "validation, all 12 pairs" in table
    page = write_report(path).read_text()
    assert "validation BLEU, first 8 of 12 pairs by step" in page
    assert f"(validation, 12 pairs, step {Run(path).checkpoints.best()})" in page
    write_comparison([path, shutil.copytree(path, tmp_path / "other")], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("first 8 of 12 pairs by step") == 1


def test_a_log_of_an_earlier_version_is_shown_without_it(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "run")
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("scored", None)
        record.pop("spent", None)
    lines = [json.dumps(record) + "\n" for record in records if record["kind"] != "test"]
    (path / "metrics.jsonl").write_text("".join(lines))
    summary = Logged(path).summary()
    assert "of 12 pairs" not in summary["best checkpoint"]
    assert "preparation" not in summary["time"]
    assert "evaluation" in summary["time"]


@pytest.mark.parametrize("preset", ["speech", "synthesis", "nonautoregressive-synthesis"])
def test_the_speed_of_sound_is_in_frames(preset):
    config = PRESETS[preset]
    config = dataclasses.replace(config, data=RecordingsConfig(bands=5, buckets=(40,), max_length=40))
    rng, lengths = np.random.default_rng(0), [12, 40, 7, 33, 25]
    sounds = [rng.normal(size=(length, 5)).astype(np.float32) for length in lengths]
    records = InMemory(Recording("", sound, "one two") for sound in sounds)
    task = find_system(config.system).task(config, train_tokenizer(["one two"], "word", 20))
    examples = arrays_of(task.stored_examples(records), task.stored_fields)
    corpus = in_memory("recordings", {"train": records})
    batcher = Batcher(examples, task.fields, task.plan(records, examples))
    data = TrainingData(corpus, task, batcher)
    for step in range(3):
        assert data.size(step, weight=3.0) == np.isfinite(batcher(step)[task.sound][..., 0]).sum()
    assert config.data.counted == "frames"
    assert "frames" in task.drops
    assert "tokens" not in task.drops


def test_the_speed_of_text_is_in_tokens(finished):
    records = Run(finished).log.records("training")
    assert all(record["tokens_per_second"] > 0 for record in records)
    assert "tokens per second" in Logged(finished).curves()
