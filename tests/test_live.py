"""Recognition of sound while it arrives."""

import numpy as np
import pytest

from transformer.data.signals.audio import RATE
from transformer.systems.speech.long import live_texts

SECONDS = {"short": 0.3, "middle": 0.5, "long": 0.8}
"""A word is a tone of its length, so one that is cut sounds like a shorter one."""


def sound_of(words, gap=0.15):
    """Words with short gaps; a "." is a pause."""
    noise = np.random.default_rng(0)
    parts = []
    for word in words:
        time = np.arange(round(SECONDS.get(word, 1.0) * RATE)) / RATE
        tone = 0.3 * np.sin(2 * np.pi * 300 * time) if word in SECONDS else 0 * time
        parts += [tone, np.zeros(round(gap * RATE))]
    wave = np.concatenate([np.zeros(RATE // 2), *parts])
    return (wave + noise.normal(0, 1e-4, len(wave))).astype(np.float32)


def heard(wave):
    """The words of tones, by how long each is."""
    loud = np.abs(wave).reshape(-1, 1)[: len(wave) // 160 * 160].reshape(-1, 160).max(axis=1) > 0.05
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]]).astype(int))).reshape(-1, 2)
    lengths = (edges[:, 1] - edges[:, 0]) / 100
    return " ".join(min(SECONDS, key=lambda word: abs(SECONDS[word] - length)) for length in lengths)


WORDS = ["long", "short", "middle", ".", "middle", "long", "long", "short", "."]
WORDS += ["short", "long", "middle", "middle", "long", "long", "short", "."]
EXPECTED = " ".join(word for word in WORDS if word != ".")


@pytest.mark.parametrize("step", [0.25, 0.7, 2.0])
def test_final_words_are_those_of_the_whole(step):
    wave = sound_of(WORDS)
    blocks = np.array_split(wave, 37)
    several = list(live_texts(heard, blocks, longest=8.0, step=step))
    assert "".join(text.final for text in several) == EXPECTED
    assert several[-1].seconds == pytest.approx(len(wave) / RATE)
    assert np.allclose(np.diff([text.seconds for text in several[:-2]]), step)
    assert not several[-1].tentative
    wrong = [
        text
        for index, text in enumerate(several)
        if not EXPECTED.startswith(
            " ".join("".join(x.final for x in several[: index + 1]).split() + text.tentative.split())
        )
    ]
    assert wrong or step > 0.25  # what is tentative may be wrong


def test_words_are_final_soon():
    several = list(live_texts(heard, [sound_of(WORDS)], longest=8.0, step=0.25))
    first = next(text.seconds for text in several if text.final)
    assert 0.5 + 0.8 <= first <= 0.5 + 0.8 + 0.15 + 2 * 0.25  # its end, and two steps


def test_speech_without_a_pause_is_cut():
    words = ["long", "short"] * 12
    texts = list(live_texts(heard, [sound_of(words)], longest=4.0, step=0.5))
    final = "".join(text.final for text in texts).split()
    assert abs(len(final) - len(words)) <= 3
    assert max(text.seconds for text in texts if text.final) > 10


def test_silence_and_unspaced_text():
    assert all(not text.final + text.tentative for text in live_texts(heard, [np.zeros(RATE * 3)], 8.0))
    assert [text.seconds for text in live_texts(heard, [], 8.0)] == [0]

    def chinese(text):
        return "".join(chr(0x4E00 + ord(letter)) for letter in text.replace(" ", "")[::3])

    texts = live_texts(lambda wave: chinese(heard(wave)), [sound_of(WORDS[:4])], 8.0)
    assert "".join(text.final for text in texts) == chinese("".join(WORDS[:3]))
