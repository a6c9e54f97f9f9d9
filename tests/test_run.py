"""Whole trainings of a very small model on a very small text: what lands in the run directory,
stopping, resuming, averaging, and what can go wrong on the way."""

import dataclasses
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console
from small_run import WORDS, small_config, write_text

from transformer import (
    Config,
    OptimizerConfig,
    Run,
    Translator,
)
from transformer.config import differences
from transformer.config_json import from_json, to_json
from transformer.decoding.translator import model_shapes
from transformer.errors import Stopped, UserError
from transformer.training import loop
from transformer.training.train import train
from transformer.training.watch import Watch


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    return small_config(tmp_path_factory.mktemp("text"))


def changed(config: Config, **training) -> Config:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **training))


def quiet() -> Watch:
    return Watch(quiet=True)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory) -> Path:
    return train(config, tmp_path_factory.mktemp("runs") / "finished", watch=quiet())


def parameters(path: Path, checkpoint="last"):
    run = Run(path)
    return jax.tree.leaves(run.variables(checkpoint, model_shapes(run.config)))


def same(path: Path, other: Path) -> bool:
    pairs = zip(parameters(path), parameters(other), strict=True)
    return all((np.asarray(a) == np.asarray(b)).all() for a, b in pairs)


def test_the_run_directory_is_complete(finished):
    run = Run(finished)
    assert run.config.model.vocab_size == run.tokenizers[0].vocab_size == len(WORDS) + 4
    assert run.steps()[-1] == 12
    assert run.best_step() in run.steps()
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "evaluation"] == [4, 8, 12]
    assert [r["step"] for r in records if r["kind"] == "training"] == [2, 4, 6, 8, 10, 12]
    results = json.loads((finished / "results.json").read_text())
    assert results["split"] == "test"
    assert "version:" in results["bleu"]["signature"]
    assert list((finished / "tensorboard").iterdir())
    assert not (finished / "target.model").exists()


def test_nothing_in_it_is_a_pickle(finished):
    for path in finished.rglob("*"):
        if path.is_file():
            start = path.read_bytes()[:2]
            assert not (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"), path


def test_it_can_be_moved(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "elsewhere")
    sentences = ["red cat runs", "blue bird sings sleeps"]
    moved = Translator.load(tmp_path / "elsewhere").translate(sentences)
    assert moved == Translator.load(finished).translate(sentences)


def test_loss_falls_and_the_best_is_the_best_by_bleu(finished):
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "training"]
    assert losses[-1] < losses[0]
    scores = {record["step"]: record["bleu"] for record in records if record["kind"] == "evaluation"}
    assert scores[Run(finished).best_step()] == max(scores.values())


def stopping_at(step: int, monkeypatch) -> None:
    """SIGTERM to ourselves once that step was taken."""
    ordinary = loop.Loop._read

    def read(self, at, metrics, pace):
        ordinary(self, at, metrics, pace)
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop.Loop, "_read", read)


@pytest.mark.parametrize("step", [3, 4, 5])
def test_stopped_and_resumed_is_as_if_never_stopped(config, finished, tmp_path, monkeypatch, step):
    with monkeypatch.context() as patch:
        stopping_at(step, patch)
        with pytest.raises(Stopped, match=r"saved. Go on with: python train.py --run-dir") as stopped:
            train(config, tmp_path / "run", watch=quiet())
    assert stopped.value.signal == signal.SIGTERM
    assert step <= Run(tmp_path / "run").steps()[-1] <= step + 1
    train(config, tmp_path / "run", watch=quiet())
    assert same(tmp_path / "run", finished)

    def told(path):
        records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        volatile = ("seconds", "tokens_per_second")
        # A "start" is written each time a program begins, so the stopped run has one more of them.
        records = [record for record in records if record["kind"] != "start"]
        return [{k: v for k, v in record.items() if k not in volatile} for record in records]

    assert told(tmp_path / "run") == told(finished)


def test_records_past_the_checkpoint_are_taken_out(config, finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopping_at(5, patch)
        with pytest.raises(Stopped):
            train(config, tmp_path / "run", watch=quiet())
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "training", "step": 11, "loss": 0.0}\n{"kind": "trai')
    train(config, tmp_path / "run", watch=quiet())
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "training"] == [2, 4, 6, 8, 10, 12]


def test_same_seed_same_bits_another_seed_another_model(config, finished, tmp_path):
    train(changed(config, seed=1), tmp_path / "other", watch=quiet())
    assert not same(tmp_path / "other", finished)
    train(config, tmp_path / "same", watch=quiet())
    assert same(tmp_path / "same", finished)


