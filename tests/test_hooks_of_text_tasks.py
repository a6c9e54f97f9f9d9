"""Search hooks that allow trees over the words of the source, and each label once."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import MODEL, SOURCES, hypotheses, random_variables

from transformer import BeamConfig
from transformer.data.trees import BracketKinds, read_tree
from transformer.decoding.hooks import Hooks, first_states
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.steering.structures import EachOnce, WellFormedTrees

SPECIAL = MODEL.config.special
PAD, EOS, UNK = SPECIAL.pad, SPECIAL.eos, SPECIAL.unk
SIZE = MODEL.config.vocab_size
OTHERS = [index for index in range(SIZE) if index not in (PAD, SPECIAL.bos, EOS, UNK)]
OPEN_A, OPEN_B, CLOSE, X, Y = OTHERS[:5]


def pieces(by_id):
    return [by_id.get(index, "") for index in range(SIZE)]


TARGET = pieces({OPEN_A: "(A", OPEN_B: "(B", CLOSE: ")", X: "x", Y: "y", UNK: "<unk>"})
SOURCE = pieces({OTHERS[0]: "x", OTHERS[1]: "y", OTHERS[2]: "z", OTHERS[3]: "(A", UNK: "<unk>"})
WORD = {OTHERS[0]: X, OTHERS[1]: Y, OTHERS[2]: UNK, OTHERS[3]: UNK, UNK: UNK}
HOOK = WellFormedTrees(SOURCE, TARGET, SPECIAL)


def outputs_left_by(hook, inputs, limit):
    """All outputs of at most so many tokens, with <eos>, that a hook leaves."""
    filtered, advance = jax.jit(hook.filter), jax.jit(hook.advance)
    outputs, states = set(), [((), first_states(hook, inputs, 1))]
    logits = jnp.zeros((1, 1, SIZE))
    for length in range(limit):
        extended = []
        for tokens, state in states:
            left = np.asarray(filtered(logits, state, jnp.array([limit - length])))[0, 0]
            for token in np.flatnonzero(np.isfinite(left)).tolist():
                if token == EOS:
                    outputs.add(tokens)
                elif length + 1 < limit:
                    extended.append(((*tokens, token), advance(jnp.array([[token]]), state)))
                else:
                    raise AssertionError(f"{tokens} cannot end in time")
        states = extended
    return outputs


def is_tree(tokens, words):
    try:
        tree = read_tree(" ".join(TARGET[token] for token in tokens))
    except ValueError:
        return False
    return list(tree.words()) == [TARGET[word] for word in words]


@pytest.mark.by_default("source3-7")
@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ((OTHERS[0],), 7),
        ((OTHERS[0], OTHERS[1]), 7),
        ((OTHERS[0], OTHERS[0]), 6),
        (
            (OTHERS[2], OTHERS[3], OTHERS[1]),
            7,
        ),  # two are no words of the target's vocabulary
        ((OTHERS[0],), 4),  # just enough
    ],
)
def test_exactly_the_trees_over_the_source_are_left(source, limit):
    inputs = {"source": jnp.array([[*source, EOS, PAD]])}
    words = [WORD[token] for token in source]
    tokens = OPEN_A, OPEN_B, CLOSE, X, Y, UNK
    expected = {
        output
        for length in range(limit)
        for output in itertools.product(tokens, repeat=length)
        if is_tree(output, words)
    }
    assert expected
    assert outputs_left_by(HOOK, inputs, limit) == expected


def has_kinds(tree, kinds, chain=1):
    """Whether a tree is as training trees with parts of speech are. Chains are those of first children."""
    if chain > kinds.longest_chain:
        return False
    if any(isinstance(child, str) for child in tree.children):
        parts = kinds.of_words.get(tree.children[0], kinds.parts_of_speech)
        return tree.is_preterminal and tree.label in kinds.parts_of_speech and tree.label in parts
    lengths = [chain + 1] + [1] * (len(tree.children) - 1)
    return tree.label in kinds.phrases and all(map(has_kinds, tree.children, [kinds] * 9, lengths))


@pytest.mark.by_default("source1-8-kinds1")
@pytest.mark.parametrize(
    ("source", "limit", "kinds"),
    [
        ((OTHERS[0],), 8, BracketKinds(("B",), ("A",), 3)),
        ((OTHERS[0],), 8, BracketKinds(("A", "B"), ("A",), 2)),
        ((OTHERS[0], OTHERS[1]), 9, BracketKinds(("A", "B"), ("A", "B"), 9)),
        ((OTHERS[0], OTHERS[1]), 11, BracketKinds(("A", "B"), ("A", "B"), 3, {"x": ("B",), "z": ("A",)})),
        ((OTHERS[0], OTHERS[0]), 11, BracketKinds(("B",), ("A",), 3)),
        ((OTHERS[0], OTHERS[1]), 9, BracketKinds(("B",), ("A",), 9)),  # just enough
    ],
)
def test_trees_have_the_brackets_of_the_training_trees(source, limit, kinds):
    inputs = {"source": jnp.array([[*source, EOS, PAD]])}
    words = [WORD[token] for token in source]
    brackets = {
        tokens
        for length in range(3, limit)
        for tokens in itertools.product((OPEN_A, OPEN_B, CLOSE, X), repeat=length)
        if tokens.count(CLOSE) * 2 == length - len(words) and tokens.count(X) == len(words)
    }
    outputs = set()
    for tokens in brackets:
        rest = iter(words)
        output = tuple(next(rest) if token == X else token for token in tokens)
        text = " ".join(TARGET[token] for token in output)
        if is_tree(output, words) and has_kinds(read_tree(text), kinds):
            outputs.add(output)
    assert outputs
    assert outputs_left_by(WellFormedTrees(SOURCE, TARGET, SPECIAL, kinds), inputs, limit) == outputs


def test_without_room_for_parts_of_speech_there_is_a_tree():
    hook = WellFormedTrees(SOURCE, TARGET, SPECIAL, BracketKinds(("B",), ("A",), 3))
    words = OTHERS[0], OTHERS[1]
    outputs = outputs_left_by(hook, {"source": jnp.array([[*words, EOS]])}, 8)
    assert outputs
    assert all(is_tree(tokens, [WORD[word] for word in words]) for tokens in outputs)


def test_kinds_of_brackets_of_a_treebank():
    trees = ["(S (NP (DT the ) (NN dog ) ) (VP (VBZ barks ) ) )", "(NN (NN dog ) )"]
    kinds = BracketKinds.of(trees)
    assert kinds == BracketKinds(("DT", "NN", "VBZ"), ("NN", "NP", "S", "VP"), 3)
    assert BracketKinds.of(trees * 5).of_words == {"dog": ("NN",)}
    assert BracketKinds.from_json(json.loads(json.dumps(kinds._asdict()))) == kinds
    for text in ("(NP the (NN dog ) )", "(NP (DT the ) dog )", "(NP the dog )"):
        assert BracketKinds.of([*trees, text]).parts_of_speech == ()


def test_a_limit_below_any_tree_leaves_an_output():
    inputs = {"source": jnp.array([[OTHERS[0], OTHERS[1], EOS]])}
    state = first_states(HOOK, inputs, 1)
    logits = jnp.zeros((1, 1, SIZE))
    for steps_left in (4, 3, 2):
        left = HOOK.filter(logits, state, jnp.array([steps_left]))
        assert np.isfinite(left).all() or (steps_left < 4 and np.isfinite(left).any())
        state = HOOK.advance(jnp.array([[X]]), state)
    only_end = outputs_left_by(HOOK, {"source": jnp.array([[EOS, PAD]])}, 5)
    assert only_end == {()}  # no words, no tree


def test_a_vocabulary_without_brackets_is_refused():
    with pytest.raises(ValueError, match="no brackets"):
        WellFormedTrees(SOURCE, SOURCE, SPECIAL)
    assert WellFormedTrees(SOURCE, TARGET, SPECIAL) == HOOK
    assert hash(WellFormedTrees(TARGET, TARGET, SPECIAL)) != hash(HOOK)


@functools.cache
def searched(hook, limit):
    search = AutoregressiveSearch(hooks=Hooks((hook,)))
    options = BeamConfig(beam_size=3, extra_length=limit, stop="exact")
    inputs = {"source": jnp.asarray(SOURCES)}
    return search(MODEL, random_variables(MODEL, 2), inputs, jnp.arange(len(SOURCES)), options)


@pytest.mark.by_default("6")
@pytest.mark.parametrize("extra", [3, 6])
def test_a_beam_search_finds_trees_only(extra):
    """The limit counts the source's tokens, so there is room for any number of brackets or for few."""
    every = pieces({index: TARGET[OTHERS[3 + index % 2]] for index in OTHERS} | {UNK: "<unk>"})
    found = searched(WellFormedTrees(every, TARGET, SPECIAL), extra)
    for row, source in enumerate(SOURCES):
        words = [
            UNK if token == UNK else OTHERS[3 + token % 2] for token in source if token in (*OTHERS, UNK)
        ]
        results = hypotheses(found, row, SPECIAL)
        assert results
        assert all(is_tree(tokens[:-1], words) for _, tokens in results)


