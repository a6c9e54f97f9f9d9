"""The study of a third direction, with runs of a few updates."""

import json
from dataclasses import replace

import pytest
from small_run import WORDS

from benchmarks.studies import forgetting
from transformer import TransformerConfig, UserError


def write(folder):
    folder.mkdir()
    for split, count in (("train", 60), ("validation", 6), ("test", 4)):
        for number, language in enumerate(forgetting.LANGUAGES):
            lines = (" ".join(WORDS[(k + number + i) % 9] for i in range(3)) for k in range(count))
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.slow
def test_every_way_is_trained_and_scored(tmp_path, monkeypatch):
    corpus = write(tmp_path / "corpus")
    plain = forgetting.PRESETS["multi30k"]
    small = replace(
        plain,
        model=TransformerConfig(num_layers=1, d_model=16, d_ff=16, num_heads=2),
        data=replace(plain.data, tokenizer="whitespace", vocab_size=60, max_length=8, buckets=(8,)),
        decoding=replace(plain.decoding, buckets=(8,), rows=4),
    )
    monkeypatch.setattr(forgetting, "PRESETS", {"multi30k": small})
    words = [
        str(tmp_path / "work"),
        "--corpus",
        str(corpus),
        "--before",
        "2",
        "--updates",
        "2",
        "--seeds",
        "1",
        "--rank",
        "2",
    ]
    forgetting.main(words)
    (row,) = json.loads((tmp_path / "work" / "forgetting.json").read_text())["rows"]
    assert row["base"]["share"] == row["full"]["share"] == 1
    assert 0 < row["adapter"]["share"] < row["frozen-encoder"]["share"] < 1
    assert all(set(forgetting.OLD + forgetting.NEW) < set(row[name]) for name in ("base", *forgetting.WAYS))
    assert "| adapter |" in (tmp_path / "work" / "forgetting.md").read_text()
    monkeypatch.setattr(forgetting, "train", lambda *_: pytest.fail("it is there"))
    forgetting.main(words)


def test_a_way_differs_only_in_what_it_trains(tmp_path):
    plan = forgetting.Plan(tmp_path, tmp_path, 10, 5, 2, 1)
    full, frozen, adapter = (plan.config(name, 1) for name in forgetting.WAYS)
    assert replace(frozen, training=replace(frozen.training, freeze=())) == full
    assert (adapter.adapter.rank, full.adapter.rank) == (2, 0)
    assert adapter.data == full.data


def test_a_corpus_without_a_language_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"there is no train\.en in it"):
        forgetting.main([str(tmp_path / "work"), "--corpus", str(tmp_path)])
