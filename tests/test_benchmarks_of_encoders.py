"""The study of pretrained encoders, with runs of a few updates."""

import json
from dataclasses import replace

import pytest
from of_a_config import check_config
from small_run import write_text

from benchmarks.studies import encoders
from transformer import UserError
from transformer.config.options import text_data
from transformer.systems.presets import PRESETS


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, count in (("train", 160), ("validation", 12), ("test", 12)):
        for path, language in zip(write_text(folder, split, count).values(), ("en", "de"), strict=True):
            path.rename(folder / f"{split}.{language}")
    return folder


def test_both_models_are_the_same_but_for_their_encoder(corpus, tmp_path):
    plan = encoders.Plan(tmp_path, corpus, ("en", "de"), 8, 300, 50, 20, 3)
    nothing, pretrained = (plan.translation(name, 1) for name in (encoders.NOTHING, encoders.PRETRAINED))
    check_config(plan.encoder(1))
    started = replace(nothing.training, init_encoder_from=tmp_path / "encoder-1")
    assert replace(nothing, training=started) == pretrained
    lines, whole = (
        (folder / name).read_text().splitlines()
        for folder, name in ((tmp_path, "train-8.de"), (corpus, "train.de"))
    )
    assert lines == whole[::8]
    with pytest.raises(UserError, match="there is no train.fr in it"):
        encoders.main([str(tmp_path), "--corpus", str(corpus), "--languages", "fr", "de"])


@pytest.mark.slow
def test_it_trains_compares_and_continues(corpus, tmp_path, monkeypatch, capsys):
    base = PRESETS["multi30k"]
    model = replace(base.model, num_layers=1, d_model=16, d_ff=32, num_heads=2)
    decoding = replace(base.decoding, beam_size=2, buckets=(64,), rows=4, extra_length=4)
    small = replace(base, model=model, data=replace(text_data(base), buckets=(64,)), decoding=decoding)
    monkeypatch.setitem(PRESETS, "multi30k", small)
    words = [str(tmp_path / "work"), "--corpus", str(corpus), "--vocab-size", "280", "--seeds", "2"]
    words += ["--pretraining", "4", "--updates", "4"]
    encoders.main(words)
    found = json.loads((tmp_path / "work" / "encoders.json").read_text())
    assert [row["seed"] for row in found["rows"]] == [0, 1]
    assert "| mean |" in capsys.readouterr().out
    (tmp_path / "work" / "encoders.json").unlink()
    monkeypatch.setattr(encoders, "train", lambda *_: pytest.fail("it is there"))
    encoders.main(words)
    assert json.loads((tmp_path / "work" / "encoders.json").read_text())["rows"] == found["rows"]
