"""Scores of parse trees: parts of speech, and labelled bracketing with the parameters of COLLINS.prm (Sekine
and Collins 1997).

Constituents are a label and its first and last word. Parts of speech are no constituents. Punctuation and
traces are removed with the brackets that have nothing else, brackets of the root are not counted, labels are
compared without functions (NP-SBJ is NP), and ADVP is PRT.

The counts of a sentence are those of the program EVALB if the output is valid to it. It removes punctuation
by the tags of each tree. If the words that are left differ, since one tree has another tag for a sign, the
sign is removed from neither, as EVALB does with quotes (`QUOTE_LABEL` of new.prm); it would skip a sentence
with another wrong tag of a comma. An output that is no tree, or that has other words, counts as one without
brackets, and all its tags as wrong: otherwise a model would gain by failing on difficult sentences.
"""

import itertools
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from transformer.data.trees import TRACE, Tree, read_tree, without_function
from transformer.tasks.metrics.scores import Score, percentage, share_score

BRACKETING_F1 = percentage("bracketing_f1", "bracketing F1")
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


Opened = tuple[bool, Bracket] | None
"""A bracket: whether it is a part of speech, and what it is. None: it is not compared."""


class Parse(NamedTuple):
    """What is compared of a tree."""

    words: list[str]
    """The words that are compared, without those that are removed."""
    tags: list[str]
    brackets: Counter[Bracket]
    opened: list[Opened]
    """Every bracket, in the order in which they open."""


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
    value = 200 * counts.right / max(counts.output + counts.expected, 1)
    detail = (
        f"bracketing F1 = {value:.2f} ({counts.right} right, {counts.output} output, {counts.expected} "
        f"expected; {counts.complete} trees complete, {counts.invalid} invalid)"
    )
    return Score(value, f"COLLINS.prm|punctuation:of both|invalid:{counts.invalid} as empty", detail)


def tagging_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The percentage of words, without punctuation, with the right part of speech. Arguments as of
    `bracketing_f1`."""
    right = total = 0
    for parse, expected in _parsed(hypotheses, references):
        total += len(expected.tags)
        if parse:
            right += sum(tag == gold for tag, gold in zip(parse.tags, expected.tags, strict=True))
    return share_score("tagging accuracy", right, total, "right")


def well_formed(hypotheses: Sequence[str]) -> Score:
    """The percentage of outputs that are a tree."""
    count = sum(tree_of(text) is not None for text in hypotheses)
    return share_score("well-formed trees", count, len(hypotheses), "are trees")


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


def parse_of(tree: Tree, removed: Container[int]) -> Parse:
    """What is compared of a tree.

    Args:
      tree: the tree.
      removed: the words that are not compared, counted from 0 without traces.
    """
    parse = Parse([], [], Counter(), [])
    _add(tree, parse, removed, itertools.count())
    return parse


def punctuation(tree: Tree) -> frozenset[int]:
    """The words of a tree that are punctuation by their tags, counted from 0 without traces."""
    return frozenset(index for index, (tag, _) in enumerate(_leaves(tree)) if tag in PUNCTUATION)


def compared(output: Tree, reference: Tree) -> tuple[Parse, Parse] | None:
    """What is compared of an output and its reference. None: their words differ."""
    signs = punctuation(output), punctuation(reference)
    parse, expected = parse_of(output, signs[0]), parse_of(reference, signs[1])
    if parse.words == expected.words:
        return parse, expected
    whole = [[word for _, word in _leaves(tree)] for tree in (output, reference)]
    shared = signs[0] & signs[1]
    return (parse_of(output, shared), parse_of(reference, shared)) if whole[0] == whole[1] else None


def different(output: Tree, reference: Tree) -> tuple[frozenset[int], frozenset[int]]:
    """The brackets of an output, parts of speech among them, that its reference does not have, and those that
    only the reference has. All that are compared, if the words differ. They are counted from 0 in the order
    in which they open."""
    parses = compared(output, reference)
    if parses is None:
        output_parse, reference_parse = (parse_of(tree, punctuation(tree)) for tree in (output, reference))
        return _without(output_parse.opened, []), _without(reference_parse.opened, [])
    parse, expected = parses
    return _without(parse.opened, expected.opened), _without(expected.opened, parse.opened)


def _without(opened: Sequence[Opened], counterparts: Sequence[Opened]) -> frozenset[int]:
    """The brackets that are not among others, each of which counts once."""
    unmatched = Counter(filter(None, counterparts))
    marked = set()
    for index, bracket in enumerate(opened):
        if bracket is not None:
            if unmatched[bracket] <= 0:
                marked.add(index)
            unmatched[bracket] -= 1
    return frozenset(marked)


def _leaves(tree: Tree) -> Iterator[tuple[str, str]]:
    """The words, without traces, each after its part of speech; empty if it has none."""
    label = without_function(tree.label)
    for child in tree.children:
        if not isinstance(child, str):
            yield from _leaves(child)
        elif not tree.is_preterminal:
            yield "", child
        elif label != TRACE:
            yield label, child


def _add(tree: Tree, parse: Parse, removed: Container[int], positions: Iterator[int]) -> None:
    label = without_function(tree.label)
    start, index = len(parse.words), len(parse.opened)
    parse.opened.append(None)
    if tree.is_preterminal:
        if label != TRACE and next(positions) not in removed:
            parse.words.extend(tree.words())
            parse.tags.append(label)
            parse.opened[index] = True, Bracket(label, start, start + 1)
        return
    for child in tree.children:
        if not isinstance(child, str):
            _add(child, parse, removed, positions)
        elif next(positions) not in removed:  # a word without a part of speech
            parse.words.append(child)
            parse.tags.append("")
    stop = len(parse.words)
    if stop > start and label not in ROOTS:
        bracket = Bracket(EQUIVALENT.get(label, label), start, stop)
        parse.brackets[bracket] += 1
        parse.opened[index] = False, bracket


def _parsed(hypotheses: Sequence[str], references: Sequence[str]) -> Iterator[tuple[Parse | None, Parse]]:
    """The parse of each output, None if it is invalid, and that of its reference."""
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        gold, tree = read_tree(reference), tree_of(hypothesis)
        parses = compared(tree, gold) if tree else None
        yield parses or (None, parse_of(gold, punctuation(gold)))


def tree_of(text: str) -> Tree | None:
    """The tree in brackets, if a text is one."""
    try:
        return read_tree(text)
    except ValueError:
        return None
