"""CTC, against the enumeration of all paths: loss, prefix scores, both searches, forced alignment."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config.model import SpecialIds
from transformer.decoding.hooks import first_states
from transformer.decoding.searches.ctc import LOG_PROBS, POSITIONS, CtcScores, best_path, prefix_beam_search
from transformer.decoding.searches.ctc_alignment import best_paths, spans_of
from transformer.model.cache import States
from transformer.model.variants.ctc import log_likelihoods, log_probs_of, positions_needed
from transformer.systems.speech.system import ctc_sums

SPECIAL = SpecialIds()
BLANK, EOS = SPECIAL.pad, SPECIAL.eos
SIZE = 6  # four special ids, of which <unk> is a label, and two others
LABELS = (3, 4, 5)
LENGTHS = (4, 2, 3)  # positions of the rows


def drawn_log_probs(seed: int = 0, longest: int = 4) -> np.ndarray:
    logits = 2 * np.random.default_rng(seed).standard_normal((len(LENGTHS), longest, SIZE))
    return np.asarray(log_probs_of(jnp.asarray(logits, jnp.float32), SPECIAL))


MASK = np.arange(4) < np.array(LENGTHS)[:, None]


def spelled(path: tuple[int, ...]) -> tuple[int, ...]:
    """The text of a path."""
    return tuple(token for token, _ in itertools.groupby(path) if token != BLANK)


def texts_of(log_probs: np.ndarray, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every text, by all paths of a row."""
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product((BLANK, *LABELS), repeat=length):
        p = math.exp(sum(log_probs[position, token] for position, token in enumerate(path)))
        found[spelled(path)] = found.get(spelled(path), 0.0) + p
    return found


def padded_texts(texts: list[tuple[int, ...]], room: int) -> np.ndarray:
    return np.array([[*text, *[BLANK] * (room - len(text))] for text in texts])


def test_loss_is_the_sum_over_all_paths() -> None:
    log_probs = drawn_log_probs()
    for row, length in enumerate(LENGTHS):
        known = texts_of(log_probs[row], length)
        assert sum(known.values()) == pytest.approx(1, abs=1e-5)  # <bos> and <eos> have no probability
        texts = list(known)
        repeated = (jnp.repeat(jnp.asarray(x[row : row + 1]), len(texts), axis=0) for x in (log_probs, MASK))
        found = log_likelihoods(*repeated, jnp.asarray(padded_texts(texts, 5)), BLANK)
        np.testing.assert_allclose(np.exp(found), list(known.values()), rtol=1e-4, atol=1e-7)
        needed = positions_needed(jnp.asarray(padded_texts(texts, 5)), BLANK)
        assert int(needed.max()) == length
        assert set(known) == {
            text
            for size in range(length + 1)
            for text in itertools.product(LABELS, repeat=size)
            if size + sum(a == b for a, b in itertools.pairwise(text)) <= length
        }


@pytest.mark.slow
def test_loss_leaves_out_texts_without_a_path_and_does_not_depend_on_padding() -> None:
    targets = [(3, 4), (5, 5), (4,)]  # the second needs three positions, and has two

    def sums(log_probs: np.ndarray, mask: np.ndarray, room: int) -> tuple[np.ndarray, ...]:
        rows = [*((*target, EOS) for target in targets), *[()] * (len(mask) - len(targets))]
        padded = jnp.asarray(padded_texts(rows, room))
        return ctc_sums(jnp.asarray(log_probs), jnp.asarray(mask), padded, SPECIAL)

    log_probs = drawn_log_probs()
    expected = -sum(math.log(texts_of(log_probs[row], LENGTHS[row])[targets[row]]) for row in (0, 2))
    nll, counts, is_short = sums(log_probs, MASK, 3)
    assert float(nll) == pytest.approx(expected, rel=1e-4)
    assert float(counts) == 3 + 2
    assert is_short.tolist() == [False, True, False]
    wider = np.pad(log_probs, ((0, 2), (0, 3), (0, 0)), constant_values=-7)  # rows and columns of padding
    padded_nll, padded_counts, _ = sums(wider, np.pad(MASK, ((0, 2), (0, 3))), 6)
    assert float(padded_nll) == pytest.approx(float(nll), rel=1e-5)
    assert padded_counts == counts
    gradient = jax.grad(lambda x: sums(x, MASK, 3)[0])(jnp.asarray(log_probs))
    assert np.isfinite(gradient).all()
    assert not gradient[1].any()


