"""Where tokens begin and end beside the positions at which CTC has them."""

import numpy as np
import pytest

from transformer.data.signals.audio import features_of, normalised
from transformer.data.sources.recordings import digits
from transformer.systems.speech.alignment import EDGE, FAR, REACH, is_quiet, with_edges


def spoken(*sounds: tuple[float, float], seconds: float = 3.0) -> np.ndarray:
    """Features of a recording with sound at these times, and a little noise everywhere."""
    features = np.random.default_rng(0).normal(0, 0.05, (round(seconds * 100), 8)) - 1
    for start, end in sounds:
        features[round(start * 100) : round(end * 100)] += 2
    return features


def test_tokens_reach_to_the_pauses_beside_them():
    sounds = [(0.5, 0.9), (1.0, 1.4), (1.45, 1.8)]
    spans = [(0.56, 0.6), (1.24, 1.28), (1.6, 1.68)]
    np.testing.assert_allclose(with_edges(spans, is_quiet(spoken(*sounds))), sounds, atol=1e-9)


def test_without_a_pause_they_meet_in_the_middle_if_that_is_near():
    quiet = np.zeros(300, bool)
    found = with_edges([(1.0, 1.04), (1.24, 1.28), (2.0, 2.04)], quiet)
    expected = [(1 - EDGE, 1.14), (1.14, 1.28 + REACH), (2 - REACH, 2.04 + EDGE)]
    np.testing.assert_allclose(found, expected)


def test_a_short_silence_within_the_first_word_or_the_last_is_part_of_it():
    sounds = [(0.5, 0.6), (0.66, 0.9)]
    (found,) = with_edges([(0.76, 0.8)], is_quiet(spoken(*sounds)))
    assert found == pytest.approx((0.5, 0.9))
    (found,) = with_edges([(0.54, 0.58)], is_quiet(spoken(*sounds)))
    assert found == pytest.approx((0.5, 0.9))


def test_a_recording_may_end_with_a_word_or_shortly_after_it():
    (found,) = with_edges([(0.04, 0.08)], is_quiet(spoken((0.0, 0.3), (0.3, 1.0), seconds=1.0)))
    assert found == pytest.approx((0.0, 0.08 + EDGE))
    (found,) = with_edges([(0.2, 0.24)], is_quiet(spoken((0.1, 0.46), seconds=0.5)))
    assert found == pytest.approx((0.1, 0.46))


@pytest.mark.parametrize("seed", range(30))
def test_every_token_has_its_positions_and_none_overlap(seed):
    random = np.random.default_rng(seed)
    positions = random.permutation(71)[: random.integers(7)]
    spans = [(0.04 * x, 0.04 * (x + 1)) for x in sorted(positions.tolist())]
    quiet = random.random(300) < random.random()
    found = with_edges(spans, quiet)
    times = [time for span in found for time in span]
    assert times == sorted(times)
    assert len(found) == len(spans)
    assert not times or (times[0] >= 0 and times[-1] <= 3)
    for (start, end), (first, last) in zip(found, spans, strict=True):
        assert start <= first + 1e-9
        assert end >= last - 1e-9
        assert first - start <= FAR + 1e-9
        assert end - last <= FAR + 1e-9


def test_nothing_is_said():
    assert with_edges([], is_quiet(spoken())) == []
    assert is_quiet(np.zeros((0, 8))).tolist() == []


def test_the_middle_of_a_word_shows_where_it_begins_and_ends():
    """Words of the built-in synthesiser, with noise, whose times are known; CTC would have them somewhere."""
    errors = []
    for index in range(20):
        said = digits(1, index, 5)
        quiet = is_quiet(normalised(features_of(said.wave)))
        middles = [np.mean(times) for times in said.times]
        found = with_edges([(middle - 0.02, middle + 0.02) for middle in middles], quiet)
        errors += np.abs(np.subtract(found, said.times)).max(axis=1).tolist()
    assert np.mean(np.array(errors) < 0.1) > 0.9
