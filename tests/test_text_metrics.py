"""Scores of text tasks: several references, ROUGE, answers, labels."""

import itertools
import random
import re
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from sklearn import metrics as sklearn_metrics

from transformer import UserError
from transformer.tasks.metrics import labels
from transformer.tasks.metrics.answers import answer_exact, answer_f1, normalised, rouge
from transformer.tasks.metrics.scores import bleu, chrf, exact_match

OUTPUTS = ["the cat sat on the mat", "a dog barks at night", "it rains", "we saw two birds there"]
ONE = ["the cat is on the mat", "the dog barks all night", "it rains", "we saw three birds"]
SEVERAL = [
    ["the cat is on the mat", "there is a cat on the mat", "the cat sat there"],
    "the dog barks all night",
    ["it is raining", "it rains"],
    ["we saw three birds", "two birds were there"],
]


def repeated(references):
    """Streams in which each sentence has three references: the first one stands for what it lacks. A repeated
    reference changes neither the highest count of an n-gram nor the best score."""
    lists = [[texts] if isinstance(texts, str) else texts for texts in references]
    return [[texts[n] if n < len(texts) else texts[0] for texts in lists] for n in range(3)]


# --- Several references


def test_a_list_of_one_reference_is_a_reference():
    for score in (bleu, chrf, exact_match):
        assert score(OUTPUTS, [[text] for text in ONE]) == score(OUTPUTS, ONE)


def test_sentences_may_have_different_numbers_of_references():
    scores = bleu(OUTPUTS, SEVERAL), chrf(OUTPUTS, SEVERAL)
    expected = (
        sacrebleu.corpus_bleu(OUTPUTS, repeated(SEVERAL)),
        sacrebleu.corpus_chrf(OUTPUTS, repeated(SEVERAL)),
    )
    for score, one in zip(scores, expected, strict=True):
        assert score.value == pytest.approx(one.score)
        assert "nrefs:var" in score.signature
    assert bleu(OUTPUTS, SEVERAL).value > bleu(OUTPUTS, ONE).value
    assert exact_match(OUTPUTS, SEVERAL).value == 25
    assert exact_match(OUTPUTS[:1], ["the cat"]).value == 0  # not a part of it


def test_a_sentence_without_references_is_named():
    with pytest.raises(UserError, match="output 2 has no reference"):
        bleu(OUTPUTS[:2], ["a", []])


# --- ROUGE


def words_of(text):
    return re.findall("[a-z0-9]+", text.lower())


def subsequence(one, other):
    """The length of the longest common subsequence, by trying all."""
    for length in range(len(one), 0, -1):
        for chosen in itertools.combinations(one, length):
            rest = iter(other)
            if all(word in rest for word in chosen):
                return length
    return 0


def overlap(one, other, n):
    counts = [Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (one, other)]
    return (counts[0] & counts[1]).total()


def f1(shared, output, expected):
    return 2 * shared / (output + expected) if output + expected else 0.0


@pytest.mark.parametrize("kind", ["1", "2", "L"])
@pytest.mark.parametrize("references", [ONE, SEVERAL])
def test_rouge_by_hand(kind, references):
    best = []
    for output, texts in zip(map(words_of, OUTPUTS), references, strict=True):
        scores = []
        for text in map(words_of, [texts] if isinstance(texts, str) else texts):
            if kind == "L":
                scores.append(f1(subsequence(output, text), len(output), len(text)))
            else:
                n = int(kind)
                scores.append(f1(overlap(output, text, n), len(output) - n + 1, len(text) - n + 1))
        best.append(max(scores))
    score = rouge(OUTPUTS, references, kind)
    assert score.value == pytest.approx(100 * np.mean(best))
    assert ("nrefs:var" if references is SEVERAL else "nrefs:1") in score.signature


def test_rouge_of_a_published_example():
    """Lin 2004, section 3: "police killed the gunman", with beta 1: 3/4 and 2/4 are common subsequences."""
    reference = ["police killed the gunman"]
    assert rouge(["police kill the gunman"], reference, "L").value == pytest.approx(75)
    assert rouge(["the gunman kill police"], reference, "L").value == pytest.approx(50)
    assert rouge(["the gunman police killed"], reference, "L").value == pytest.approx(50)


def test_rouge_counts_words_of_all_scripts():
    """rouge-score itself would find no words in Chinese, and break German words at their umlauts."""
    score = rouge(["我喜欢猫", "der Bär schläft"], ["我喜欢狗", "der Bar schläft"], "1")
    assert score.value == pytest.approx(100 * (3 / 4 + 2 / 3) / 2)
    assert "tok:all-scripts" in score.signature
    assert "tok:rouge-score" in rouge(["a"], ["b"], "1").signature


def test_rouge_of_nothing():
    assert rouge([], [], "1").value == 0
    assert rouge(["", "a"], ["a", ["", "a"]], "L").value == 50


