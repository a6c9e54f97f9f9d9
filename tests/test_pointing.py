"""CopyNet and the pointer network, and the corpora to point in."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from reference_search import random_variables
from test_copying import CONFIG, EOS, PAD, SIZE, SOURCE, TARGET, A, B

from transformer import UserError
from transformer.config.model import SpecialIds
from transformer.data.built_in import copying
from transformer.decoding.beam import beam_search
from transformer.model.encoder_decoder import decoder_input
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.copying.system import CopyingTransformer, copying_scores, extended_ids, forced

OUTPUTS = {
    "copynet": {"output": "copynet"},
    "pointer": {"output": "pointer"},
    "once": {"output": "pointer", "once": True},
}
WORDS = jnp.asarray([[4, A, 5, B, A, EOS], [5, 4, EOS, PAD, PAD, PAD]])
ANSWERS = jnp.asarray([[A, 5, B, 4, EOS, PAD], [4, 5, EOS, PAD, PAD, PAD]])


teacher_forced = jax.jit(forced, static_argnums=0)


@functools.cache
def built(name):
    model = CopyingTransformer(dataclasses.replace(CONFIG, **OUTPUTS[name]))
    return model, jax.tree.map(jnp.asarray, random_variables(model, 1))


def inside(model, variables, source, target):
    """The decoder's states, the encoder's, and the logits of generating."""

    def run(model):
        memory = model.encode(source)
        hidden = model.decode(memory, decoder_input(target, SpecialIds()))
        return hidden, memory.states, model.output(hidden)

    found = jax.jit(lambda v: model.apply(v, method=run))(variables)
    return [np.asarray(x, np.float64) for x in found]


@pytest.mark.slow
def test_copynet_is_one_softmax_over_words_and_positions():
    """Gu et al. 2016, Eq. 4-8, word by word."""
    model, variables = built("copynet")
    hidden, states, generating = inside(model, variables, SOURCE, TARGET)
    matrix = np.asarray(variables["params"]["copy_key"]["kernel"], np.float64)
    found = np.exp(np.asarray(apply(model, variables, SOURCE, decoder_input(TARGET, SpecialIds()))))
    ids = np.asarray(extended_ids(SOURCE, SOURCE, SIZE))
    (log_p, _, _), _ = teacher_forced(model, variables, SOURCE, TARGET)
    log_p = np.asarray(log_p)
    for row, time in itertools.product(range(3), range(7)):
        words = int((SOURCE[row] != PAD).sum())
        copying = np.tanh(states[row, :words] @ matrix) @ hidden[row, time]
        both = np.exp(np.concatenate([generating[row, time], copying]))
        share = np.zeros(SIZE + SOURCE.shape[1])
        np.add.at(share, np.concatenate([np.arange(SIZE), ids[row, :words]]), both / both.sum())
        np.testing.assert_allclose(found[row, time], share, atol=2e-6)
    places = np.asarray(extended_ids(TARGET, SOURCE, SIZE))
    expected = np.log(np.take_along_axis(found[:2], places[:2, :, None], -1)[..., 0])
    np.testing.assert_allclose(log_p[:2], expected, atol=1e-4)  # the third copies what is not there


@pytest.mark.by_default("pointer")
@pytest.mark.parametrize("name", ["pointer", "once"])
def test_the_pointer_network_by_hand(name):
    """softmax of v . tanh(W1 e_j + W2 d_i) (Vinyals et al. 2015, Eq. 3); with `once` over what is left."""
    model, variables = built(name)
    hidden, states, _ = inside(model, variables, WORDS, ANSWERS)
    parts = ("pointer_query", "pointer_key", "energy")
    query, key, v = (np.asarray(variables["params"][part]["kernel"], np.float64) for part in parts)
    given = decoder_input(ANSWERS, SpecialIds())
    found = np.exp(np.asarray(apply(model, variables, WORDS, given)))
    for row, time in itertools.product(range(2), range(6)):
        energy = np.exp(np.tanh(hidden[row, time] @ query + states[row] @ key) @ v[:, 0])
        left = list(np.asarray(given[row, : time + 1])) if name == "once" else []
        for place, word in enumerate(np.asarray(WORDS[row]).tolist()):
            if word == PAD:
                energy[place] = 0
            elif word in left:  # each use takes the first position that has it
                left.remove(word)
                energy[place] = 0
        share = np.zeros(SIZE + 6)
        for place, index in enumerate(np.asarray(extended_ids(WORDS, WORDS, SIZE))[row]):
            share[index] += energy[place] / max(energy.sum(), 1e-30)
        if energy.sum():
            np.testing.assert_allclose(found[row, time], share, atol=2e-6)


@pytest.mark.by_default("pointer")
@pytest.mark.parametrize("name", OUTPUTS)
def test_step_by_step_is_teacher_forcing(name):
    model, variables = built(name)
    whole = np.exp(np.asarray(apply(model, variables, WORDS, decoder_input(ANSWERS, SpecialIds()))))
    memory = apply(model, variables, WORDS, method="encode")
    cache = apply(model, variables, memory, 1, 8, method="init_cache")
    step = jax.jit(functools.partial(model.apply, method="decode_step"))
    given = decoder_input(extended_ids(ANSWERS, WORDS, SIZE), SpecialIds())
    for time in range(5):
        log_p, cache = step(variables, cache, given[:, time : time + 1])
        live = np.asarray(ANSWERS[:, time] != PAD)
        np.testing.assert_allclose(np.exp(log_p[:, 0])[live], whole[live, time], atol=2e-6)


@pytest.mark.thorough
def test_what_is_pointed_to_once_does_not_come_again():
    model, variables = built("once")
    found = beam_search(model, variables, WORDS, beam_size=3, extra_length=4)
    ids = extended_ids(WORDS, WORDS, SIZE)
    for row, beam in itertools.product(range(2), range(3)):
        tokens = [x for x in np.asarray(found.tokens[row, beam]).tolist() if x != PAD]
        there = np.asarray(ids[row]).tolist()
        assert all(tokens.count(x) <= there.count(x) for x in tokens)


@pytest.mark.thorough
def test_a_pointer_network_generates_nothing():
    model, variables = built("pointer")
    log_p = np.asarray(apply(model, variables, WORDS, decoder_input(ANSWERS, SpecialIds())))
    assert (log_p[0, :, [3, 6, 7]] == -np.inf).all()
    scores = jax.jit(copying_scores, static_argnums=0)(model, variables, {"source": WORDS}, ANSWERS)
    assert np.isfinite(scores.log_p).all()
    assert np.isfinite(scores.entropy).all()
    (_, _, mixture), _ = teacher_forced(model, variables, WORDS, ANSWERS)
    gradient = jax.jit(jax.grad(lambda v: forced(model, v, WORDS, ANSWERS)[0][0].sum()))(variables)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    np.testing.assert_allclose(mixture.pointer.sum(axis=-1), 1, atol=1e-5)


def test_wrong_combinations_are_refused():
    with pytest.raises(UserError, match="--model.once: --model.output copynet also generates words"):
        CopyingConfig(output="copynet", once=True)
    with pytest.raises(UserError, match="a pointer network has no output vocabulary"):
        CopyingConfig(output="pointer", output_bias=True)


# --- corpora ---


def brute_hull(points):
    """The ends of the edges that have all other points on their left; of points on one line, its ends."""
    edges = {}
    for a, b in itertools.permutations(points, 2):
        turns = [copying.turn(a, b, c) for c in points if c not in (a, b)]
        between = [c for c in points if c not in (a, b) and copying.turn(a, b, c) == 0]
        inside = all(min(a, b) < c < max(a, b) for c in between)
        if all(turn >= 0 for turn in turns) and inside:
            edges[a] = b
    start = min(points)
    path = [start]
    while len(points) > 1 and edges[path[-1]] != start:
        path.append(edges[path[-1]])
    return path


def test_the_hull_is_that_of_all_edges():
    chance = np.random.default_rng(0)
    cells = [divmod(int(x), 5) for x in range(25)]
    for _ in range(300):
        chosen = chance.permutation(25)[: chance.integers(1, 9)]
        points = [cells[x] for x in chosen]
        assert copying.hull(points) == brute_hull(points), points
    assert copying.hull([(0, 0), (1, 1), (2, 2)]) == [(0, 0), (2, 2)]


def test_lines_of_the_corpora():
    for source, target in itertools.islice(copying.pointing_pairs("sorting", "train"), 200):
        assert sorted(map(int, source.split())) == list(map(int, target.split()))
    for source, target in itertools.islice(copying.pointing_pairs("convex-hull", "train"), 200):
        assert set(target.split()) <= set(source.split())
        assert len(set(source.split())) == len(source.split())


@pytest.mark.by_default("sorting")
@pytest.mark.parametrize("task", copying.TASKS)
def test_no_set_of_words_is_in_two_splits(task):
    found = {
        split: {tuple(sorted(source.split())) for source, _ in itertools.islice(lines, 2000)}
        for split in ("train", "validation", "test")
        for lines in [copying.pointing_pairs(task, split, lengths=[2, 3])]
    }
    for one, other in itertools.combinations(found.values(), 2):
        assert not one & other
    with pytest.raises(UserError, match="no train split of the corpus sortin"):
        next(copying.pointing_pairs("sortin", "train"))
