"""The features of Whisper (Radford et al. 2022, section 2.2): a recording, then silence to a fixed length."""

import math

import numpy as np
from jaxtyping import Float

from transformer.data.features.audio import FLOOR, HOP, WINDOW, features_of

SILENT = math.log(FLOOR)
"""The features of silence."""
DYNAMICS = 8.0
"""How far bands may be below the loudest one, in powers of 10."""


def features_before_silence(
    wave: Float[np.ndarray, " samples"], bands: int, frames: int
) -> Float[np.ndarray, "t bands"]:
    """The frames of a wave that silence follows up to a number of frames, without those that are `SILENT`.
    The last frame, which is centred at the end of the silence, is left out."""
    silence = min(WINDOW, max(0, frames * HOP - len(wave)))
    return features_of(np.pad(wave, (0, silence)), bands)[:-1]


def scaled_to_peak(features: Float[np.ndarray, "t bands"]) -> Float[np.ndarray, "t bands"]:
    """Logarithms to base 10, at least those of the loudest band less `DYNAMICS`, plus 4, over 4."""
    logarithms = features / math.log(10)
    scaled: np.ndarray = (np.maximum(logarithms, logarithms.max(initial=SILENT) - DYNAMICS) + 4) / 4
    return scaled
