"""One rule says which checkpoint is best: the score, then the validation loss, then the earlier step."""

import io
import json
import math
import shutil

import pytest
from rich.console import Console
from small_run import changed, quiet

from transformer import Run
from transformer.runs.log import standing
from transformer.runs.report.logged import Logged
from transformer.runtime.console import ProgressReporter
from transformer.systems.registry import REGISTRY, find_system
from transformer.tasks.metrics.scores import CHARACTERS, PERPLEXITY, WORDS, Score
from transformer.tasks.texts import TASKS, text_task_of
from transformer.tasks.texts.translation import BLEU, Translation
from transformer.trainer.evaluator import Evaluator
from transformer.trainer.train import train


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"merit": 2.0, "nll": 9.0}, {"merit": 1.0, "nll": 1.0}),
        ({"merit": 1.0, "nll": 1.0}, {"merit": 1.0, "nll": 2.0}),
        ({"merit": 1.0, "nll": 1.0, "loss": 9.0}, {"merit": 1.0, "nll": 2.0, "loss": 1.0}),
        ({"merit": -0.5, "loss": 1.0}, {"merit": -0.5, "loss": 2.0}),
        ({"bleu": 1.0, "nll": 1e9}, {"bleu": 1.0}),
        ({"merit": 1.0, "loss": 1.0}, {"merit": 1.0, "loss": math.nan}),
    ],
)
def test_the_score_decides_then_the_loss(better, worse):
    assert standing(better) > standing(worse)


def test_stopping_the_log_the_checkpoints_and_the_report_agree(config, tmp_path, monkeypatch):
    """Equal scores while the loss falls are progress; equal losses too are not."""
    losses = iter([5.0, 4.0, 4.5, 4.0, 1.0])
    monkeypatch.setattr(Translation, "measures", lambda self: {BLEU: lambda given: Score(0.0, "", "")})
    means = lambda *_: {"loss": 9.0, "nll": next(losses, 1.0)}  # noqa: E731
    monkeypatch.setattr(Evaluator, "_means", means)
    options = {"patience": 2, "evaluate_every": 2, "keep_last": 1}
    run = Run(train(changed(config, **options), tmp_path / "run", watch=quiet()))
    evaluations = run.log.records("evaluation")
    told = [(each["step"], each["best"]) for each in evaluations]
    assert told == [(2, True), (4, True), (6, False), (8, False)]
    assert run.checkpoints.steps() == [4, 8]
    assert run.checkpoints.best() == 4
    assert Logged(run.path).summary()["best checkpoint"].startswith("4 ")
    assert json.loads((run.path / "results.json").read_text())["checkpoint"] == 4


@pytest.mark.thorough
def test_a_score_that_says_nothing_neither_stops_nor_chooses(config, tmp_path, monkeypatch):
    """Below 1, BLEU is noise: the loss decides, until there is a better score. All say so."""
    scores, losses = iter([0.62, 0.01, 0.3, 1.5]), iter([5.0, 4.0, 3.0, 3.5])
    last = (1.5, 3.5)
    monkeypatch.setattr(
        Translation, "measures", lambda self: {BLEU: lambda given: Score(next(scores, last[0]), "", "")}
    )
    monkeypatch.setattr(Evaluator, "_means", lambda *_: {"loss": 9.0, "nll": next(losses, last[1])})
    options = {"patience": 2, "evaluate_every": 2}
    shown = io.StringIO()
    watch = ProgressReporter(Console(file=shown, width=200))
    run = Run(train(changed(config, **options, steps=6), tmp_path / "noise", watch=watch))
    told = [(each["step"], each["bleu"], each["best"]) for each in run.log.records("evaluation")]
    assert told == [(2, 0.62, True), (4, 0.01, True), (6, 0.3, True)]
    assert run.checkpoints.best() == 6
    assert "6 by validation loss, since BLEU below 1 says nothing" in shown.getvalue()
    said = "BLEU below 1 says nothing yet: until then the lowest validation loss decides which checkpoint is"
    assert shown.getvalue().count(said) == 1
    assert "(validation loss, BLEU 0.30" in Logged(run.path).summary()["best checkpoint"]
    scores, losses = iter([0.62, 1.2, 0.3, 0.2]), iter([5.0, 4.5, 3.0, 2.0])
    run = Run(train(changed(config, **options, steps=12), tmp_path / "begun", watch=quiet()))
    assert [each["step"] for each in run.log.records("evaluation") if each["best"]] == [2, 4]
    assert run.checkpoints.best() == 4
    assert run.log.records("evaluation")[-1]["step"] == 8


@pytest.mark.slow
def test_what_ends_a_training_in_which_no_score_says_anything(config, tmp_path, monkeypatch):
    monkeypatch.setattr(Translation, "measures", lambda self: {BLEU: lambda given: Score(0.5, "", "")})
    monkeypatch.setattr(Evaluator, "_means", lambda *_: {"loss": 9.0, "nll": 4.0})
    shown = io.StringIO()
    options = changed(config, patience=1, evaluate_every=2)
    train(options, tmp_path / "run", watch=ProgressReporter(Console(file=shown, width=200)))
    assert "No lower validation loss (BLEU below 1 says nothing yet) in 1 evaluations" in shown.getvalue()


def test_every_criterion_has_a_baseline_or_is_a_loss():
    """Those without are functions of the loss, or distances that fall from the first update."""
    without = set()
    for name in REGISTRY:
        task = find_system(name).task
        for measure in [WORDS, CHARACTERS] if isinstance(task.criterion, property) else [task.criterion]:
            if measure.baseline is None:
                without.add(measure.name)
    tasks = map(text_task_of, TASKS)
    without |= {task.criterion.name for task in tasks if task.criterion.baseline is None}
    assert without == {"perplexity", "bits_per_character", "mel_error"}


@pytest.mark.parametrize(
    ("measure", "noise", "begun"),
    [(BLEU, [0.0, 0.62, 1.0], [1.01, 30.0]), (WORDS, [250.0, 100.0, 99.0], [98.9, 0.0])],
)
def test_scores_up_to_the_baseline_are_equal(measure, noise, begun):
    assert len({measure.merit(value) for value in noise}) == 1
    assert all(map(measure.is_noise, noise))
    assert not any(map(measure.is_noise, begun))
    merits = [measure.merit(value) for value in (noise[-1], *begun)]
    assert merits == sorted(set(merits))
    assert not PERPLEXITY.is_noise(1e9)
    assert math.isnan(measure.merit(math.nan))


@pytest.mark.slow
def test_losses_of_earlier_versions_are_in_the_log(finished, tmp_path):
    run = Run(shutil.copytree(finished, tmp_path / "run"))
    steps, records = run.checkpoints.steps(), run.log.records("evaluation")
    for step in steps:
        (run.path / "checkpoints" / str(step) / "metrics" / "metrics").write_text(
            '{"bleu": 1.0, "merit": 1.0}'
        )
    for lowest in steps:
        logged = [each | {"merit": 1.0, "bleu": 1.0, "nll": abs(each["step"] - lowest)} for each in records]
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in logged))
        assert run.checkpoints.best() == lowest
    (run.path / "metrics.jsonl").unlink()
    assert run.checkpoints.best() == steps[0]
