"""Complete trainings of a very small model on a very small text: the run directory, stopping, resuming,
averaging, and errors."""

import dataclasses
import json
import os
import re
import shutil
import signal
import struct
import threading
import zipfile
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from configs import CONFIGS
from small_run import WORDS, changed, interrupted, parameters, quiet, same, untrained, write_text
from tensorboardX.proto.event_pb2 import Event
from tiers import mostly_slow

from transformer import OptimizerConfig, Run, Translator
from transformer.cli.guard import run_command
from transformer.config.options import differences
from transformer.runs import checkpoints, sealed
from transformer.runs.config_json import from_json, to_json
from transformer.runs.log import scores_of
from transformer.runtime.errors import Stopped, UserError
from transformer.trainer import evaluator, loop
from transformer.trainer import profile as signals
from transformer.trainer.train import train
from transformer.training.step import TrainState


def summaries(events: Path) -> set[tuple[int, str, float]]:
    """Step, name and value of each event in a file of records [size, its checksum, bytes, their checksum]."""
    data, found = events.read_bytes(), set()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
        found |= {(event.step, v.tag, np.float32(v.simple_value)) for v in event.summary.value}
    return found


def test_the_run_directory_is_complete(finished):
    run = Run(finished)
    assert run.config.model.vocab_size == run.task.tokenizers[0].vocab_size == len(WORDS) + 4
    assert run.checkpoints.steps()[-1] == 12
    assert run.checkpoints.best() in run.checkpoints.steps()
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "evaluation"] == [4, 8, 12]
    assert [r["step"] for r in records if r["kind"] == "training"] == [2, 4, 6, 8, 10, 12]
    results = json.loads((finished / "results.json").read_text())
    assert results["split"] == "test"
    assert "version:" in results["bleu"]["signature"]
    (events,) = (finished / "tensorboard").iterdir()
    assert summaries(events) == {
        (record["step"], f"{record['kind']}/{name}", np.float32(value))
        for record in map(json.loads, (finished / "metrics.jsonl").read_text().splitlines())
        for name, value in record.items()
        if isinstance(value, float) and name != "elapsed"
    }
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
    assert scores[Run(finished).checkpoints.best()] == max(scores.values())


def stopping_at(step: int, monkeypatch) -> None:
    """Sends SIGTERM to this process after that step."""
    ordinary = loop.Loop._read

    def read(self, at, metrics, pace):
        ordinary(self, at, metrics, pace)
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop.Loop, "_read", read)


