"""Trees in brackets, and their scores as EVALB counts them."""

import random
from collections import Counter

import pytest

from transformer.data.trees import DEEPEST, Tree, linearised, read_tree
from transformer.tasks.metrics.bracketing import (
    bracketing_f1,
    count_brackets,
    different,
    tagging_accuracy,
    well_formed,
)

GOLD = "(S (A (P this)) (B (Q is) (A (R a) (T test))))"
PART = " (A (P this)) (B (Q is) (A (R a) (T test)))"
EVALB = (
    (GOLD, GOLD, (4, 4, 4), 4),
    (GOLD, "(S (A (P this)) (B (Q is) (C (R a) (T test))))", (3, 4, 4), 4),
    (GOLD, "(S (A (P this)) (B (Q is) (A (R a) (U test))))", (4, 4, 4), 3),
    (GOLD, "(S (C (P this)) (B (Q is) (A (R a) (U test))))", (3, 4, 4), 3),
    (GOLD, "(S (A (P this)) (B (Q is) (R a) (A (T test))))", (3, 4, 4), 4),
    (GOLD, "(S (A (P this) (Q is)) (A (R a) (T test)))", (2, 4, 3), 4),
    (GOLD, "(S (P this) (Q is) (R a) (T test))", (1, 4, 1), 4),
    (GOLD, "(S (A (P this)) (B (Q is) (A (A (R a) (T test)))))", (4, 4, 5), 4),
    (GOLD, "(S (A (P this)) (B (Q is) (A (A (A (A (A (R a) (T test))))))))", (4, 4, 8), 4),
    (GOLD, "(TOP (S (A (P this)) (B (Q is) (A (R a) (T test)))))", (4, 4, 4), 4),
    ("(S (A-SBJ-1 (P this)) (B-WHATEVER (Q is) (A (R a) (T test))))", GOLD, (4, 4, 4), 4),
    (f"(S{11 * PART})", f"(S{11 * PART})", (34, 34, 34), 44),
    (f"(S{PART} (-NONE- *))", f"(S{PART} (-NONE- *))", (4, 4, 4), 4),
    (f"(S{PART} (: *))", f"(S{PART} (: *))", (4, 4, 4), 4),
)
"""Of the sample that comes with EVALB, which is in the public domain: gold tree, tree to be scored, what
EVALB's own result has for matched, gold and test brackets, and the number of right tags."""
INVALID = (
    "",
    "(P this) (Q is) (R a) (T test)",
    "(S (A (P this)) (B (Q was) (A (R a) (T test))))",
    "(S (A (P this)) (B (Q is) (U not) (A (R a) (T test))))",
    "(S (A (P this)) (B (Q is) (A (R a) (T test)))",
)
"""No tree, or one of other words. In EVALB's result the second one has no brackets, others are skipped."""


@pytest.mark.parametrize(("gold", "test", "expected", "tags"), EVALB)
def test_brackets_are_those_that_evalb_counts_in_its_sample(gold, test, expected, tags):
    counts = count_brackets([test], [gold])
    assert (counts.right, counts.expected, counts.output) == expected
    words = counts.expected and len([word for word in read_tree(gold).words() if word != "*"])
    assert tagging_accuracy([test], [gold]).value == pytest.approx(100 * tags / words)


def test_scores_are_of_the_whole_corpus():
    right, expected, output = (sum(counts) for counts in zip(*(case[2] for case in EVALB), strict=True))
    tests, golds = [case[1] for case in EVALB], [case[0] for case in EVALB]
    precision, recall = 100 * right / output, 100 * right / expected
    score = bracketing_f1(tests, golds)
    assert score.value == pytest.approx(2 * precision * recall / (precision + recall))
    assert "7 trees complete, 0 invalid" in score.detail


@pytest.mark.parametrize("output", INVALID)
def test_an_invalid_output_has_no_brackets(output):
    counts = count_brackets([output, GOLD], [GOLD, GOLD])
    assert counts == (4, 4, 8, 1, 1)
    assert tagging_accuracy([output, GOLD], [GOLD, GOLD]).value == 50


def test_what_collins_parameters_remove():
    """Traces with the brackets around them, punctuation, functions; ADVP and PRT are the same."""
    trace = "(SBAR (-NONE- 0) (S (-NONE- *)))"
    gold = f"(TOP (S (NP-SBJ=2 (NNS dogs)) (VP (VBD ran) (ADVP (RP off)) {trace}) (. .)))"
    test = "( (S (NP (NNS dogs) (, .)) (VP (VBD ran) (PRT (RP off)))) )"
    assert count_brackets([test], [gold]) == (4, 4, 4, 1, 0)
    assert tagging_accuracy([test], [gold]).value == 100


