"""How near synthetic speech comes to recordings of the same words, in spectrum, pitch and length.

`python -m benchmarks.quality.listening RUN ... --output STEM` speaks test texts with each run of a
synthesiser, and compares each with a recording of the text, after dynamic time warping (librosa): the mel
cepstral distortion in dB (Kubichek 1993, 13 coefficients), the error of F0 (pYIN of librosa) where both are
voiced, and how often it is gross; the share of frames of which only one is voiced; and the length. Recordings
and texts are those of the built-in speaker, or, with `--recordings DIR --speaker NAME`, strings of recorded
digits for the test (`benchmarks.quality.digits`). Two rows say what is near: the same words recorded once
more, and the recordings through features and Griffin-Lim. It writes STEM.json and STEM.md.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.command import needs, new_file, positive, run
from benchmarks.measure import machine, report, table
from benchmarks.quality.digits import FEWEST, MOST, choices_of, joined, recordings_of
from transformer import Synthesizer
from transformer.data.built_in.spoken import DIGITS, ONE, phonemes, spoken
from transformer.data.signals.audio import HOP, RATE, features_of, sound_of
from transformer.data.signals.waveforms import read_audio
from transformer.runtime.errors import UserError

COEFFICIENTS = 13
DEPTH = 60 / 10 * np.log(10)
"""What is as much quieter than the loudest band of a recording, in powers of e, counts as silence."""
LOWEST, HIGHEST = 60.0, 400.0  # Hz of F0
GROSS = 0.2  # share of F0 from which an error is gross, such as an octave (Chu and Alwan 2009)
FRAME = 1024  # samples in which F0 is estimated
WORDS = list(DIGITS)
Wave = np.ndarray
Takes = Callable[[Sequence[str], int], list[Wave]]
"""(words, number) -> so many recordings of the words, each another one."""


class Heard(NamedTuple):
    """What is compared of a waveform, with a row for every 10 ms."""

    features: np.ndarray
    """Natural logarithms of the power in mel bands, `[t, bands]`; what is far below the loudest is equal."""
    cepstra: np.ndarray
    """`[t, coefficients]`."""
    pitch: np.ndarray
    """F0 in Hz, `[t]`; NaN where there is no voice."""

    @classmethod
    def of(cls, wave: Wave) -> "Heard":
        """Of a waveform at 16,000 samples a second; of a shorter one than a frame, of silence after it."""
        wave = np.pad(wave, (0, max(0, FRAME - len(wave))))
        features = features_of(wave)
        audible = np.maximum(features, features.max() - DEPTH)
        return cls(audible, cepstra(audible), pitch(wave))


@dataclass(frozen=True)
class Comparison:
    """One waveform beside another of the same words."""

    distortion: float
    """Mean mel cepstral distortion along the warped time, in dB."""
    pitches: np.ndarray
    """F0 of both in Hz where both are voiced, `[frames, 2]`."""
    voicing: np.ndarray
    """Whether only one is voiced, of each frame of the warped time."""
    length: float
    """That of the first as a share of the second's."""


def cepstra(features: np.ndarray, coefficients: int = COEFFICIENTS) -> np.ndarray:
    """Mel cepstra `[t, coefficients]`, without the zeroth, which is loudness.

    The logarithm of the amplitude in band n of N is their sum over k of c_k cos(pi k (n + 1/2) / N).

    Args:
      features: the natural logarithm of the power in mel bands `[t, N]`.
      coefficients: how many, at most N - 1.
    """
    from scipy.fft import dct

    found: np.ndarray = dct(features.astype(np.float64), type=2, axis=1) / (2 * features.shape[1])
    return found[:, 1 : coefficients + 1]


