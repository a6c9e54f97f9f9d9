"""Sounds that scripts and tests can make alike."""

from pathlib import Path

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


def write_digits(folder: Path, count: int) -> list[str]:
    """Writes 0.wav, 1.wav, ... with a spoken digit each, and returns what is said in them."""
    import soundfile

    from transformer.data.sources.recordings import digits

    texts = []
    for index in range(count):
        words, wave, *_ = digits(2, index, 1)
        soundfile.write(folder / f"{index}.wav", wave, RATE)
        texts.append(" ".join(words))
    return texts
