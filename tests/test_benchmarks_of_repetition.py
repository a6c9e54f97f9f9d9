"""The study of repetition: its measures on examples worked out by hand, and the whole of it on a tiny run."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from small_run import WORDS, changed

from benchmarks.studies import repetition as study
from transformer import PRESETS, Generator, UserError, train

LENGTH, RULE = 24, 6


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A language model of characters, after two updates."""
    folder = tmp_path_factory.mktemp("repetition")
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(WORDS, size=5)) for _ in range(200)]
    (folder / "text").write_text("\n".join(lines))
    preset = PRESETS["shakespeare-xl"]
    config = replace(
        preset,
        model=replace(preset.model, num_layers=1, d_model=16, d_ff=32, num_heads=2, memory=16),
        data=replace(preset.data, train=folder / "text", dataset="", max_length=16, batch_tokens=64),
        decoding=replace(preset.decoding, buckets=(32,)),
    )
    return train(changed(config, steps=2, evaluate_every=2), folder / "run")


@pytest.fixture(scope="module")
def generator(run):
    return Generator.load(run)


def test_repeated_ngrams():
    assert study.words_of("We know't, sir!") == ["We", "know", "'", "t", ",", "sir", "!"]
    assert study.repetition(["a", "b", "c", "d", "a", "b", "c", "d"]) == pytest.approx(
        1 / 5
    )  # the last one of five
    assert study.repetition(["a"] * 8) == pytest.approx(4 / 5)
    assert study.repetition(list("abcde")) == study.repetition(["a"]) == 0
    assert study.repetition(list("abab"), n=2) == pytest.approx(1 / 3)


def test_different_ngrams_of_all_texts():
    texts = [["a", "b", "c"], ["a", "b"]]
    assert study.distinct(texts, 1) == pytest.approx(3 / 5)
    assert study.distinct(texts, 2) == pytest.approx(2 / 5)  # a b, b c; none across two texts
    assert study.distinct([[]], 1) == 0


def test_self_bleu_is_the_mean_over_texts():
    first, second, other = ["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "f"], ["u", "v", "w", "x", "y"]
    likeness = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert study.self_bleu([first, first]) == pytest.approx(100)
    assert study.self_bleu([first, second]) == pytest.approx(likeness)
    assert study.self_bleu([first, second, other]) == pytest.approx(2 / 3 * likeness)


@pytest.mark.slow
def test_perplexity_is_of_the_texts_after_their_beginnings(generator):
    beginnings, texts = ["red cat", "blue bird sings"], [" runs", " green dog sleeps"]

    def log_p(text):
        return sum(generator.score([text])[0].log_probabilities[:-1])

    pairs = list(zip(beginnings, texts, strict=True))
    total = sum(log_p(beginning + text) - log_p(beginning) for beginning, text in pairs)
    expected = math.exp(-total / sum(map(len, texts)))
    assert study.perplexity(generator, beginnings, texts) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_passages_are_of_the_held_out_text(generator):
    (text,) = generator.task.open_corpus(generator.config).splits["validation"]
    found = study.passages(generator, 5, 30, LENGTH)
    starts = [text.index(each.beginning + each.continuation) for each in found]
    assert all(text[start - 1] == "\n" for start in starts)
    for each, (start, after) in zip(found, pairwise([*starts, len(text)]), strict=True):
        assert len(each.beginning) >= 30
        assert len(each.continuation) == LENGTH
        assert each.continuation[0].isspace()
        assert start + len(each.beginning) + LENGTH <= after
    with pytest.raises(UserError, match="each of 5 parts .* too few for a beginning of 30"):
        study.passages(generator, 5, 30, 500)
    with pytest.raises(UserError, match="each of 1000000 parts of the held-out text has 0 characters"):
        study.passages(generator, 10**6, 30, LENGTH)


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods", [["greedy", "top-p 0.9"], pytest.param([*study.METHODS], marks=pytest.mark.slow)]
)
def test_every_method_is_measured_and_drawn(methods, run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="pip install '.[bench]'")
    monkeypatch.setattr(study, "METHODS", {name: study.METHODS[name] for name in methods})
    numbers = {"count": 3, "beginning": 20, "length": LENGTH, "no-repeat-ngram": RULE}
    options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    study.main([str(run), "--out", str(tmp_path / "out"), *options])
    results = json.loads((tmp_path / "out/repetition.json").read_text())
    truth, *rows = results["rows"]
    assert (truth["method"], truth["rule"]) == (study.TRUTH, 0)
    assert [(row["method"], row["rule"]) for row in rows] == [
        (method, rule) for method in methods for rule in (0, RULE)
    ]
    assert len(results["beginnings"]) == 3
    for row in rows:
        assert [len(text) for text in row["texts"]] == [LENGTH] * 3
        if row["rule"]:
            assert all(study.repetition(text, RULE) == 0 for text in row["texts"])
    greedy, under_rule, *_ = rows
    assert any(study.repetition(text, RULE) > 0 for text in greedy["texts"])
    assert greedy["texts"] != under_rule["texts"]
    table = (tmp_path / "out/repetition.md").read_text()
    assert table.strip() in capsys.readouterr().out
    assert table.count("| top-p 0.9 |") == 2
    assert "<svg" in (tmp_path / "out/repetition.svg").read_text()


@pytest.mark.slow
def test_a_model_without_memory_is_refused(run, monkeypatch):
    loaded = Generator.load(run)
    loaded.config = replace(loaded.config, model=replace(loaded.config.model, memory=0))
    monkeypatch.setattr(study.Generator, "load", lambda path: loaded)
    with pytest.raises(UserError, match="has no memory"):
        study.main([str(run)])
