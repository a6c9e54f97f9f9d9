"""Compares what Whisper hears where nobody speaks, here and in faster-whisper, each with its defaults.

`python -m benchmarks.quality.silence WEIGHTS` imports a Whisper model from the folder of CTranslate2 or
faster-whisper, and has both programs hear silence, noise, tones and music-like sounds of 8 seconds, and of 40
seconds with `--long`. It prints a table with the texts. Samples are drawn, so outputs may differ where a
program falls back to higher temperatures.
"""

import argparse
import importlib.util
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.command import run
from transformer import Transcriber
from transformer.data.signals.audio import RATE
from transformer.interop.architectures.ctranslate2 import MODEL
from transformer.interop.pretrained import import_model
from transformer.runtime.errors import UserError

SECONDS, LONG = 8, 40
NOTES = 220, 247, 262, 294, 330, 349, 392
"""Hertz."""


def sounds(seconds: int) -> dict[str, np.ndarray]:
    """Waveforms in which nobody speaks, by their names."""
    random = np.random.default_rng(0)
    count = seconds * RATE
    times = np.arange(count) / RATE
    noise = random.normal(size=count)
    walk = np.cumsum(noise) - np.linspace(noise[0], noise.sum(), count)
    beat = np.arange(RATE // 2) / RATE

    def note(pitch: float) -> np.ndarray:
        tones = [np.sin(2 * np.pi * harmonic * pitch * beat) / harmonic for harmonic in (1, 2, 3)]
        decay: np.ndarray = np.exp(-3 * beat) * np.sum(tones, axis=0)
        return decay

    waves = {
        "digital silence": np.zeros(count),
        "dither of one bit": random.choice([-1, 0, 1], count) / 2**15,
        "near silence": 1e-3 * noise,
        "a click": 0.5 * (np.arange(count) == count // 2),
        "a constant": np.full(count, 0.1),
        "white noise": 0.1 * noise,
        "brown noise": 0.3 * walk / np.abs(walk).max(),
        "a tone of 440 Hz": 0.3 * np.sin(2 * np.pi * 440 * times),
        "a hum of 50 Hz": 0.1 * np.sin(2 * np.pi * 50 * times),
        "a chord": 0.1 * np.sum([np.sin(2 * np.pi * pitch * times) for pitch in (220, 277, 330)], axis=0),
        "notes": 0.2 * np.concatenate([note(pitch) for pitch in random.choice(NOTES, 2 * seconds)]),
    }
    return {name: wave.clip(-1, 1).astype(np.float32) for name, wave in waves.items()}


def main(arguments: list[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("weights", type=Path, help="folder of Whisper, of CTranslate2")
    parser.add_argument("--language", default="en", help="that is asked for (en)")
    parser.add_argument("--long", action="store_true", help=f"sounds of {LONG} seconds")
    parser.add_argument("--only", nargs="+", default=[], help="names of sounds")
    given = parser.parse_args(arguments)
    if not importlib.util.find_spec("faster_whisper"):
        raise UserError("faster-whisper is not installed: pip install faster-whisper")
    if not (given.weights / MODEL).exists():
        raise UserError(f"weights {given.weights}: there is no {MODEL}; convert the model with CTranslate2")
    from faster_whisper import WhisperModel

    other = WhisperModel(str(given.weights), device="cpu", compute_type="float32")
    print("| sound | here | faster-whisper |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        import_model(given.weights, Path(folder) / "run", given.language)
        transcriber = Transcriber.load(Path(folder) / "run")
        for name, wave in sounds(LONG if given.long else SECONDS).items():
            if given.only and name not in given.only:
                continue
            segments, _ = other.transcribe(wave, language=given.language)
            theirs = " ".join(segment.text.strip() for segment in segments)
            print(f"| {name} | {transcriber.transcribe(wave)} | {theirs} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