def distortions(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The mel cepstral distortion of each frame in dB: 10 / ln 10 * sqrt(2 * sum of squared differences)
    (Kubichek 1993)."""
    found: np.ndarray = 10 / np.log(10) * np.sqrt(2 * ((ours - theirs) ** 2).sum(axis=-1))
    return found


def warped(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The frames of both that belong together: the path with the least sum of distances."""
    import librosa

    _, path = librosa.sequence.dtw(ours.T, theirs.T, metric="euclidean")
    return path[::-1, 0], path[::-1, 1]


def pitch(wave: Wave) -> np.ndarray:
    """F0 in Hz of every 10 ms; NaN where there is no voice (pYIN, Mauch and Dixon 2014)."""
    import librosa

    found: np.ndarray = librosa.pyin(
        wave, fmin=LOWEST, fmax=HIGHEST, sr=RATE, frame_length=FRAME, hop_length=HOP
    )[0]
    return found


def compared(ours: Heard, theirs: Heard) -> Comparison:
    """What differs between two waveforms, after their times have been warped."""
    first, second = warped(ours.cepstra, theirs.cepstra)
    pitches = np.stack([ours.pitch[first], theirs.pitch[second]], axis=1)
    voiced = np.isfinite(pitches)
    return Comparison(
        distortion=float(distortions(ours.cepstra[first], theirs.cepstra[second]).mean()),
        pitches=pitches[voiced.all(axis=1)],
        voicing=voiced[:, 0] != voiced[:, 1],
        length=len(ours.cepstra) / len(theirs.cepstra),
    )


def summary(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """A row of the table: means over utterances, and errors over all frames."""
    pitches = np.concatenate([each.pitches for each in comparisons])
    each = np.array([one.distortion for one in comparisons])
    row = {"MCD (dB)": float(each.mean())}
    if len(each) > 1:
        row["± MCD (dB)"] = float(1.96 * each.std(ddof=1) / np.sqrt(len(each)))
    if len(pitches):
        ratio = pitches[:, 0] / pitches[:, 1]
        row["F0 error (Hz)"] = float(np.sqrt((np.diff(pitches) ** 2).mean()))
        row["F0 error (cents)"] = float(1200 * np.sqrt((np.log2(ratio) ** 2).mean()))
        row["gross F0 errors (%)"] = float(100 * (np.abs(ratio - 1) > GROSS).mean())
    row["voicing errors (%)"] = float(100 * np.concatenate([one.voicing for one in comparisons]).mean())
    row["length (%)"] = float(100 * np.mean([one.length for one in comparisons]))
    return row


# Recordings


def takes_of(recordings: Path | None, speaker: str) -> Takes:
    """Recordings of words: of the built-in speaker, or joined of a folder's single digits for the test.

    Raises:
      UserError: the folder has no recordings, or fewer than two of a word by the speaker.
    """
    random = np.random.default_rng(0)
    if recordings is None:
        return lambda words, number: [spoken(phonemes(words), ONE, random) for _ in range(number)]
    single = recordings_of(recordings)
    choices = {word: choices_of(single, "test").get((speaker, word), []) for word in WORDS}
    if few := [word for word, numbers in choices.items() if len(numbers) < 2]:
        raise UserError(
            f"--recordings {recordings}: fewer than two recordings of {few[0]} by {speaker} are for the "
            "test; name another --speaker"
        )

    def joined_takes(words: Sequence[str], number: int) -> list[Wave]:
        """Each word in other recordings, in turns if they are too few."""
        orders = [random.permutation(choices[word]) for word in words]
        return [
            joined(
                [
                    read_audio(single[speaker, word, int(order[take % len(order)])])
                    for word, order in zip(words, orders, strict=True)
                ],
                random,
            )
            for take in range(number)
        ]

    return joined_takes


def voices_of(paths: Sequence[Path]) -> dict[str, tuple[Synthesizer, dict[str, Any]]]:
    """The runs by their folders, those that draw noise also without it, each with its options of search."""
    found = dict[str, tuple[Synthesizer, dict[str, Any]]]()
    for path in paths:
        voice = Synthesizer.load(path)
        found[str(path)] = voice, {}
        if getattr(voice.task.config.decoding, "prenet_dropout", 0):
            found[f"{path}, without noise"] = voice, {"prenet_dropout": 0.0}
    return found


def main(arguments: list[str] | None = None) -> None:
    """Prints a table, and writes it."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directory of a synthesiser")
    parser.add_argument("--output", type=new_file, required=True, metavar="STEM", help="names of the files")
    parser.add_argument("--recordings", type=Path, help="folder of recorded digits (the built-in speaker)")
    parser.add_argument("--speaker", default="george", help="of the recordings (george)")
    parser.add_argument("--count", type=positive, default=50, help="texts (50)")
    given = parser.parse_args(arguments)
    needs("librosa", "soundfile")
    takes = takes_of(given.recordings, given.speaker)
    voices = voices_of(given.runs)
    random = np.random.default_rng(0)
    texts = [random.choice(WORDS, random.integers(FEWEST, MOST + 1)).tolist() for _ in range(given.count)]
    pairs = [takes(words, 2) for words in texts]
    recorded = [Heard.of(first) for first, _ in pairs]

    rows = dict[str, dict[str, float]]()

    def compare(name: str, waves: Sequence[Wave]) -> None:
        """Adds a row: how waves of all texts differ from the recordings."""
        heard = [compared(Heard.of(wave), each) for wave, each in zip(waves, recorded, strict=True)]
        rows[name] = summary(heard)
        print(f"{name}: MCD {rows[name]['MCD (dB)']:.2f} dB", flush=True)

    compare("recorded once more", [second for _, second in pairs])
    compare("recordings, through features", [sound_of(features_of(first)) for first, _ in pairs])
    for name, (voice, options) in voices.items():
        compare(name, voice.speak([" ".join(words) for words in texts], **options))
    report(given.output, {"about": machine(), "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