def test_a_finished_run_stays_as_it_is(config, finished):
    before = (finished / "metrics.jsonl").read_bytes()
    train(config, finished, watch=quiet())
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_changed_config_is_refused_by_its_fields(config, finished):
    other = dataclasses.replace(
        changed(config, seed=7), optimizer=dataclasses.replace(config.optimizer, peak=0.5)
    )
    with pytest.raises(UserError, match="optimizer.peak: 0.01 -> 0.5; training.seed: 0 -> 7") as refused:
        train(other, finished, watch=quiet())
    assert "model" not in str(refused.value)


def test_changed_text_is_refused(config, finished, tmp_path):
    other = write_text(tmp_path, "train", 201)
    data = dataclasses.replace(config.data, **other)
    with pytest.raises(UserError, match="data.train_source"):
        train(dataclasses.replace(config, data=data), finished, watch=quiet())
    path, text = config.data.train_source, config.data.train_source.read_bytes()
    try:
        path.write_bytes(text.replace(b"red", b"dog", 1))
        with pytest.raises(UserError, match="the training text is not what it was"):
            train(config, finished, watch=quiet())
    finally:
        path.write_bytes(text)


def test_more_steps_may_be_asked_for(config, tmp_path):
    train(changed(config, steps=4), tmp_path / "run", watch=quiet())
    train(changed(config, steps=8), tmp_path / "run", watch=quiet())
    assert Run(tmp_path / "run").steps()[-1] == 8


def test_the_end_of_a_cosine_may_not_be_moved(config, tmp_path):
    optimizer = dataclasses.replace(config.optimizer, schedule="cosine")
    cosine = changed(dataclasses.replace(config, optimizer=optimizer), steps=4)
    train(cosine, tmp_path / "run", watch=quiet())
    with pytest.raises(UserError, match="training.steps: 4 -> 8"):
        train(changed(cosine, steps=8), tmp_path / "run", watch=quiet())