def test_a_second_signal_ends_at_once_even_if_signals_were_ignored(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job
    try:
        with signals.stop_requests(lambda _: None) as request:
            for _ in range(2):  # a job system may send it twice, to a process and to its group
                os.kill(os.getpid(), signal.SIGINT)
                assert signals.asked(request) == signal.SIGINT
            monkeypatch.setattr(signals, "AGAIN", 0.0)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("step", mostly_slow([3, 4, 5], [5]))
def test_stopped_and_resumed_is_as_if_never_stopped(config, finished, tmp_path, monkeypatch, step):
    with monkeypatch.context() as patch:
        stopping_at(step, patch)
        with pytest.raises(Stopped, match=r"saved. Resume with: python train.py --run-dir") as stopped:
            train(config, tmp_path / "run", watch=quiet())
    assert stopped.value.signal == signal.SIGTERM
    assert step <= Run(tmp_path / "run").checkpoints.steps()[-1] <= step + 1
    train(config, tmp_path / "run", watch=quiet())
    assert same(tmp_path / "run", finished)

    assert told(tmp_path / "run") == told(finished)


def told(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    volatile = ("seconds", "elapsed", "spent", "tokens_per_second", "input_wait")
    # A "start" is written each time a program begins, so the stopped run has one more of them.
    records = [record for record in records if record["kind"] != "start"]
    return [{k: v for k, v in record.items() if k not in volatile} for record in records]


@pytest.mark.slow
def test_a_signal_need_not_wait_for_an_evaluation(config, finished, tmp_path, monkeypatch):
    ordinary, translated = evaluator.Evaluator._decoded, []

    def asked_meanwhile(self, variables, split, pairs, request):
        os.kill(os.getpid(), signal.SIGTERM)
        found = ordinary(self, variables, split, pairs, request)
        translated.append(len(found))
        return found

    for step in (4, 12):  # the last one has an evaluation too
        with monkeypatch.context() as patch:
            patch.setattr(evaluator.Evaluator, "_decoded", asked_meanwhile)
            with pytest.raises(Stopped, match=f"Stopped at step {step} and saved"):
                train(changed(config, evaluate_every=step), tmp_path / f"{step}", watch=quiet())
    assert translated == [0, 0]
    run = Run(tmp_path / "4")
    assert run.checkpoints.steps() == [4]
    assert scores_of(run.path / "checkpoints" / "4") == {}
    train(changed(config, evaluate_every=4), run.path, watch=quiet())
    assert same(run.path, finished)
    assert told(run.path) == told(finished)
    train(changed(config, evaluate_every=12), tmp_path / "12", watch=quiet())
    assert scores_of(tmp_path / "12" / "checkpoints" / "12")["merit"] >= 0
    assert (tmp_path / "12" / "results.json").exists()


@pytest.mark.slow
def test_a_signal_while_the_last_checkpoint_is_written(config, finished, tmp_path, monkeypatch):
    ordinary = loop.Loop._record_evaluation

    def asked_then(self, *found):
        ordinary(self, *found)
        if self.step == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_record_evaluation", asked_then)
        with pytest.raises(Stopped, match="Stopped at step 12 and saved"):
            train(config, tmp_path / "run", watch=quiet())
    assert same(tmp_path / "run", finished)
    assert not (tmp_path / "run" / "results.json").exists()
    train(config, tmp_path / "run", watch=quiet())
    assert told(tmp_path / "run") == told(finished)
    assert (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_test_names_the_command_that_resumes(
    config, finished, tmp_path, monkeypatch, capsys, number
):
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setattr(evaluator.Evaluator, "test", lambda *_: signal.raise_signal(number))
    before = signal.getsignal(signal.SIGINT)
    status = run_command("train.py", lambda _: train(config, tmp_path / "run", watch=quiet()))
    signal.signal(signal.SIGINT, before)  # a command leaves it ignored
    assert status == 128 + number
    resume = f"Resume with: python train.py --run-dir {tmp_path / 'run'} "
    command = f"train.py: interrupted. Step 12 of 12 is saved. {resume}"
    assert capsys.readouterr().err.startswith(command)


def test_records_past_the_checkpoint_are_taken_out(config, finished, tmp_path):
    run_dir = interrupted(finished, tmp_path / "run")  # its last checkpoint is that of step 8
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write('{"kind": "training", "step": 11, "loss": 0.0}\n{"kind": "trai')
    train(config, run_dir, watch=quiet())
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "training"] == [2, 4, 6, 8, 10, 12]


@pytest.mark.slow
def test_another_seed_is_another_model(config, finished, tmp_path):
    """The same seed gives the same bits: see `test_a_signal_while_the_last_checkpoint_is_written`."""
    train(changed(config, seed=1), tmp_path / "other", watch=quiet())
    assert not same(tmp_path / "other", finished)


def test_a_finished_run_stays_as_it_is(config, finished):
    before = (finished / "metrics.jsonl").read_bytes()
    train(config, finished, watch=quiet())
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_changed_config_is_refused_by_its_fields(config, finished):
    other = dataclasses.replace(
        changed(config, seed=7), optimizer=dataclasses.replace(config.optimizer, peak=0.5)
    )
    with pytest.raises(UserError, match="--optimizer.peak: 0.01 -> 0.5; --training.seed: 0 -> 7") as refused:
        train(other, finished, watch=quiet())
    assert "--model" not in str(refused.value)
    assert "leave out the preset, variants and these options: python train.py --run-dir" in str(refused.value)


def test_changed_text_is_refused(config, finished, tmp_path):
    other = write_text(tmp_path, "train", 201)
    data = dataclasses.replace(config.data, **other)
    with pytest.raises(UserError, match="the training data has changed"):
        train(dataclasses.replace(config, data=data), finished, watch=quiet())
    path, text = config.data.train_source, config.data.train_source.read_bytes()
    try:
        path.write_bytes(text.replace(b"red", b"dog", 1))
        with pytest.raises(UserError, match="the training data has changed"):
            train(config, finished, watch=quiet())
    finally:
        path.write_bytes(text)


@pytest.mark.slow
def test_more_steps_may_be_asked_for(config, run_dir):
    train(changed(config, steps=14), run_dir, watch=quiet())
    assert Run(run_dir).checkpoints.steps()[-1] == 14


def test_the_end_of_a_cosine_may_not_be_moved(config, run_dir):
    optimizer = dataclasses.replace(config.optimizer, schedule="cosine")
    stored = dataclasses.replace(Run(run_dir).config, optimizer=optimizer)
    (run_dir / "config.json").write_text(to_json(stored))
    cosine = dataclasses.replace(config, optimizer=optimizer)
    with pytest.raises(UserError, match="training.steps: 12 -> 16"):
        train(changed(cosine, steps=16), run_dir, watch=quiet())


def test_an_existing_folder_is_never_overwritten(config, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        train(config, tmp_path / "precious", watch=quiet())
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["file"]


def test_a_name_that_is_no_text_is_refused(config, finished, tmp_path):
    name = "\ud800"
    with pytest.raises(UserError, match="the name is not UTF-8"):
        train(config, tmp_path / name, watch=quiet())
    with pytest.raises(UserError, match="the name is not UTF-8"):
        Run.create(tmp_path / name, config, Run(finished).task)
    with pytest.raises(UserError, match="path must be .*, not 7"):
        Run.create(7, config, Run(finished).task)


@pytest.mark.slow
def test_new_runs_get_new_directories(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = changed(config, steps=1)
    assert [str(train(short, watch=quiet())) for _ in range(2)] == [
        "runs/transformer-1",
        "runs/transformer-2",
    ]


def test_average_is_the_mean(finished):
    run = Run(finished)
    like = run.shapes
    steps = run.checkpoints.steps()[-2:]
    each = [jax.tree.leaves(run.checkpoints.variables(step, like)) for step in steps]
    mean = jax.tree.leaves(run.averaged(steps))
    for average, *parts in zip(mean, *each, strict=True):
        expected = np.mean([np.asarray(part, np.float64) for part in parts], axis=0)
        assert (np.asarray(average) == expected.astype(np.float32)).all()
    # with keep_last 2, "average" is that of the newest two
    for a, b in zip(parameters(finished, "average"), mean, strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()


def test_training_leaves_an_average_and_a_warning_says_of_what_it_is(tmp_path, caplog):
    run = Run(untrained(tmp_path / "run"))
    run.checkpoints.store_average(run.averaged([1]), [1])  # beside a training, or before it continues
    average = parameters(run.path, "average")
    assert not caplog.messages
    variables = jax.tree.map(np.asarray, run.variables(2)["params"])
    run.checkpoints.save(TrainState(np.asarray(3), variables, {}, {}, None), {"bleu": 30.0})
    run.checkpoints.finish_saving()
    assert all(map(np.array_equal, parameters(run.path, "average"), average))
    again = f"python -m transformer average {run.path} makes one of the newest, up to 3"
    assert caplog.messages == [f"{run.path}: its average is of steps 1; {again}"]
    (run.path / "average" / "steps.json").write_text('{"steps": [1], "newest": "1"}')
    with pytest.raises(UserError, match="steps.json is damaged: newest is no list of steps"):
        run.variables("average")
    (run.path / "average" / "steps.json").unlink()  # as earlier versions wrote it
    run.variables("average")
    assert "is of steps that an earlier version did not store" in caplog.messages[-1]


def test_a_checkpoint_is_sealed_in_the_background(tmp_path, monkeypatch):
    """Hashing takes seconds, which training spends on updates."""
    run, sealed, may_seal = Run(untrained(tmp_path / "run")), threading.Event(), threading.Event()
    ordinary = checkpoints.seal

    def seal(folder):
        assert may_seal.wait(60)
        ordinary(folder)
        sealed.set()

    monkeypatch.setattr(checkpoints, "seal", seal)
    variables = jax.tree.map(np.asarray, run.variables(2)["params"])
    run.checkpoints.save(TrainState(np.asarray(3), variables, {}, {}, None))
    may_seal.set()
    assert sealed.wait(60)  # although nobody asks for it
    run.checkpoints.finish_saving()


def test_the_largest_arrays_are_read_first_and_alone(tmp_path, monkeypatch):
    arrays = {"a": np.arange(9.0), "b": {"c": np.ones((3, 1000)), "d": np.ones(2000)}, "e": np.ones(1000)}
    variables = jax.tree.map(lambda x: jax.numpy.asarray(x, np.float32), arrays)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "1", variables)
    begun, deserialize = [], ocp.type_handlers.ArrayHandler.deserialize

    async def noted(self, infos, args):
        begun.append([arg.global_shape for arg in args])
        return await deserialize(self, infos, args)

    monkeypatch.setattr(ocp.type_handlers.ArrayHandler, "deserialize", noted)
    monkeypatch.setattr(sealed, "TOGETHER", 6000)
    jax.tree.map(np.testing.assert_array_equal, sealed.read(tmp_path / "1", variables), variables)
    assert begun == [[(3, 1000)], [(2000,)], [(1000,), (9,)]]


@pytest.mark.slow
def test_moving_average_is_what_is_evaluated_and_resumes(config, tmp_path):
    ema = changed(config, ema=0.9)
    whole = train(ema, tmp_path / "whole", watch=quiet())
    parts = interrupted(whole, tmp_path / "parts")
    train(ema, parts, watch=quiet())
    assert same(parts, whole)


@pytest.mark.slow
def test_packed_rows_and_accumulation_train_too(config, finished, tmp_path):
    data = dataclasses.replace(config.data, batching="packed", max_length=16, buckets=(16,))
    packed = dataclasses.replace(changed(config, accumulate=4, steps=4), data=data)
    path = train(packed, tmp_path / "packed", watch=quiet())
    assert Run(path).checkpoints.steps()[-1] == 4


@pytest.mark.slow
def test_separate_vocabularies(config, tmp_path):
    separate = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, joint_vocabulary=False),
        model=dataclasses.replace(config.model, share_embeddings="target"),
    )
    path = train(changed(separate, steps=2), tmp_path / "run", watch=quiet())
    assert (path / "target.model").exists()
    assert Translator.load(path).translate(["red cat"])


@pytest.mark.slow
def test_early_stopping_by_patience(config, tmp_path):
    still = dataclasses.replace(
        changed(config, patience=1, evaluate_every=2),
        optimizer=OptimizerConfig(schedule="constant", peak=0.0),
    )
    path = train(still, tmp_path / "run", watch=quiet())
    assert Run(path).checkpoints.steps()[-1] == 4  # evaluated at 2 and 4: equal, so not better
    train(still, path, watch=quiet())
    assert Run(path).checkpoints.steps()[-1] == 4


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
        ('{"model": {"d_model": "abc"}}', "--model.d-model 'abc': must be a whole number"),
        ('{"model": {"d_model": null}}', "--model.d-model None: must be a whole number"),
        ('{"model": {"num_layers": true}}', "--model.num-layers True: must be a whole number"),
        ('{"model": {"norm": "middle"}}', "--model.norm 'middle': choose post or pre"),
        ('{"model": 3}', "--model 3: must be a ModelConfig"),
        ('{"data": {"buckets": [4, "x"]}}', r"--data.buckets \[4, 'x'\]: must be a list of whole numbers"),
        ('{"optimizer": {"peak": NaN}}', "not a config of this version: NaN as a number"),
        ('{"optimizer": {"peak": 1e400}}', "1e400 as a number"),
        ('{"optimizer": {"peak": 1' + 400 * "0" + "}}", "a number of 401 digits"),
        ('{"training": {"steps": Infinity}}', "Infinity as a number"),
        ('{"model": ' + 100_000 * "[", "nested too deeply"),
        ("[1]", "not a config"),
        ('{"model": {', "not a config"),
    ],
)
def test_configs_that_are_not(text, message):
    with pytest.raises(UserError, match=message):
        from_json(text)


