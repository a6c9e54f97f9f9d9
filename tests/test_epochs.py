"""The length of training in epochs."""

import dataclasses
import json

import pytest
from small_run import changed, quiet, same

from transformer import Run, UserError, make_optimizer
from transformer.config.ranges import COUNTS
from transformer.config.training import TrainingConfig
from transformer.plan.machines import machine
from transformer.plan.plan import Limits, plan
from transformer.runs.config_json import from_json, to_json
from transformer.systems.presets import PRESETS
from transformer.trainer import train as training
from transformer.trainer.train import train


@pytest.mark.parametrize(("epochs", "steps"), [(1, 7), (2.0, 14), (0.5, 4), (0.01, 1), (1.3, 9)])
def test_epochs_in_updates(epochs, steps):
    assert TrainingConfig(epochs=epochs).in_steps(7) == TrainingConfig(steps=steps)
    assert TrainingConfig(steps=5).in_steps(7) == TrainingConfig(steps=5)


def test_epochs_that_cannot_be():
    for wrong in (0.0, -1.0, 1e10):
        with pytest.raises(UserError, match="--training.epochs .*: must be positive"):
            TrainingConfig(epochs=wrong)
    with pytest.raises(UserError, match="--training.epochs must be a finite number, not nan"):
        TrainingConfig(epochs=float("nan"))
    with pytest.raises(UserError, match="--training.epochs 2e.09: .* updates; at most"):
        TrainingConfig(epochs=2e9).in_steps(COUNTS)


def test_nothing_takes_the_steps_of_a_preset_for_those_of_epochs(config):
    """The optimizer's schedule, and a plan, which has no corpus."""
    unknown = changed(config, epochs=3)
    with pytest.raises(UserError, match="--training.epochs 3: how many updates that are follows from the"):
        make_optimizer(unknown)
    with pytest.raises(UserError, match="give --training.steps"):
        plan(unknown, machine("cpu:1"), Limits(), lambda what: pytest.fail(what))


class Began(Exception):
    """Training would begin now, with this config."""


def first_config(config, monkeypatch, tmp_path):
    """The config that a training begins with, and the number of updates of an epoch."""

    def begin(config, system, objective, run, data, *_):
        raise Began(config, run.config, data.batcher.plan.steps_per_epoch)

    monkeypatch.setattr(training, "Loop", begin)
    with pytest.raises(Began) as began:
        train(config, tmp_path / "run", watch=quiet())
    return began.value.args


@pytest.mark.parametrize("batching", ["buckets", "packed", "sampled", "stream"])
def test_every_kind_of_plan(config, batching, monkeypatch, tmp_path):
    data = config.data
    if batching == "packed":
        data = dataclasses.replace(data, batching="packed", max_length=16, buckets=(16,))
    if batching == "sampled":
        data = dataclasses.replace(data, tokenizer="bpe", vocab_size=290, subword_sampling=0.1, max_length=40)
    given = dataclasses.replace(config, data=data)
    if batching == "stream":
        given = PRESETS["language-model"]
        text = dataclasses.replace(
            given.data, train=config.data.train_source, vocab_size=30, batch_tokens=256
        )
        given = dataclasses.replace(given, data=dataclasses.replace(text, cache_dir=config.data.cache_dir))
    used, stored, steps_per_epoch = first_config(changed(given, epochs=2.5), monkeypatch, tmp_path)
    assert steps_per_epoch > 1
    assert used.training.steps == round(2.5 * steps_per_epoch)
    assert used.training.epochs is None
    assert used.training == stored.training


@pytest.mark.slow
def test_epochs_are_as_many_steps_and_resume(config, tmp_path):
    by_epochs = train(changed(config, epochs=0.5), tmp_path / "epochs", watch=quiet())
    steps = Run(by_epochs).config.training.steps
    by_steps = train(changed(config, steps=steps), tmp_path / "steps", watch=quiet())
    assert same(by_epochs, by_steps)
    assert to_json(Run(by_epochs).config) == to_json(Run(by_steps).config)
    before = (by_epochs / "metrics.jsonl").read_bytes()
    train(changed(config, epochs=0.5), by_epochs, watch=quiet())  # complete
    assert (by_epochs / "metrics.jsonl").read_bytes() == before
    train(changed(config, epochs=1), by_epochs, watch=quiet())
    assert 2 * steps - 1 <= Run(by_epochs).checkpoints.steps()[-1] <= 2 * steps + 1


@pytest.mark.slow
def test_the_end_of_a_cosine_may_not_be_moved_by_epochs(config, tmp_path):
    optimizer = dataclasses.replace(config.optimizer, schedule="cosine")
    cosine = changed(dataclasses.replace(config, optimizer=optimizer), epochs=0.25)
    path = train(cosine, tmp_path / "run", watch=quiet())
    train(cosine, path, watch=quiet())
    steps = Run(path).config.training.steps
    with pytest.raises(UserError, match=f"training.steps: {steps} -> "):
        train(changed(cosine, epochs=2), path, watch=quiet())


def test_configs_of_earlier_runs_have_no_epochs(config):
    stored = json.loads(to_json(config))
    del stored["training"]["epochs"]
    assert from_json(json.dumps(stored)) == config
