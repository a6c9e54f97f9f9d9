"""Makes tests/data/mel/whisper_128.json: the features of `transformers` for two sounds, with the 128 bands of
Whisper large-v3. Run once, by hand:

    pip install 'transformers==5.24.0'
    python tests/make_mel_golden.py

The tests then do not need transformers.
"""

import json
from pathlib import Path

from invented_sound import SOUNDS, sound
from transformers import WhisperFeatureExtractor

FILE = Path(__file__).parent / "data" / "mel" / "whisper_128.json"
STEP = 75
"""Frames from one that is stored to the next."""

if __name__ == "__main__":
    extractor = WhisperFeatureExtractor(feature_size=128)
    waves = [sound(number) for number in range(SOUNDS)]
    features = extractor(waves, sampling_rate=16_000, return_tensors="np").input_features
    frames = features.transpose(0, 2, 1)[:, :400:STEP].round(5).tolist()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps({"step": STEP, "features": frames}) + "\n")