QUOTED = "(S (NP (DT a) (`` ') (JJ perfect) ('' ') (NN site)) (VP (VBZ leads)))"
BUG = (
    (QUOTED, "(S (NP (NP (DT a) ('' ') (JJ perfect)) (POS ') (NN site)) (VP (VBZ leads)))", (3, 3, 4), 4),
    (
        QUOTED,
        "(S (NP (DT a) (CD ') (JJ perfect)) (VP (VBZ ') (NP (NN site)) (VP (VBZ leads))))",
        (2, 3, 5),
        4,
    ),
)
"""Trees with mistakes as in the sample of bad outputs that comes with EVALB, whose result has an F1 of 60.17:
gold tree, tree to be scored, matched, gold and test brackets, right tags."""


@pytest.mark.parametrize(("gold", "test", "expected", "tags"), BUG)
def test_a_quote_with_a_wrong_tag_stands_in_both_trees(gold, test, expected, tags):
    """As EVALB reinserts it."""
    counts = count_brackets([test], [gold])
    assert (counts.right, counts.expected, counts.output) == expected
    assert f"{tags} of " in tagging_accuracy([test], [gold]).signature


def test_a_wrong_tag_of_a_sign_does_not_cost_the_sentence():
    """EVALB would skip it, as its words without punctuation are others than those of the reference."""
    gold = "(TOP (S (NP (NNS dogs)) (, ,) (VP (VBD ran)) (. .)))"
    for test in (
        gold.replace("(, ,)", "(NN ,)"),
        gold.replace("(NNS dogs)", "(: dogs)").replace("(. .)", "(X .)"),
    ):
        assert count_brackets([test], [gold]) == (3, 3, 3, 1, 0)
    assert tagging_accuracy([gold.replace("(NNS dogs)", "(: dogs)")], [gold]).value == 50
    assert different(read_tree(gold.replace("(, ,)", "(NN ,)")), read_tree(gold)) == (
        frozenset({4}),
        frozenset({4}),
    )


def random_tree(chance, words):
    label = chance.choice("ABC")
    if len(words) == 1:
        tree = Tree(chance.choice("xyz"), (words[0],))
        return Tree(label, (tree,)) if chance.random() < 0.4 else tree
    cut = chance.randint(1, len(words) - 1)
    return Tree(label, (random_tree(chance, words[:cut]), random_tree(chance, words[cut:])))


def spans_of(text):
    """Label and character range, without spaces, of every bracket with a bracket in it: by counting signs."""
    spans, opened, words = Counter(), [], 0
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            opened.append([None, words, False])
            for outer in opened[:-1]:
                outer[2] = True
        elif token == ")":
            label, start, has_brackets = opened.pop()
            if has_brackets:
                spans[label, start, words] += 1
        elif opened[-1][0] is None:
            opened[-1][0] = token
        else:
            words += 1
    return spans


def test_brackets_of_random_trees_are_those_of_another_way_to_count():
    chance = random.Random(0)
    outputs, golds = [], []
    right = output = expected = 0
    for _ in range(200):
        words = [f"w{n}" for n in range(chance.randint(1, 8))]
        trees = [str(random_tree(chance, words)) for _ in range(2)]
        one, other = map(spans_of, trees)
        right, output, expected = (
            right + (one & other).total(),
            output + one.total(),
            expected + other.total(),
        )
        outputs.append(trees[0])
        golds.append(trees[1])
    assert count_brackets(outputs, golds)[:3] == (right, output, expected)
    assert bracketing_f1(outputs, golds).value == pytest.approx(200 * right / (output + expected))


def test_trees_are_read_as_they_are_written():
    chance = random.Random(1)
    for length in range(1, 9):
        tree = random_tree(chance, [f"w{n}" for n in range(length)])
        assert read_tree(str(tree)) == read_tree(linearised(tree)) == tree
        assert list(tree.words()) == [f"w{n}" for n in range(length)]
    assert linearised(read_tree("(S (NP (DT the) (NN dog)))")) == "(S (NP (DT the ) (NN dog ) ) )"
    assert read_tree("( (S (X x)) )").label == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NP x)", "not closed"),
        ("(S (NP x)))", "not opened"),
        ("(S (NP))", "NP is empty"),
        ("()", "empty"),
        ("dog", "not one tree"),
        ("", "not one tree"),
        ("(S x) y", "not one tree"),
        ("(S x) (S x)", "not one tree"),
        ("(A " * 100_000, f"more than {DEEPEST}"),
    ],
)
def test_what_is_no_tree(text, message):
    with pytest.raises(ValueError, match=message):
        read_tree(text)
    assert well_formed([text, GOLD]).value == 50


def test_a_deep_tree():
    text = "(A " * (DEEPEST - 1) + "(X x)" + ")" * (DEEPEST - 1)
    assert count_brackets([text], [text])[:3] == (199, 199, 199)