def test_configs_survive_json(config):
    """Also one from a version that had Adam alone."""
    assert from_json(to_json(config)) == config
    values = json.loads(to_json(config))
    assert values["optimizer"].pop("algorithm") == "adam"
    assert from_json(json.dumps(values)) == config
    assert differences(config, changed(config, seed=5)) == "--training.seed: 0 -> 5"


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_of_earlier_versions_are_read(name):
    """The group `mesh` was `parallel`; non-autoregressive models had `fed` and `places`."""
    values = json.loads(to_json(CONFIGS[name]))
    values["parallel"] = values.pop("mesh")
    values["training"]["baseline_decay"] = 0.9
    if values["system"] == "nonautoregressive":
        values["system"] = "parallel"
        values["model"] |= {"fed": values["model"].pop("decoder_input")}
        values["model"] |= {"places": values["model"].pop("bos_length")}
        values["model"] |= {"length_weight": 1.0, "max_fertility": 8}  # constants now
    assert from_json(json.dumps(values)) == CONFIGS[name]
    values["model"]["max_fertility"] = 3
    with pytest.raises(UserError, match="model.max_fertility is 3, and this version has 8 only"):
        from_json(json.dumps(values))


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", ["transformer", "parallel"])
def test_runs_of_version_0_1_translate_as_they_did(tmp_path, system):
    """Run directories, and what that version translated and scored with them."""
    with zipfile.ZipFile(Path(__file__).parent / "data" / "version-0.1.zip") as stored:
        stored.extractall(tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())[system]
    translator = Translator.load(tmp_path / system, "last")
    assert translator.translate(expected["sources"]) == expected["translations"]
    scores = translator.score(expected["sources"], expected["sources"])
    np.testing.assert_allclose(scores, expected["scores"], atol=1e-3)


@pytest.mark.slow
def test_truncated_sources_are_counted_once_a_split(config, tmp_path, caplog):
    decoding = dataclasses.replace(config.decoding, buckets=(2,))
    short = dataclasses.replace(changed(config, steps=4, evaluate_every=2), decoding=decoding)
    train(short, tmp_path / "run", watch=quiet())
    messages = [record.getMessage() for record in caplog.records if record.name == "transformer"]
    (validation, test) = (text for text in messages if "truncated" in text)
    assert re.fullmatch(r"\d+ of \d+ sources of the validation text truncated to 1 subword: .*", validation)
    assert "of the test text" in test