@pytest.mark.thorough
def test_prefix_scores_sum_over_all_texts_that_begin_so() -> None:
    log_probs = drawn_log_probs(1)
    hook = CtcScores(0.4, SPECIAL)
    inputs = {LOG_PROBS: jnp.asarray(log_probs), POSITIONS: jnp.array(LENGTHS)}
    model_log_p = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(2).standard_normal((3, 2, SIZE))))
    known = [texts_of(log_probs[row], length) for row, length in enumerate(LENGTHS)]

    def score(row: int, beginning: tuple[int, ...]) -> float:
        return sum(p for text, p in known[row].items() if text[: len(beginning)] == beginning)

    state = States(first_states(hook, inputs, 2))
    outputs = np.empty((3, 2, 0), int)
    for tokens in ([[3, 4]] * 3, [[3, 5]] * 3, [[4, 5]] * 3):  # 3 3 4 and 4 5 5
        filtered = np.asarray(hook.filter(model_log_p, state.value, jnp.array([9] * 3)))
        for row, beam, token in itertools.product(range(3), range(2), (*LABELS, EOS)):
            output = tuple(outputs[row, beam])
            before = score(row, output)
            longer = known[row].get(output, 0.0) if token == EOS else score(row, (*output, token))
            gain = math.log(longer / before) if longer > 0 and before > 0 else -math.inf
            expected = 0.6 * float(model_log_p[row, beam, token]) + 0.4 * gain
            assert filtered[row, beam, token] == pytest.approx(expected, rel=2e-4, abs=2e-4)
        parents = jnp.array([[1, 0]] * 3)
        chosen = jnp.array(tokens)
        state = States(hook.advance(chosen, state.select(parents).value))
        outputs = np.concatenate([outputs[:, ::-1], np.array(tokens)[..., None]], axis=2)


@pytest.mark.thorough
def test_wide_vocabularies_are_scored_where_the_model_is_likely() -> None:
    logits = np.random.default_rng(3).standard_normal((1, 3, 90))
    inputs = {LOG_PROBS: log_probs_of(jnp.asarray(logits), SPECIAL), POSITIONS: jnp.array([3])}
    model_log_p = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(4).standard_normal((1, 2, 90))))
    hook = CtcScores(0.5, SPECIAL)
    state = first_states(hook, inputs, 2)
    few = np.asarray(hook.filter(model_log_p, state, jnp.array([9])))
    whole = np.asarray(CtcScores(0.5, SPECIAL, fewest=90).filter(model_log_p, state, jnp.array([9])))
    likely = np.argsort(-np.asarray(model_log_p), axis=-1)[..., :40]
    is_scored = np.zeros(few.shape, bool)
    np.put_along_axis(is_scored, likely, True, axis=-1)
    is_scored[..., EOS] = True
    np.testing.assert_allclose(few[is_scored], whole[is_scored], rtol=1e-5)
    assert (few[~is_scored] == -np.inf).all()


def test_prefix_beam_search_finds_the_most_probable_texts() -> None:
    for seed in range(4):
        log_probs = drawn_log_probs(seed)
        most, beams = jnp.array([4, 4, 2]), 24  # enough for every text of a row but the first
        found = prefix_beam_search(jnp.asarray(log_probs), jnp.asarray(MASK), most, 4, beams, BLANK)
        for row, length in enumerate(LENGTHS):
            known = {t: p for t, p in texts_of(log_probs[row], length).items() if len(t) <= most[row]}
            texts = [tuple(t for t in tokens if t != BLANK) for tokens in np.asarray(found.tokens[row])]
            alive = {
                t: math.exp(p) for t, p in zip(texts, np.asarray(found.log_p[row]), strict=True) if p > -1e9
            }
            assert len(alive) == min(beams, len(known))
            assert set(alive) <= set(known)
            best = max(known, key=known.__getitem__)
            assert max(alive, key=alive.__getitem__) == best
            if len(known) <= beams and most[row] >= length:
                np.testing.assert_allclose([alive[t] for t in known], list(known.values()), rtol=1e-4)


def test_greedy_search_takes_the_best_path() -> None:
    log_probs = drawn_log_probs(5)
    found = np.asarray(best_path(jnp.asarray(log_probs), jnp.asarray(MASK), jnp.array([4, 4, 1]), 4, BLANK))
    for row, (length, most) in enumerate(zip(LENGTHS, (4, 4, 1), strict=True)):
        path = tuple(int(x) for x in log_probs[row, :length].argmax(axis=1))
        assert tuple(t for t in found[row] if t != BLANK) == spelled(path)[:most]


@pytest.mark.slow
def test_forced_alignment_is_the_best_of_all_paths_that_spell_the_text() -> None:
    for seed in range(3):
        log_probs = drawn_log_probs(seed)
        for row, length in enumerate(LENGTHS):
            paths: dict[tuple[int, ...], list[tuple[float, tuple[int, ...]]]] = {}
            for path in itertools.product((BLANK, *LABELS), repeat=length):
                log_p = sum(float(log_probs[row, position, token]) for position, token in enumerate(path))
                paths.setdefault(spelled(path), []).append((log_p, path))
            texts = [*paths, (3, 3, 3)]  # the last one needs five positions
            repeated = (
                jnp.repeat(jnp.asarray(x[row : row + 1]), len(texts), axis=0) for x in (log_probs, MASK)
            )
            found = best_paths(*repeated, jnp.asarray(padded_texts(texts, 5)), BLANK)
            assert found.log_p[-1] == found.log_likelihoods[-1] == -np.inf
            for index, text in enumerate(texts[:-1]):
                log_p, path = max(paths[text])
                assert float(found.log_p[index]) == pytest.approx(log_p, abs=1e-4)
                states = np.asarray(found.states[index])[:length]
                tokens = [BLANK if state % 2 == 0 else text[state // 2] for state in states]
                assert tuple(tokens) == path
                spans = spans_of(states, len(text))
                assert [path[start:end] for start, end in spans] == [
                    (token,) * (end - start) for token, (start, end) in zip(text, spans, strict=True)
                ]
