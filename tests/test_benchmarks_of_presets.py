"""The study of presets: its table, and real trainings of a few updates."""

import json

import pytest

from benchmarks.studies import presets
from transformer import UserError

RESULTS = {
    "sentiment": [
        {
            "scores": {"accuracy": 90.0},
            "curve": [(1, 50.0)],
            "cpu_seconds": 10.0,
            "seconds": 7.0,
            "first": "accuracy",
        },
        {
            "scores": {"accuracy": 95.0},
            "curve": [(1, 60.0)],
            "cpu_seconds": None,
            "seconds": None,
            "first": "accuracy",
        },
    ]
}


def test_the_table_has_means_and_the_time_of_whole_trainings(tmp_path):
    pytest.importorskip("matplotlib")
    row = presets.table(RESULTS).splitlines()[-1]
    assert row == "| `sentiment` | accuracy 92.5 (90.0 to 95.0) | 10 | 7 |"
    presets.plot(RESULTS, tmp_path / "presets.png")
    assert (tmp_path / "presets.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_preset_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing: there is no such preset"):
        presets.main([str(tmp_path / "work"), "nothing"])
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_presets_are_trained_and_compared(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    options = "--training.steps 2 --training.evaluate-every 1 --data.built-in-size 200 --model.d-model 16"
    words = [str(tmp_path / "work"), "sentiment", "--seeds", "2", *options.split()]
    words += ["--optimizer.warmup-steps", "1"]
    presets.main(words)
    found = json.loads((tmp_path / "work" / "presets.json").read_text())["results"]["sentiment"]
    assert [[step for step, _ in seed["curve"]] for seed in found] == [[1, 2], [1, 2]]
    assert all(seed["cpu_seconds"] > 0 and seed["first"] == "accuracy" for seed in found)
    monkeypatch.setattr(presets, "trained", lambda *_: pytest.fail("it is there"))
    presets.main(words)
    assert "| `sentiment` | accuracy" in capsys.readouterr().out
