"""The study of word confidence: the whole of it on a tiny run, and the probabilities that it compares."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import confidence as study
from transformer import Run, Translator, UserError
from transformer.config.options import text_data
from transformer.translator.calibration import scored_outputs


def texts(run: Path) -> list[tuple[str, str]]:
    data = text_data(Run(run).config)
    sides = (data.validation_source, data.validation_target)
    return list(zip(*(side.read_text().splitlines() for side in sides), strict=True))


@pytest.mark.slow
def test_probabilities_under_dropout(finished: Path) -> None:
    """Without dropout they are those of the model; with it passes differ, and the same seed repeats them."""
    translator = Translator.load(finished)
    pairs = texts(finished)
    sources = [source for source, _ in pairs]
    outputs = scored_outputs(translator, pairs)
    drawn = study.under_dropout(translator, sources, outputs, 3)
    assert drawn.shape == (3, len(study.features_of(outputs)))
    assert (drawn.var(axis=0) > 0).any()
    np.testing.assert_array_equal(drawn, study.under_dropout(translator, sources, outputs, 3))
    translator.model = translator.model.clone(
        config=dataclasses.replace(translator.config.model, dropout=0.0)
    )
    plain = study.under_dropout(translator, sources, outputs, 1)
    np.testing.assert_allclose(plain[0], study.features_of(outputs)[:, 0], atol=1e-5)


@pytest.mark.slow
def test_the_whole_study(finished, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(study, "RESAMPLED", 20)
    data = text_data(Run(finished).config)
    files = [str(data.validation_source), str(data.validation_target)]
    asked = [str(finished), "--validation", *files, "--test", *files, "--passes", "2"]
    study.main([*asked, "--out", str(tmp_path)])
    assert "| area under the ROC curve |" in capsys.readouterr().out
    found = json.loads((tmp_path / "confidence.json").read_text())
    assert tuple(found["methods"]) == study.METHODS
    for numbers in found["methods"].values():
        for value, low, high in (numbers["area"], numbers["error"]):
            assert 0 <= low <= high <= 1
            assert 0 <= value <= 1
    assert found["methods"][study.METHODS[0]]["gain"] == [0, 0]
    assert (tmp_path / "confidence.svg").stat().st_size > 1000


def test_a_run_without_dropout_is_refused(finished, tmp_path, monkeypatch) -> None:
    translator = Translator.load(finished)
    model = dataclasses.replace(translator.config.model, dropout=0.0)
    translator.config = dataclasses.replace(translator.config, model=model)
    monkeypatch.setattr(study.Translator, "load", lambda path: translator)
    with pytest.raises(UserError, match="a Transformer that was trained with dropout"):
        study.main([str(finished), "--validation", "a", "b", "--test", "a", "b"])


def test_a_text_without_pairs_is_refused(finished, tmp_path) -> None:
    (tmp_path / "empty").write_text("\n")
    empty = [str(tmp_path / "empty")] * 2
    with pytest.raises(UserError, match="--validation: .*empty has no sentence with a reference"):
        study.main([str(finished), "--validation", *empty, "--test", *empty])
