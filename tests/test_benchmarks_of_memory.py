"""The benchmarks of language models, at small sizes."""

import dataclasses
import json

import pytest

from benchmarks.quality import language_model
from benchmarks.speed import segments
from transformer import PRESETS, UserError


@pytest.mark.slow
def test_the_comparison_of_memories(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="pip install '.[bench]'")
    monkeypatch.setattr(language_model, "MEMORIES", (0, 16))
    monkeypatch.setattr(language_model, "BLOCKS", 6)
    preset = PRESETS["shakespeare"]
    small = dataclasses.replace(preset.model, num_layers=1, d_model=16, d_ff=32, num_heads=2)
    preset = dataclasses.replace(preset, model=small)
    monkeypatch.setattr(language_model, "PRESETS", {"shakespeare": preset})
    text = tmp_path / "text"
    text.write_text("".join(f"{n} plus {n} is {2 * n}.\n" for n in range(400)))
    arguments = [str(tmp_path / "work"), "--text", str(text), "--updates", "2", "--seeds", "1"]
    language_model.main([*arguments, "--only", "learned", "relative, memory"])
    out = capsys.readouterr().out
    assert "| learned | " in out
    assert "nanoGPT's README has 1.88" in out
    found = json.loads((tmp_path / "work/language_model.json").read_text())["runs"]
    assert found["learned"][0]["bits"].keys() == {"0"}
    (run,) = found["relative, memory"]
    assert run["bits"].keys() == {"0", "16"}
    assert 0 < run["block"] < 10
    assert [step for step, _ in run["curve"]] == [1, 2]
    assert (tmp_path / "work/language_model.png").stat().st_size > 10_000
    with pytest.raises(UserError, match="'none': there is no such model"):
        language_model.main([*arguments, "--only", "none"])


def test_intervals_over_seeds():
    assert language_model.interval([1.0]) == "1.000"
    assert language_model.interval([1.0, 2.0, 3.0]) == "2.000 ± 2.483"  # 4.30 / root of 3


@pytest.mark.slow
def test_the_cost_of_segments_and_memories(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="pip install '.[bench]'")
    segments.main(["--quick", "--output", str(tmp_path / "segments")])
    out = capsys.readouterr().out
    assert "| segment, memory: | 0 | 64 |" in out
    found = json.loads((tmp_path / "segments.json").read_text())
    assert [(each["segment"], each["memory"]) for each in found["updates"]] == [
        (32, 0),
        (32, 64),
        (64, 0),
        (64, 64),
    ]
    assert all(each["window"] > 0 < each["memory"] for each in found["evaluations"])
    assert (tmp_path / "segments.png").exists()
