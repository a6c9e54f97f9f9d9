"""A score that bears a program's name equals that program, where outputs are broken too."""

import itertools

import jiwer
import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from transformer.tasks.metrics.rouge import rouge
from transformer.tasks.metrics.scores import bleu, chrf
from transformer.tasks.metrics.spans import span_f1
from transformer.tasks.metrics.words import character_errors, word_errors

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