def test_an_existing_folder_is_never_overwritten(config, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a run"):
        train(config, tmp_path / "precious", watch=quiet())
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["file"]


def test_new_runs_get_new_directories(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = changed(config, steps=1)
    assert [str(train(short, watch=quiet())) for _ in range(2)] == [
        "runs/transformer-1",
        "runs/transformer-2",
    ]


def test_average_is_the_mean(finished):
    run = Run(finished)
    like = model_shapes(run.config)
    steps = run.steps()[-2:]
    each = [jax.tree.leaves(run.variables(step, like)) for step in steps]
    mean = jax.tree.leaves(run.averaged(steps, like))
    for average, *parts in zip(mean, *each, strict=True):
        expected = np.mean([np.asarray(part, np.float64) for part in parts], axis=0)
        assert (np.asarray(average) == expected.astype(np.float32)).all()
    # with keep_last 2, "average" is that of the newest two
    for a, b in zip(parameters(finished, "average"), mean, strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()


def test_moving_average_is_what_is_evaluated_and_resumes(config, tmp_path, monkeypatch):
    ema = changed(config, ema=0.9)
    train(ema, tmp_path / "whole", watch=quiet())
    with monkeypatch.context() as patch:
        stopping_at(5, patch)
        with pytest.raises(Stopped):
            train(ema, tmp_path / "parts", watch=quiet())
    train(ema, tmp_path / "parts", watch=quiet())
    assert same(tmp_path / "parts", tmp_path / "whole")


def test_packed_rows_and_accumulation_train_too(config, finished, tmp_path):
    data = dataclasses.replace(config.data, batching="packed", max_length=16, buckets=(16,))
    packed = dataclasses.replace(changed(config, accumulate=4), data=data)
    path = train(packed, tmp_path / "packed", watch=quiet())
    assert Run(path).steps()[-1] == 12


def test_separate_vocabularies(config, tmp_path):
    separate = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, joint_vocabulary=False),
        model=dataclasses.replace(config.model, share_embeddings="target"),
    )
    path = train(changed(separate, steps=2), tmp_path / "run", watch=quiet())
    assert (path / "target.model").exists()
    assert Translator.load(path).translate(["red cat"])


def test_early_stopping_by_patience(config, tmp_path):
    still = dataclasses.replace(
        changed(config, patience=1, evaluate_every=2),
        optimizer=OptimizerConfig(schedule="constant", peak=0.0),
    )
    path = train(still, tmp_path / "run", watch=quiet())
    assert Run(path).steps()[-1] == 4  # evaluated at 2 and 4: as good, so no better
    train(still, path, watch=quiet())
    assert Run(path).steps()[-1] == 4


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(config, tmp_path):
    wild = dataclasses.replace(
        changed(config, evaluate_every=2),
        optimizer=OptimizerConfig(schedule="constant", peak=1e30, warmup_steps=1_000_000_000),
    )
    wild = dataclasses.replace(wild, optimizer=OptimizerConfig(schedule="paper", scale=1e25, warmup_steps=4))
    with pytest.raises(UserError, match=r"the loss is .* at step \d+: lower the learning rate"):
        train(wild, tmp_path / "run", watch=quiet())
    run = Run(tmp_path / "run")
    for step in run.steps():
        leaves = jax.tree.leaves(run.variables(step, model_shapes(run.config)))
        assert all(np.isfinite(leaf).all() for leaf in leaves)


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


def test_training_goes_on_from_the_newest_checkpoint_that_is_whole(config, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    flip_a_bit(largest_file(tmp_path / "run" / "checkpoints" / "12" / "training"))
    before = Run(tmp_path / "run").steps()[-2]
    said = io.StringIO()
    train(changed(config, steps=12), tmp_path / "run", watch=Watch(Console(file=said, width=1000)))
    assert "checkpoints/12/training/" in said.getvalue()
    assert f"damaged/12; going on from step {before}" in said.getvalue()
    run = Run(tmp_path / "run")
    assert (run.path / "damaged" / "12" / "model").is_dir()
    assert same(run.path, finished)

    for step in run.steps():
        cut_short(largest_file(run.path / "checkpoints" / str(step) / "model"))
    with pytest.raises(UserError, match="checkpoints/12/model/.* is damaged"):
        train(changed(config, steps=13), run.path, watch=quiet())
    assert Run(run.path).steps() == run.steps()


def largest_file(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [("newest", "has no checkpoint 'newest': choose best, last, average, or one of"), (3, "no checkpoint 3")],
)
def test_a_checkpoint_that_is_not_there(finished, checkpoint, message):
    with pytest.raises(UserError, match=message):
        Translator.load(finished, checkpoint)


def test_what_is_no_run_directory(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such run directory"):
        Translator.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a run directory"):
        Translator.load(tmp_path)
    (tmp_path / "config.json").write_text('{"modle": {}}')
    with pytest.raises(UserError, match=r"config.json: not a config of this version: unknown field modle"):
        Translator.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": {"d_model": "abc"}}', "d_model cannot be 'abc'"),
        ('{"model": {"d_model": null}}', "d_model cannot be None"),
        ('{"model": {"num_layers": true}}', "num_layers cannot be True"),
        ('{"model": {"norm": "middle"}}', "norm cannot be 'middle'"),
        ('{"model": 3}', "model cannot be 3"),
        ('{"data": {"buckets": [4, "x"]}}', "buckets cannot be 'x'"),
        ('{"optimizer": {"peak": NaN}}', "--optimizer.peak must be a finite number"),
        ("[1]", "not a config"),
        ('{"model": {', "not a config"),
    ],
)
def test_configs_that_are_not(text, message):
    with pytest.raises(UserError, match=message):
        from_json(text)


FULL_DISK = """
import resource, signal, sys
from transformer.config_json import from_json
from transformer.errors import UserError
from transformer.training import loop
from transformer.training.train import train
from transformer.training.watch import Watch

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ordinary = loop.Loop._evaluate

def evaluate(self):
    if self.step == 8:  # from here on no file may grow past 4 KiB: as if the disk were full
        self.run.finish_saving()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    ordinary(self)

loop.Loop._evaluate = evaluate
try:
    train(from_json(sys.argv[1]), sys.argv[2], watch=Watch(quiet=True))
except UserError as error:
    print(error)
    sys.exit(2)
"""


def test_a_full_disk_costs_no_earlier_checkpoint(config, tmp_path):
    run_dir = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, to_json(config), str(run_dir)], capture_output=True, text=True
    )
    assert ended.returncode == 2, ended.stderr
    assert "could not save a checkpoint" in ended.stdout
    assert "--run-dir" in ended.stdout
    assert Run(run_dir).steps() == [4]
    train(config, run_dir, watch=quiet())
    assert Run(run_dir).steps()[-1] == 12


def test_a_second_signal_ends_at_once(config, tmp_path):
    program = (
        "import sys; from transformer.cli import train_main; import transformer.training.loop as l\n"
        "import time; l.Loop._stop = lambda self, saved: time.sleep(600)\nsys.exit(train_main())"
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
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate()
    watchdog.cancel()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


def test_configs_survive_json(config):
    assert from_json(to_json(config)) == config
    assert differences(config, changed(config, seed=5)) == ["training.seed: 0 -> 5"]


def test_limits_are_restored():
    """The full-disk test limits its own process only."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_one_run_at_a_time_in_a_directory(finished):
    run = Run(finished)
    with run.claimed():
        with pytest.raises(UserError, match="another process trains there"), Run(finished).claimed():
            pass
    with run.claimed():
        pass