# --- Answers


def test_answers_are_compared_without_case_punctuation_and_articles():
    assert normalised(" The  Cat's, an apple-pie!") == "cats applepie"
    assert normalised("a") == ""
    assert normalised("Theatre") == "theatre"


@pytest.mark.parametrize(
    ("answer", "references", "exact", "expected"),
    [
        ("the Eiffel Tower", ["Eiffel Tower!"], 100, 100),
        ("in the red house", ["red house", "the house"], 0, 80),  # 2 of 3 words, 2 of 2
        ("four four two", ["four two two"], 0, 200 / 3),  # two words in common
        ("garden", ["kitchen"], 0, 0),
        ("", "", 100, 100),  # rightly without an answer
        ("", ["kitchen"], 0, 0),
        ("kitchen", "", 0, 0),
        ("the", "", 100, 100),
    ],
)
def test_answers_by_hand(answer, references, exact, expected):
    assert answer_exact([answer], [references]).value == pytest.approx(exact)
    assert answer_f1([answer], [references]).value == pytest.approx(expected)


def restated(answer, reference):
    """SQuAD's definition once more: sorted lists of words, precision and recall."""
    lists = []
    for text in (answer, reference):
        letters = "".join(c for c in text.lower() if c not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
        lists.append(sorted(word for word in letters.split() if word not in ("a", "an", "the")))
    one, other = lists
    if not one or not other:
        return float(one == other)
    common, rest = 0, list(other)
    for word in one:
        if word in rest:
            rest.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(one), common / len(other)
    return 2 * precision * recall / (precision + recall)


def test_answers_are_scored_as_squads_definition_restated():
    chance = random.Random(0)
    words = ["the", "A", "an", "cat", "Cat.", "dog", "dogs'", "on", "two,", "-"]
    answers = [" ".join(chance.choices(words, k=chance.randint(0, 4))) for _ in range(300)]
    references = [
        [" ".join(chance.choices(words, k=chance.randint(0, 4))) for _ in range(chance.randint(1, 3))]
        for _ in range(300)
    ]
    expected = [max(restated(a, r) for r in some) for a, some in zip(answers, references, strict=True)]
    assert answer_f1(answers, references).value == pytest.approx(100 * np.mean(expected))


# --- Labels


def drawn(seed, names, count=200):
    return random.Random(seed).choices(names, k=count)


def test_labels_are_scored_as_in_scikit_learn():
    references, outputs = drawn(0, "aaabbc"), drawn(1, "aabbcdx")  # d and x are no labels
    known = ["a", "b", "c"]
    for average, score in (("micro", labels.micro_f1), ("macro", labels.macro_f1)):
        expected = sklearn_metrics.f1_score(
            references, outputs, labels=known, average=average, zero_division=0
        )
        assert score(outputs, references).value == pytest.approx(100 * expected)
    expected = sklearn_metrics.accuracy_score(references, outputs)
    assert labels.label_accuracy(outputs, references).value == pytest.approx(100 * expected)


def test_the_confusion_is_that_of_scikit_learn():
    references, outputs = drawn(0, "aaabbc"), drawn(1, "aabbcdd")
    counted = labels.confusion(outputs, references)
    assert counted.labels == ["a", "b", "c"]
    expected = sklearn_metrics.confusion_matrix(references, outputs, labels=["a", "b", "c", "d"])
    np.testing.assert_array_equal(counted.counts, expected[:3])
    with pytest.raises(ValueError, match="'c' is not among the labels"):
        labels.confusion(outputs, references, ["a", "b"])


def test_sets_of_labels_are_scored_as_in_scikit_learn():
    chance, names = random.Random(0), ["joy", "fear", "anger", "pride", "never"]
    sets = [[[name for name in names[:-1] if chance.random() < 0.4] for _ in range(200)] for _ in range(2)]
    outputs, references = sets
    matrices = [np.array([[name in some for name in names] for some in each], int) for each in sets]
    for average, score in (("micro", labels.micro_f1), ("macro", labels.macro_f1)):
        expected = sklearn_metrics.f1_score(matrices[1], matrices[0], average=average, zero_division=0)
        assert score(outputs, references, names).value == pytest.approx(100 * expected)
    expected = sklearn_metrics.accuracy_score(matrices[1], matrices[0])
    assert labels.label_accuracy(outputs, references).value == pytest.approx(100 * expected)


def test_a_label_that_is_output_twice_counts_once():
    assert labels.micro_f1([["a", "a", "b"]], [["b", "a"]]).value == 100
    assert labels.label_accuracy([["b", "a", "a"]], [{"a", "b"}]).value == 100


def test_labels_of_nothing():
    assert labels.micro_f1([], []).value == labels.macro_f1([], []).value == 0
    assert labels.label_accuracy([[]], [[]]).value == 100
