"""Other models choose among the outputs of a search."""

import jax.numpy as jnp
import numpy as np
import pytest
from small_translator import small_translator

from transformer import Translator, UserError
from transformer.commands import given_outputs
from transformer.commands.decode import decode_main
from transformer.commands.given_outputs import dual_score, score_main, scored_pairs
from transformer.translator.rescoring import rescored
from transformer.translator.translator import Hypothesis


def test_another_model_may_choose(finished):
    judge = Translator.load(finished)
    sources = ["red cat runs", "dog"]
    texts = [["runs cat red", "cat", "red red red red"], ["dog"]]
    found = [[Hypothesis(text, tuple(text.split()), 0.0, 0.0) for text in several] for several in texts]
    chosen = list(rescored(sources, found, judge, window=1))
    for source, before, after in zip(sources, texts, chosen, strict=True):
        log_p = judge.score([source] * len(before), before)
        alpha = judge.config.decoding.length_penalty
        expected = {
            text: value / ((5 + len(text.split()) + 1) / 6) ** alpha
            for text, value in zip(before, log_p, strict=True)
        }
        assert [hypothesis.text for hypothesis in after] == sorted(before, key=lambda text: -expected[text])
        for hypothesis in after:
            assert hypothesis.score == pytest.approx(expected[hypothesis.text], rel=1e-5)


def test_several_models_may_choose_together(finished):
    judges = [Translator.load(finished), small_translator("recurrent")]
    texts = "cat red", "red", "red red cat dog"
    found = [[Hypothesis(text, tuple(text.split()), 0.0, 0.0) for text in texts]]
    source, weights = "red cat", [3.0, 1.0]
    alone = [{each.text: each for each in next(iter(rescored([source], found, judge)))} for judge in judges]
    (together,) = rescored([source, " "][:1], found, judges, weights=weights)
    assert [each.score for each in together] == sorted((each.score for each in together), reverse=True)
    for each in together:
        own = [several[each.text] for several in alone]
        assert each.score == pytest.approx((3 * own[0].score + own[1].score) / 4, abs=1e-5)
        log_p = (3 * own[0].log_probability + own[1].log_probability) / 4
        assert each.log_probability == pytest.approx(log_p, abs=1e-5)
    with pytest.raises(UserError, match="a positive number for each of the 2 models"):
        next(iter(rescored([source], found, judges, weights=[1.0])))


@pytest.mark.slow
def test_rescoring_as_a_command(finished, call):
    words = [finished, "--rescore", finished, "--rescore", finished, "--rescore-weights", "2", "1"]
    status, output, errors = call(decode_main, *words, "--n-best", "2", stdin=b"red cat runs\n")
    assert status == 0, errors
    assert len(output.splitlines()) == 2


PAIRS = [
    ("red cat runs", "runs cat red"),
    ("dog", "dog"),
    ("", "cat"),
    ("red cat", "dog dog runs red"),
    ("cat", "cat"),
]


def forced(translator, pairs):
    """log P of each token of the targets, by teacher forcing."""
    special, encode = translator.task.special, translator.tokenizers[0].encode
    sources, targets = (
        [np.array([*encode(text), special.eos]) for text in side] for side in zip(*pairs, strict=True)
    )
    read = np.full((2, len(pairs), 9), special.pad)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        read[0, row, : len(source)] = source
        read[1, row, : len(target)] = special.bos, *target[:-1]
    logits = np.asarray(translator.model.apply(translator.variables, *jnp.array(read)), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return [log_p[row, range(len(ids)), ids] for row, ids in enumerate(targets)]


def test_scores_of_pairs_are_those_of_teacher_forcing(finished, call, tmp_path, monkeypatch):
    monkeypatch.setattr(given_outputs, "WINDOW", 2)
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    for side, path in enumerate(files):
        path.write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    words = [finished, "--source", files[0], "--target", files[1]]
    status, output, errors = call(score_main, *words)
    assert status == 0, errors
    both = forced(Translator.load(finished), [*PAIRS, *(pair[::-1] for pair in PAIRS)])
    rows = [[float(number) for number in line.split("\t")] for line in output.splitlines()]
    for row, pair, expected in zip(rows, PAIRS, both[:5], strict=True):
        log_p, count = (expected.sum(), len(expected)) if all(pair) else (-np.inf, 0)
        assert row == pytest.approx([log_p / count if count else log_p, log_p, count], rel=1e-4)
    out = [tmp_path / name for name in ("scores", "kept.en", "kept.de")]
    words += ["--reverse", finished, "--output", out[0], "--output-source", out[1], "--output-target", out[2]]
    status, output, errors = call(score_main, *words, "--keep", 0.4)
    assert status == 0, errors
    assert "5 pairs scored" in errors
    assert "2 pairs of 5 kept, with scores of at least" in errors
    scores = []
    for index, line in enumerate(out[0].read_text().splitlines()):
        score, *row = map(float, line.split("\t"))
        if all(PAIRS[index]):
            a, b = (-log_p.mean() for log_p in both[index::5])
            assert score == pytest.approx(np.exp(-(abs(a - b) + (a + b) / 2)), rel=1e-4)
            assert [-row[0] / row[1], -row[2] / row[3]] == pytest.approx([a, b], rel=1e-4)
        scores.append(score)
    assert scores[2] == -np.inf
    best = sorted(sorted(range(5), key=lambda index: -scores[index])[:2])
    for side, path in enumerate(out[1:]):
        assert path.read_text().splitlines() == [PAIRS[index][side] for index in best]
    # the scores are there already
    monkeypatch.setattr(given_outputs, "scored_pairs", None)
    status, output, errors = call(score_main, *words, "--keep", 1, "--resume")
    assert status == 0, errors
    assert "4 pairs of 5 kept" in errors
    assert out[1].read_text().splitlines() == [source for source, _ in PAIRS if source]


def test_scoring_continues(finished):
    translator = Translator.load(finished)
    pairs = list(enumerate(PAIRS, 1))
    whole = list(scored_pairs([translator], pairs))
    np.testing.assert_allclose(list(scored_pairs([translator], pairs[3:])), whole[3:], rtol=1e-5)


def test_pairs_that_both_models_find_as_probable_are_the_best():
    assert dual_score(-4.0, 2, -6.0, 3) == pytest.approx(np.exp(-2))
    assert dual_score(-4.0, 2, -9.0, 3) == pytest.approx(np.exp(-1 - 2.5))
    assert dual_score(-4.0, 2) == -2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--keep", "0.5"], "--keep SHARE, --output-source FILE and --output-target FILE need each other"),
        (["--keep", "1.5"], "--keep must be in (0, 1]"),
        (["--output", "a.en"], "--output a.en is the file of --source"),
        (["--reverse", "nowhere"], "nowhere: no such run directory"),
        (["--target", "b.de"], "a.en has 1 line and b.de has 2: line i of one must translate line i of the"),
        (["--source-language", "en"], "--source-language: the texts of this model begin with no code"),
    ],
)
def test_scoring_says_what_is_wrong(finished, call, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    for name, text in (("a.en", "dog\n"), ("a.de", "dog\n"), ("b.de", "dog\ncat\n")):
        (tmp_path / name).write_text(text)
    status, output, errors = call(score_main, finished, "--source", "a.en", "--target", "a.de", *words)
    assert (status, output) == (2, "")
    assert message in errors
