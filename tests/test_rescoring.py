"""Other models choose among the outputs of a search."""

import pytest
from small_translator import small_translator

from transformer import Translator, UserError
from transformer.commands.decode import decode_main
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
