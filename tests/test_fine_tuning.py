"""Training that is initialised from a model, here an imported one without shared parts."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from of_a_config import model_shapes
from small_run import changed, interrupted, small_config
from toys.task import SIZES, ToyData
from toys.waves import SYSTEM

from transformer import (
    PRESETS,
    Config,
    DataConfig,
    GreedyConfig,
    Options,
    Run,
    TransformerConfig,
    UserError,
    train,
)
from transformer.cli.command_line import TrainLine
from transformer.commands.train import _initial_arguments, train_main
from transformer.config.transformer import EncoderConfig
from transformer.data.sequences import arrays_of
from transformer.data.sources.source import InMemory
from transformer.data.store import Corpus
from transformer.interop.pretrained import import_model
from transformer.runs.config_json import from_json, to_json
from transformer.runtime.console import ProgressReporter
from transformer.systems.registry import REGISTRY, Registered, as_option
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.preparation import TrainingData


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return import_model(Path(__file__).parent / "data/marian", tmp_path_factory.mktemp("parent") / "run")


@pytest.fixture(scope="module")
def config(parent, tmp_path_factory):
    """Fine-tunes the parent on lines of nine words, reversed."""
    small = small_config(tmp_path_factory.mktemp("text"))
    return replace(
        small,
        model=replace(parent.config.model, dropout=0.1),
        data=replace(small.data, max_length=40, buckets=(40,), batch_tokens=512),
        optimizer=replace(small.optimizer, peak=1e-3),
        training=replace(small.training, steps=8, init_from=parent.path, evaluate_sentences=4),
        decoding=GreedyConfig(buckets=(40,), rows=4, extra_length=0),
    )


def quiet():
    return ProgressReporter(quiet=True)


def losses(run_dir):
    lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [record["nll"] for record in map(json.loads, lines) if record["kind"] == "evaluation"]


def assert_same(some, others):
    for one, other in zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_it_begins_where_the_parent_stands(parent, config, tmp_path):
    still = replace(config.training, steps=1, evaluate_every=1)
    train(
        replace(config, optimizer=replace(config.optimizer, peak=0.0), training=still),
        tmp_path,
        watch=quiet(),
    )
    begun, shapes = Run(tmp_path), parent.shapes
    assert_same(begun.checkpoints.variables("last", shapes), parent.checkpoints.variables("best", shapes))
    assert begun.task.content() == parent.task.content()


@pytest.mark.slow
def test_it_gets_better_and_goes_on_without_the_parent(config, tmp_path):
    import_model(Path(__file__).parent / "data/marian", tmp_path / "parent")
    config = replace(config, training=replace(config.training, init_from=tmp_path / "parent"))
    train(config, tmp_path / "whole", watch=quiet())
    before, after = losses(tmp_path / "whole")
    assert after < 0.98 * before

    interrupted(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "parent").rename(tmp_path / "gone")
    train(config, tmp_path / "run", watch=quiet())
    shapes = model_shapes(config)
    assert_same(*(Run(tmp_path / name).checkpoints.variables(8, shapes) for name in ("whole", "run")))


def test_a_text_that_the_vocabulary_of_the_parent_lacks_is_warned_of(parent, config):
    """However little of it is lacking: which characters, how often, and what adds them."""
    task, known = parent.task, "ab " * 99
    for pair, told in {
        ("ab", "cd"): [],
        ("ab", "\u20ac"): ["target"],
        (f"{known}{{", f"{{ {known} }} {{"): ["source", "target"],
    }.items():
        arrays = arrays_of(task.stored_examples([pair] * 3), task.stored_fields)
        corpus = Corpus("", {"train": InMemory([pair] * 3)}, Path())
        warnings = TrainingData(corpus, task, SimpleNamespace(examples=arrays)).unknown(config)
        assert [warning.split()[3] for warning in warnings] == told
        assert all(f"are unknown to the vocabulary of {parent.path}: " in warning for warning in warnings)
        assert all("--data.add-tokens FILE" in warning for warning in warnings)
    assert "'{' (3 times). Training reads them as one token: add" in warnings[0]
    assert "'{' (6 times), '}' (3 times)" in warnings[1]
    assert "Training reads them as one token, which outputs cannot have: add" in warnings[1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["marian", "pretrained/t5", "bert/two-layers"])
def test_decoding_says_once_what_the_vocabulary_lacks(tmp_path, caplog, name):
    import_model(Path(__file__).parent / "data" / name, tmp_path / "run")
    task = Run(tmp_path / "run").task
    tokenizer = task.tokenizers[0] if hasattr(task, "tokenizers") else task.tokenizer
    assert tokenizer.unknown("a {b} {") == ["{", "}", "{"]
    assert tokenizer.unknown("a b") == []
    if not isinstance(task, DecodingTask):
        return
    texts = ["a b", "a {b} {", "{", "}"]
    for lines in ([7, 8, 9, 10], [11, 12, 13, 14]):
        task.input_examples([task.record(text) for text in texts], 40, lines)
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(
        "line 8 and 2 lines after it: the vocabulary lacks '{' (3 times), '}' (2 times), which"
    )
    assert "--data.add-tokens FILE adds them" in told
    task.input_examples([task.record("{")], 40)
    assert len(caplog.records) == 1


def test_another_network_is_refused(config, parent, tmp_path):
    for changes in ({"d_ff": 99}, {"norm": "pre"}, {"vocab_size": 7}):
        other = replace(config, model=replace(config.model, **changes))
        with pytest.raises(UserError, match=f"(?s){as_option(next(iter(changes)))[2:]}.*Leave out"):
            train(other, tmp_path / "run", watch=quiet())
    other = replace(PRESETS["tiny-recurrent"], training=config.training)
    with pytest.raises(UserError, match="not a recurrent one"):
        train(other, tmp_path / "run", watch=quiet())
    assert not (tmp_path / "run").exists()


def test_an_imported_model_is_not_trained_in_its_own_place(config, parent):
    own = replace(config, training=parent.config.training, data=parent.config.data)
    with pytest.raises(UserError, match="--init-from"):
        train(own, parent.path, watch=quiet())


def test_the_command_takes_the_parents_network(parent, monkeypatch, call):
    asked = []
    monkeypatch.setattr("transformer.trainer.train.train", lambda config, run_dir, **_: asked.append(config))
    for option in ([f"--init-from={parent.path}"], ["fine-tune", "--init-from", str(parent.path)]):
        assert call(train_main, *option, "--model.dropout", "0.3", "--data.train-tsv", "a")[0] == 0
    for config in asked:
        assert config.model == replace(parent.config.model, dropout=0.3)
        assert config.decoding == parent.config.decoding
        assert config.optimizer == PRESETS["fine-tune"].optimizer
        assert config.training.init_from == parent.path
        assert config.data.train_tsv == Path("a")
        assert from_json(to_json(config)) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fine-tune"], "needs --init-from"),
        (["--init-from", "PARENT"], "needs training data"),
        (["--init-from", "PARENT", "--data.train-tsv", "a", "--data.vocab-size", "9"], "leave it out"),
        (["tiny", "--init-from", "PARENT"], "--model.num-layers: 2 -> 4"),
        (["--init-from", "nowhere"], "nowhere: no such run directory"),
        (["tiny", "--init-from=nowhere"], "nowhere: no such run directory"),
    ],
)
def test_bad_commands(parent, arguments, message, refused):
    assert message in refused(train_main, *(parent.path if word == "PARENT" else word for word in arguments))


LEARNED = {"positions": "learned", "max_positions": 48}


@pytest.mark.parametrize("learned", [LEARNED, {"encoder_stack": EncoderConfig(**LEARNED)}])
def test_the_text_is_as_long_as_the_parents_table_of_positions(learned, tmp_path):
    model = TransformerConfig(vocab_size=300, **learned)
    parent = Config(model=model, data=DataConfig(max_length=40, batch_tokens=400))
    (tmp_path / "config.json").write_text(to_json(parent))
    words = ["--init-from", str(tmp_path), "--data.train-tsv", "a"]
    assert _initial_arguments(TrainLine.of(words))[0].config.data.max_length == 48
    with pytest.raises(UserError, match="max-positions 48 is less than .* 49: .*; give --data.max-length 48"):
        _initial_arguments(TrainLine.of([*words, "--data.max-length", "49"]))


def test_a_corpus_without_a_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setitem(REGISTRY, "toy", Registered(Options(data=ToyData), SYSTEM))
    (tmp_path / "config.json").write_text(
        to_json(Config(system="toy", model=TransformerConfig(**SIZES), data=ToyData()))
    )
    with pytest.raises(UserError, match="the corpus of system toy has none of the options of a vocabulary"):
        _initial_arguments(TrainLine.of(["--init-from", str(tmp_path)]))


@pytest.mark.parametrize(("options", "fixed"), [([], ("output_bias",)), (["--model.fixed"], ())])
def test_what_a_publisher_never_trains_is_trained_if_asked_for(tmp_path, options, fixed):
    run = import_model(Path(__file__).parent / "data/marian-renormalized", tmp_path / "run")
    assert run.config.model.fixed == ("output_bias",)
    text = [part for name in ("source", "target") for part in (f"--data.train-{name}", str(tmp_path / name))]
    arguments, _ = _initial_arguments(TrainLine.of(["--init-from", str(run.path), *text, *options]))
    assert arguments.config.model.fixed == fixed


@pytest.mark.slow
def test_fine_tuning_in_six_lines_as_the_docs_have_it(tmp_path, monkeypatch):
    page = (Path(__file__).parent.parent / "docs/quick-start.md").read_text()
    (program,) = re.findall(r"Fine-tuning in six lines:\n\n```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in program.splitlines() if line]) == 6
    (tmp_path / "text").mkdir()
    monkeypatch.chdir(tmp_path)
    short = changed(small_config(tmp_path / "text"), steps=1)
    parent = train(short, "runs/transformer-1", watch=quiet())
    shutil.copy(parent_text := Run(parent).config.data.train_source, "my.en")
    shutil.copy(parent_text, "my.de")
    exec(program.replace("steps=500", "steps=4"), {})
    assert Run("runs/mine").checkpoints.steps()[-1] == 4
    assert Run("runs/mine").task.content() == Run(parent).task.content()
