"""Scores of parse trees: parts of speech, and labelled bracketing as EVALB counts it (Sekine and Collins
1997).

With the parameters of COLLINS.prm: constituents are a label and its first and last word. Parts of speech are
no constituents. Punctuation and traces are removed with the brackets that have nothing else, brackets of the
root are not counted, labels are compared without functions (NP-SBJ is NP), and ADVP is PRT.

EVALB skips an output that is no tree or has other words than its reference. Here it counts as one without
brackets, and all its tags as wrong: otherwise a model would gain by failing on difficult sentences.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer.data.trees import TRACE, Tree, read_tree, without_function
from transformer.tasks.metrics.scores import Score, percentage

BRACKETING_F1 = percentage("bracketing_f1", "bracketing F1")
BRACKETING_PRECISION = percentage("bracketing_precision", "bracketing precision")
BRACKETING_RECALL = percentage("bracketing_recall", "bracketing recall")
TAGGING_ACCURACY = percentage("tagging_accuracy", "tagging accuracy")
WELL_FORMED = percentage("well_formed", "well-formed trees")

PUNCTUATION = frozenset((",", ":", "``", "''", "."))
"""Parts of speech that are removed with their words."""
ROOTS = frozenset(("", "TOP", "ROOT", "S1"))
"""Labels that are not counted: COLLINS.prm has TOP; others are those of other treebanks and parsers."""
EQUIVALENT = {"PRT": "ADVP"}


class Bracket(NamedTuple):
    """A constituent."""

    label: str
    start: int
    """The number of words before it."""
    stop: int


class Parse(NamedTuple):
    """What is compared of a tree."""

    words: list[str]
    """Without those that are removed."""
    tags: list[str]
    brackets: Counter[Bracket]
    opened: list[tuple[bool, Bracket] | None]
    """Every bracket in the order in which they open: whether it is a part of speech, and what it is. None: it
    is not compared."""


class Counts(NamedTuple):
    """Brackets and trees of a corpus."""

    right: int
    output: int
    expected: int
    complete: int
    """Sentences with all brackets right, and no others."""
    invalid: int
    """Outputs that are no tree, or one of other words."""


def bracketing_f1(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """F1 of labelled brackets of a corpus, as a percentage.

    Args:
      hypotheses: an output for each sentence, in brackets.
      references: its tree.

    Raises:
      ValueError: a reference is no tree.
    """
    counts = count_brackets(hypotheses, references)
    return _score("F1", 2 * counts.right, counts.output + counts.expected, counts)


def bracketing_precision(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The percentage of the output's brackets that are right. Arguments as of `bracketing_f1`."""
    counts = count_brackets(hypotheses, references)
    return _score("precision", counts.right, counts.output, counts)


def bracketing_recall(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The percentage of the references' brackets that were output. Arguments as of `bracketing_f1`."""
    counts = count_brackets(hypotheses, references)
    return _score("recall", counts.right, counts.expected, counts)


def tagging_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The percentage of words, without punctuation, with the right part of speech. Arguments as of
    `bracketing_f1`."""
    right = total = 0
    for parse, expected in _parsed(hypotheses, references):
        total += len(expected.tags)
        if parse:
            right += sum(tag == other for tag, other in zip(parse.tags, expected.tags, strict=True))
    share = 100 * right / max(total, 1)
    signature = f"{right} of {total} right"
    return Score(share, signature, f"tagging accuracy = {share:.2f} ({signature})")


def well_formed(hypotheses: Sequence[str]) -> Score:
    """The percentage of outputs that are a tree."""
    count = sum(_tree(text) is not None for text in hypotheses)
    share = 100 * count / max(len(hypotheses), 1)
    signature = f"{count} of {len(hypotheses)} are trees"
    return Score(share, signature, f"well-formed trees = {share:.2f} ({signature})")


def count_brackets(hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
    """Counts brackets. Arguments as of `bracketing_f1`."""
    total = Counts(0, 0, 0, 0, 0)
    for parse, expected in _parsed(hypotheses, references):
        brackets = parse.brackets if parse else Counter[Bracket]()
        right = (brackets & expected.brackets).total()
        is_complete = parse is not None and brackets == expected.brackets
        counts = (right, brackets.total(), expected.brackets.total(), is_complete, parse is None)
        total = Counts(*map(sum, zip(total, counts, strict=True)))
    return total


def parse_of(tree: Tree) -> Parse:
    """The words, parts of speech and brackets of a tree that are compared."""
    parse = Parse([], [], Counter(), [])
    _add(tree, parse)
    return parse


def different(tree: Tree, other: Tree) -> frozenset[int]:
    """The brackets of a tree, parts of speech among them, that another tree does not have. All that are
    compared, if the words differ. They are counted from 0 in the order in which they open."""
    parse, expected = parse_of(tree), parse_of(other)
    left = Counter(filter(None, expected.opened if parse.words == expected.words else []))
    marked = set()
    for index, bracket in enumerate(parse.opened):
        if bracket is not None:
            if left[bracket] <= 0:
                marked.add(index)
            left[bracket] -= 1
    return frozenset(marked)


def _add(tree: Tree, parse: Parse) -> None:
    label = without_function(tree.label)
    start, index = len(parse.words), len(parse.opened)
    parse.opened.append(None)
    if tree.is_preterminal:
        if label not in PUNCTUATION and label != TRACE:
            parse.words.extend(tree.words())
            parse.tags.append(label)
            parse.opened[index] = True, Bracket(label, start, start + 1)
        return
    for child in tree.children:
        if isinstance(child, str):  # a word without a part of speech
            parse.words.append(child)
            parse.tags.append("")
        else:
            _add(child, parse)
    stop = len(parse.words)
    if stop > start and label not in ROOTS:
        bracket = Bracket(EQUIVALENT.get(label, label), start, stop)
        parse.brackets[bracket] += 1
        parse.opened[index] = False, bracket


def _parsed(hypotheses: Sequence[str], references: Sequence[str]) -> Iterator[tuple[Parse | None, Parse]]:
    """The parse of each output, None if it is invalid, and that of its reference."""
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        expected, tree = parse_of(read_tree(reference)), _tree(hypothesis)
        parse = parse_of(tree) if tree else None
        yield parse if parse and parse.words == expected.words else None, expected


def _tree(text: str) -> Tree | None:
    try:
        return read_tree(text)
    except ValueError:
        return None


def _score(name: str, numerator: int, denominator: int, counts: Counts) -> Score:
    value = 100 * numerator / max(denominator, 1)
    detail = (
        f"bracketing {name} = {value:.2f} ({counts.right} right, {counts.output} output, {counts.expected} "
        f"expected; {counts.complete} trees complete, {counts.invalid} invalid)"
    )
    return Score(value, f"evalb:COLLINS.prm|invalid:{counts.invalid} as empty", detail)
