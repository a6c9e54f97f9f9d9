"""The study of sets of labels, with a model of a few updates."""

import dataclasses
import json

import numpy as np
import pytest
from small_run import quiet
from toy_label_sets import config_of, write

from benchmarks.studies import emotions
from transformer import UserError
from transformer.tasks.metrics.labels import micro_f1
from transformer.trainer.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emotions")
    write(folder)
    config = config_of(folder, max_length=12, buckets=(12,), label_order="shuffled")
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, peak=0.05))
    training = dataclasses.replace(config.training, steps=60, evaluate_every=60)
    return train(dataclasses.replace(config, training=training), folder / "shuffled", watch=quiet())


@pytest.mark.slow
def test_the_classifier_learns_and_is_compared(run, tmp_path, monkeypatch, capsys):
    """The texts name their labels: it is far better than the most frequent set."""
    words = [str(tmp_path / "work"), str(run)]
    emotions.main(words)
    rows = json.loads((tmp_path / "work" / "emotions.json").read_text())["rows"]
    assert list(rows) == ["most frequent", "classifier, threshold", "classifier, at least one", "shuffled"]
    assert rows["classifier, threshold"]["micro F1"] > rows["most frequent"]["micro F1"] + 10
    results = json.loads((run / "results.json").read_text())
    assert rows["shuffled"]["micro F1"] == pytest.approx(results["micro_f1"]["value"])
    printed = capsys.readouterr().out
    monkeypatch.setattr(emotions.Study, "classified", lambda self: pytest.fail("it is there"))
    emotions.main(words)
    assert capsys.readouterr().out.splitlines()[:6] == printed.splitlines()[:6]


def test_intervals_and_thresholds():
    """Micro F1 as the metric has it; a threshold with and without at least one label."""
    random = np.random.default_rng(0)
    probabilities, right = random.random((50, 4)), random.random((50, 4)) < 0.3
    chosen = emotions.above(probabilities, 0.9)
    both = [[{str(i) for i in np.flatnonzero(row)} for row in rows] for rows in (chosen, right)]
    assert 100 * emotions.f1_of(chosen, right) == pytest.approx(micro_f1(*both, list("0123")).value)
    at_least_one = emotions.above_or_best(probabilities, 0.9)
    assert at_least_one.any(axis=1).all()
    some = chosen.any(axis=1)
    assert (at_least_one[some] == chosen[some]).all()
    assert (at_least_one[~some].argmax(axis=1) == probabilities[~some].argmax(axis=1)).all()
    assert at_least_one[~some].sum() == (~some).sum()


def test_other_runs_are_refused(finished, tmp_path):
    with pytest.raises(UserError, match="writes no labels: train it with --data.task label-sets or labels"):
        emotions.main([str(tmp_path), str(finished)])
