"""The dropout of presets for own text suits its size, and a run that memorises it says so."""

import dataclasses
import io

import pytest
from rich.console import Console
from small_run import changed, quiet, same, small_config

from transformer import PRESETS, Run, UserError, train
from transformer.cli.command_line import TrainLine
from transformer.commands.train import _initial_arguments
from transformer.runs.config_json import from_json, to_json
from transformer.runs.log import overfitting
from transformer.runs.report import write_report
from transformer.runtime.console import ProgressReporter
from transformer.tasks.texts import text_task_of
from transformer.tasks.texts.text_to_text import dropout_for


@pytest.mark.parametrize(
    ("pairs", "dropout"), [(800, 0.3), (9_999, 0.3), (19_000, 0.2), (150_000, 0.1), (2_000_000, 0.0)]
)
def test_the_dropout_suits_the_size(pairs, dropout):
    assert dropout_for(pairs) == dropout


@pytest.mark.thorough
def test_a_run_decides_it_once(tmp_path):
    """A resumed run keeps it, whether it is asked for or not; a run that had none goes on without."""
    small = changed(small_config(tmp_path), dropout_by="auto", steps=2, evaluate_every=2)
    config = dataclasses.replace(small, model=dataclasses.replace(small.model, dropout=0.0))
    shown = io.StringIO()
    path = train(config, tmp_path / "run", watch=ProgressReporter(Console(file=shown, width=200)))
    assert "dropout 0.3, for 200 training pairs (--model.dropout)" in shown.getvalue()
    begun = Run(path).config
    assert (begun.model.dropout, begun.training.dropout_by) == (0.3, "option")
    train(changed(config, steps=4), path, watch=quiet())
    assert Run(path).config.model.dropout == 0.3
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.1))
    with pytest.raises(UserError, match="model.dropout"):
        train(other, path, watch=quiet())


@pytest.mark.slow
def test_a_run_from_before_keeps_none(tmp_path):
    config = changed(small_config(tmp_path), steps=4, evaluate_every=2)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.0))
    whole = train(config, tmp_path / "whole", watch=quiet())
    train(changed(config, steps=2), tmp_path / "run", watch=quiet())
    train(changed(config, dropout_by="auto"), tmp_path / "run", watch=quiet())
    assert same(whole, tmp_path / "run")


@pytest.mark.parametrize(
    "name", [name for name, config in PRESETS.items() if config.training.dropout_by == "auto"]
)
def test_presets_for_built_in_corpora_leave_it_open(name):
    """They have none for these corpora; an option decides, if it is given."""
    config = PRESETS[name]
    assert config.model.dropout == 0.0
    assert from_json(to_json(config)).training.dropout_by == "auto"
    task = text_task_of(config.data.task).without_corpus(config)
    assert task._decide_dropout(500) == []
    assert task.config.model.dropout == 0.0
    for options, expected in (["--model.dropout", "0"], "option"), ([], "auto"):
        line = TrainLine.of([name, *options])
        assert _initial_arguments(line)[0].config.training.dropout_by == expected


def record(kind, step, nll):
    return {"kind": kind, "step": step, "nll": nll}


TRAINING = [record("training", step, 4.0 / step) for step in range(1, 41)]


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([2.0, 1.5, 1.7, 1.73], "since step 20 the validation loss rises from 1.50 to 1.73"),
        ([2.0, 1.5, 1.51, 1.52], ""),
        ([2.0, 1.9, 1.8, 1.7], ""),
        ([2.0], ""),
        ([], ""),
    ],
)
def test_a_run_that_memorises_is_told(losses, told):
    evaluations = [record("evaluation", 10 * n, nll) for n, nll in enumerate(losses, start=1)]
    assert told in overfitting(TRAINING, evaluations)
    assert bool(told) == bool(overfitting(TRAINING, evaluations))
    rising = [record("training", step, float(step)) for step in range(1, 41)]
    assert not overfitting(rising, evaluations)
    assert not overfitting([], evaluations)


@pytest.mark.thorough
def test_the_last_lines_and_the_report_tell_it(tmp_path, monkeypatch):
    from transformer.trainer.evaluator import Evaluator

    losses = iter([2.0, 3.0, 4.0])
    monkeypatch.setattr(Evaluator, "_means", lambda *_: {"loss": 9.0, "nll": next(losses, 4.0)})
    config = changed(small_config(tmp_path), steps=6, evaluate_every=2, log_every=1)
    shown = io.StringIO()
    path = train(config, tmp_path / "run", watch=ProgressReporter(Console(file=shown, width=300)))
    told = (
        "overfitting: since step 2 the validation loss rises from 2.00 to 4.00 while that of training falls"
    )
    assert shown.getvalue().count(f"Warning: {told}") == 1
    assert told in write_report(path).read_text()
