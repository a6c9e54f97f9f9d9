"""Commands of `benchmarks` that no other file tests, at small sizes."""

import re
from pathlib import Path

import pytest

from benchmarks.speed import input as input_speed
from benchmarks.speed import latency
from transformer import Config


@pytest.mark.slow
def test_speed_of_the_input(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(input_speed, "preset", lambda name: config)
    input_speed.main(["small", "--batches", "3", "--batch-tokens", "128"])
    out = capsys.readouterr().out
    for stage in ("records read", "examples encoded", "plan of all", "batches gathered", "in training"):
        assert re.search(rf"^{stage}: [\d,]+ tokens a CPU second", out, re.MULTILINE), stage


@pytest.mark.slow
def test_latency_of_single_requests(finished: Path, capsys: pytest.CaptureFixture) -> None:
    latency.main([str(finished), "--count", "4", "--rates", "100"])
    out = capsys.readouterr().out
    assert "100 a second, joined: median" in out
    assert "100 a second, one by one: median" in out