def test_each_label_is_left_once():
    labels, limit = (X, Y, CLOSE), 5
    hook = EachOnce(labels, SIZE)
    outputs = outputs_left_by_any(hook, (*labels, OPEN_A), limit)
    expected = {
        output
        for length in range(limit)
        for output in itertools.product((*labels, OPEN_A), repeat=length)
        if all(output.count(label) < 2 for label in labels)
    }
    assert outputs == expected


def outputs_left_by_any(hook, tokens, limit):
    """As `outputs_left_by`, of some tokens, for a hook that allows longer outputs."""
    outputs, states = set(), [((), first_states(hook, {"source": jnp.zeros((1, 3), int)}, 1))]
    logits = jnp.zeros((1, 1, SIZE))
    for _ in range(limit):
        outputs |= {output for output, _ in states}
        extended = []
        for output, state in states:
            left = np.isfinite(np.asarray(hook.filter(logits, state, jnp.array([9]))))[0, 0]
            assert left[EOS]
            extended += [
                ((*output, token), hook.advance(jnp.array([[token]]), state))
                for token in tokens
                if left[token]
            ]
        states = extended
    return outputs


@pytest.mark.slow
def test_a_beam_search_repeats_no_label():
    hook = EachOnce(OTHERS, SIZE)
    found = searched(hook, 6)
    for row in range(len(SOURCES)):
        for _, tokens in hypotheses(found, row, SPECIAL):
            assert len(set(tokens) & set(OTHERS)) == len([token for token in tokens if token in OTHERS])
