"""One rule says which checkpoint is best: the score, then the validation loss, then the earlier step."""

import json
import math
import shutil

import pytest
from small_run import changed, quiet

from transformer import Run
from transformer.runs.log import standing
from transformer.runs.report.logged import Logged
from transformer.tasks.metrics.scores import Score
from transformer.tasks.translation import BLEU, Translation
from transformer.training.loop.evaluator import Evaluator
from transformer.training.loop.train import train


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
