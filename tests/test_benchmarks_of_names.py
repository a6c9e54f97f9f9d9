"""The studies of names and of language models in the search, at a small size."""

from dataclasses import replace

import pytest

from benchmarks.studies import biasing, fusion
from transformer import PRESETS

pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")


@pytest.fixture
def small(monkeypatch):
    """The presets of the studies, made small."""
    preset, language = PRESETS["speech"], PRESETS["language-model"]
    model = replace(preset.model, num_layers=1, d_model=16, d_ff=32, num_heads=2)
    data = replace(preset.data, built_in_size=40)
    language = replace(language, training=replace(language.training, steps=2, evaluate_every=2))
    presets = {"speech": replace(preset, model=model, data=data), "language-model": language}
    monkeypatch.setattr(fusion, "PRESETS", presets)


@pytest.mark.slow
def test_the_study_of_language_models(tmp_path, capsys, monkeypatch, small):
    monkeypatch.setattr(fusion, "WEIGHTS", (0.2,))
    fusion.main([str(tmp_path / "work"), "--updates", "2", "--count", "2"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| val", "| test"))]
    models = ["none", "trigrams", "Transformer"]
    assert [row.split(" | ")[1] for row in rows] == 2 * models
    fusion.main([str(tmp_path / "work"), "--updates", "2", "--count", "2"])
    assert capsys.readouterr().out.splitlines()[2 : 2 + len(rows)] == rows


@pytest.mark.slow
def test_the_study_of_names(tmp_path, capsys, monkeypatch, small):
    monkeypatch.setattr(biasing, "LISTS", (20, 30))
    monkeypatch.setattr(biasing, "WEIGHTS", (1.0,))
    biasing.main([str(tmp_path / "work"), "--updates", "2", "--count", "2"])
    shown = capsys.readouterr().out
    assert [line.count("|") for line in shown.splitlines() if line.startswith("| test")] == [8, 8, 8]


def test_codes_are_said_and_found():
    random = biasing.np.random.default_rng(0)
    codes = biasing.codes()
    assert len({tuple(code) for code in codes}) == len(codes) == biasing.LISTS[-1]
    for _ in range(20):
        digits = biasing.with_code(random)
        assert digits[1:4] in codes[: biasing.SAID]
        text = biasing.text_of(digits)
        assert biasing.has_code(text, text)
        assert not biasing.has_code(text, text.replace(text.split()[2], "nothing"))
        others = biasing.without_code(random)
        assert not any(others[at : at + 3] in codes for at in range(2))
