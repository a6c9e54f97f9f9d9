"""A score that bears a program's name equals that program, where outputs are broken too."""

import collections
import itertools
import re
import string

import jiwer
import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF
from sklearn.metrics import accuracy_score, f1_score

from transformer.tasks.metrics.answers import answer_exact, answer_f1, rouge
from transformer.tasks.metrics.error_rates import character_errors, word_errors
from transformer.tasks.metrics.labels import label_accuracy, macro_f1, micro_f1, span_f1
from transformer.tasks.metrics.scores import bleu, chrf
from transformer.translator.calibration import calibration_error

REFERENCES = ["The dog is old.", "It runs, and it sleeps!", "a b c", "one", "He said: 'no' (twice)."]
BROKEN = {
    "right": REFERENCES,
    "empty": [""] * 5,
    "one is empty": ["The dog is old.", "", "a b c", "one", "He"],
    "loops": [f"{text} " * 9 for text in REFERENCES],
    "cut": [text[:3] for text in REFERENCES],
    "other script": ["हिन्दी का", "日本。猫", "की", "안녕", "ที่"],
    "signs": ["...", "!!! ???", "\u200b", "( ) [", "''"],
    "white space": ["\u3000The\u00a0dog ", "It\truns", " a  b ", "one\u2028", "\u00ad"],
    "capitals": [text.upper() for text in REFERENCES],
}


@pytest.mark.parametrize("name", BROKEN)
def test_scores_of_texts_are_those_of_their_programs(name):
    outputs = BROKEN[name]
    assert bleu(outputs, REFERENCES).value == BLEU().corpus_score(outputs, [REFERENCES]).score
    assert chrf(outputs, REFERENCES).value == CHRF().corpus_score(outputs, [REFERENCES]).score
    for kind in ("1", "2", "L"):
        scorer = RougeScorer([f"rouge{kind}"])
        scores = [
            scorer.score(*pair)[f"rouge{kind}"].fmeasure for pair in zip(REFERENCES, outputs, strict=True)
        ]
        assert rouge(outputs, REFERENCES, kind).value == pytest.approx(100 * np.mean(scores))
    assert word_errors(outputs, REFERENCES).value == pytest.approx(100 * jiwer.wer(REFERENCES, outputs))
    assert character_errors(outputs, REFERENCES).value == pytest.approx(100 * jiwer.cer(REFERENCES, outputs))


LABELS = ["O", "B-A", "I-A", "B-B", "I-B", "E-A", "S-B", "I-C", "E-C"]


def spans_of_conlleval(labels):
    """The spans by the rules of conlleval.pl (Tjong Kim Sang and Buchholz 2000), word by word."""
    spans, begin = set(), None
    for index, (before, here) in enumerate(itertools.pairwise(["O", *labels, "O"])):
        (sign, _, kind), (next_sign, _, next_kind) = before.partition("-"), here.partition("-")
        is_other = sign != "O" and kind != next_kind
        if begin is not None and (is_other or sign in "ES" or next_sign in "BSO"):
            spans.add((begin, index, kind))
            begin = None
        if next_sign in "BS" or (next_sign in "IE" and (sign in "OES" or is_other)):
            begin = index
    return spans


@pytest.mark.parametrize("seed", range(8))
def test_f1_of_spans_is_that_of_conlleval_whatever_the_labels(seed):
    random = np.random.default_rng(seed)
    expected, outputs = (
        [list(map(str, random.choice(labels, 12))) for _ in range(6)] for labels in (LABELS[:5], LABELS)
    )
    pairs = [tuple(map(spans_of_conlleval, pair)) for pair in zip(outputs, expected, strict=True)]
    right = sum(len(found & true) for found, true in pairs)
    total = sum(len(found) + len(true) for found, true in pairs)
    assert right
    assert span_f1(outputs, expected).value == pytest.approx(200 * right / total)


def words_of_squad(text):
    """The words of an answer by the rules of evaluate-v2.0.py (Rajpurkar et al. 2018), step by step."""
    lower = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", lower).split()


def f1_of_squad(text, answer):
    words, expected = words_of_squad(text), words_of_squad(answer)
    if not words or not expected:
        return int(words == expected)
    same = sum((collections.Counter(words) & collections.Counter(expected)).values())
    if not same:
        return 0
    precision, recall = same / len(words), same / len(expected)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("name", BROKEN)
def test_scores_of_answers_are_those_of_squad(name):
    """With several answers, and questions that have none."""
    answers = [("The dog is old.", "dog"), ("",), ("a", "c"), ("An ONE",), ("no, twice", "He said")]
    pairs = list(zip(BROKEN[name], answers, strict=True))
    exact = [max(words_of_squad(text) == words_of_squad(one) for one in several) for text, several in pairs]
    f1 = [max(f1_of_squad(text, one) for one in several) for text, several in pairs]
    assert answer_exact(BROKEN[name], answers).value == pytest.approx(100 * np.mean(exact))
    assert answer_f1(BROKEN[name], answers).value == pytest.approx(100 * np.mean(f1))


EXPECTED = ["a", "b", "c", "a", "b", "b"]
BROKEN_LABELS = {
    "right": EXPECTED,
    "empty": [""] * 6,
    "always one": ["b"] * 6,
    "always a rare one": ["c"] * 6,
    "unknown": ["d", "A", " a", "a b", "\u200b", "a,b"],
    "some unknown": ["a", "d", "c", "", "b", "a"],
}


@pytest.mark.parametrize("name", BROKEN_LABELS)
def test_scores_of_labels_are_those_of_scikit_learn(name):
    outputs, options = BROKEN_LABELS[name], {"labels": ["a", "b", "c"], "zero_division": 0}
    accuracy = accuracy_score(EXPECTED, outputs)
    assert label_accuracy(outputs, EXPECTED).value == pytest.approx(100 * accuracy)
    for score, average in ((micro_f1, "micro"), (macro_f1, "macro")):
        expected = f1_score(EXPECTED, outputs, average=average, **options)
        assert score(outputs, EXPECTED).value == pytest.approx(100 * expected)


@pytest.mark.parametrize("probabilities", [np.linspace(0, 1, 21), np.full(21, 1.0), np.full(21, 0.5)])
def test_calibration_errors_are_those_of_guo(probabilities):
    """Of temperature_scaling (Guo et al. 2017), at the bounds of its intervals too."""
    is_right = np.arange(21) % 3 > 0
    bounds, error = np.linspace(0, 1, 11), 0.0
    for lower, upper in itertools.pairwise(bounds):
        inside = (probabilities > lower) & (probabilities <= upper)
        if inside.any():
            error += inside.mean() * abs(probabilities[inside].mean() - is_right[inside].mean())
    assert calibration_error(is_right, probabilities) == pytest.approx(error)
