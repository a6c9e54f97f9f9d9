"""Sounds that scripts and tests can make alike."""

import numpy as np

SOUNDS = 2
RATE = 16_000


def sound(number: int) -> np.ndarray:
    """A chord that becomes louder, with pauses; `[samples]` in float32, at 16 kHz, all of them multiples of
    2^-15."""
    seconds = 1.3 + number
    time = np.arange(int(seconds * RATE)) / RATE
    tones = [np.sin(2 * np.pi * (200 + 170 * k * (number + 1)) * time + k) / k for k in range(1, 6)]
    wave = sum(tones) * (0.05 + 0.1 * time / seconds) * (np.sin(2 * np.pi * 3 * time) > -0.5)
    return (np.round(wave * 2**15) / 2**15).astype(np.float32)
