"""How much utterances of one text differ from draw to draw.

`python -m benchmarks.quality.draws RUN --output STEM` speaks a text many times with a run of system
synthesis, whose pre-net keeps its dropout, each time with other noise. For each rate of dropout it prints how
much length, F0 and spectrum vary, after dynamic time warping to the draw that is nearest to all others; and
the same of recordings of the text, each another one: of the built-in speaker, or of recorded digits
(`--recordings`, as in `benchmarks.quality.listening`). STEM.png shows for the last of the rates the spectrum
of that draw, and how spectrum, F0 and time of the others differ along it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.command import needs, new_file, positive, run
from benchmarks.measure import machine, report, table
from benchmarks.quality.listening import WORDS, Heard, Wave, distortions, takes_of, warped
from transformer import Synthesizer
from transformer.data.signals.audio import HOP, RATE
from transformer.runtime.errors import UserError

RATES = (0.25, 0.5)
DECIBELS = 10 / np.log(10)  # of a power that is larger by a factor of e
VOICED = 0.8  # share of the draws that must be voiced where their F0 is compared
SECONDS = HOP / RATE  # of a frame


@dataclass(frozen=True)
class Draws:
    """Utterances of one text, along the frames of the one that is nearest to all others."""

    nearest: Heard
    lengths: np.ndarray
    """Seconds of each, `[draws]`."""
    times: np.ndarray
    """The second of each draw that belongs to a frame, `[draws, frames]`."""
    spectra: np.ndarray
    """Power in mel bands in dB, `[draws, frames, bands]`."""
    pitches: np.ndarray
    """F0 in Hz, NaN without voice, `[draws, frames]`."""
    distortion: float
    """Mean mel cepstral distortion of two of them, in dB."""

    @classmethod
    def of(cls, waves: Sequence[Wave]) -> "Draws":
        """Of waveforms, at least two."""
        heard = [Heard.of(wave) for wave in waves]
        apart = np.zeros((len(heard), len(heard)))
        for first, ours in enumerate(heard):
            for second, theirs in enumerate(heard[:first]):
                path = warped(ours.cepstra, theirs.cepstra)
                mean = distortions(ours.cepstra[path[0]], theirs.cepstra[path[1]]).mean()
                apart[first, second] = apart[second, first] = mean
        nearest = heard[int(apart.sum(axis=0).argmin())]
        frames = [frames_along(each, nearest) for each in heard]
        return cls(
            nearest=nearest,
            lengths=np.array([len(each.pitch) for each in heard]) * SECONDS,
            times=np.array(frames) * SECONDS,
            spectra=DECIBELS * np.array([one.features[at] for one, at in zip(heard, frames, strict=True)]),
            pitches=np.array([one.pitch[at] for one, at in zip(heard, frames, strict=True)]),
            distortion=float(apart.sum() / (len(heard) * (len(heard) - 1))),
        )

    @property
    def cents(self) -> np.ndarray:
        """Deviation of F0 over the draws, of each frame that is voiced in most of them."""
        voiced = np.isfinite(self.pitches).mean(axis=0) >= VOICED
        return 1200 * np.nanstd(np.log2(self.pitches[:, voiced]), axis=0)

    def row(self) -> dict[str, float]:
        """Of the table."""
        found = {
            "length (s)": float(self.lengths.mean()),
            "its deviation (%)": float(100 * self.lengths.std() / self.lengths.mean()),
            "deviation of spectrum (dB)": float(self.spectra.std(axis=0).mean()),
            "MCD of two (dB)": self.distortion,
        }
        if len(self.cents):
            found["deviation of F0 (cents)"] = float(self.cents.mean())
        return found


def frames_along(ours: Heard, theirs: Heard) -> np.ndarray:
    """The frame of ours that belongs to each frame of theirs; of several, the middle one."""
    path, along = warped(ours.cepstra, theirs.cepstra)
    frames = np.arange(len(theirs.cepstra))
    first, end = (np.searchsorted(along, frames, side) for side in ("left", "right"))
    found: np.ndarray = path[(first + end - 1) // 2]
    return found


def plot(draws: Draws, text: str, path: Path) -> None:
    """The nearest draw, and along it the differences of the others."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 1, figsize=(8, 9), sharex=True, layout="constrained")
    seconds = np.arange(draws.times.shape[1]) * SECONDS
    whole = (0, seconds[-1], 0, draws.spectra.shape[2])
    pictures = {
        "mel spectrogram of one draw (dB)": draws.nearest.features * (10 / np.log(10)),
        "deviation over the draws (dB)": draws.spectra.std(axis=0),
    }
    for axis, (title, values) in zip(axes, pictures.items(), strict=False):
        shown = axis.imshow(values.T, aspect="auto", origin="lower", extent=whole)
        axis.set(ylabel="mel band", title=title)
        figure.colorbar(shown, ax=axis)
    for pitches, times in zip(draws.pitches, draws.times, strict=True):
        axes[2].plot(seconds, pitches, linewidth=0.7, alpha=0.7)
        axes[3].plot(seconds, times - seconds, linewidth=0.7, alpha=0.7)
    axes[2].set(ylabel="F0 (Hz)", title=f"F0 of {len(draws.times)} draws")
    axes[3].set(ylabel="later by (s)", xlabel="time in that draw (s)", title="time in each draw")
    for axis in axes[2:]:
        axis.grid(alpha=0.3)
    figure.suptitle(f"“{text}”")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def rate(text: str) -> float:
    """A rate of dropout, at least 0 and below 1."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 0 and below 1")
    return value


def main(arguments: list[str] | None = None) -> None:
    """Prints a table, and writes it and the picture."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of system synthesis")
    parser.add_argument("--output", type=new_file, required=True, metavar="STEM", help="names of the files")
    parser.add_argument("--text", default="three one seven", help="digits to speak (three one seven)")
    parser.add_argument("--count", type=positive, default=20, help="draws (20)")
    parser.add_argument("--rates", type=rate, nargs="+", default=RATES, help="of dropout (0.25 0.5)")
    parser.add_argument("--recordings", type=Path, help="folder of recorded digits (the built-in speaker)")
    parser.add_argument("--speaker", default="george", help="of the recordings (george)")
    given = parser.parse_args(arguments)
    needs("librosa", "soundfile", "matplotlib")
    words = given.text.split()
    if unknown := [word for word in words if word not in WORDS]:
        raise UserError(f"--text: {unknown[0]!r} is no digit; there are {', '.join(WORDS)}")
    if not words or given.count < 2:
        raise UserError("--text needs a digit, and --count at least 2 draws to compare")
    voice = Synthesizer.load(given.run)
    if not hasattr(voice.task.config.decoding, "prenet_dropout"):
        raise UserError(f"{given.run}: its search has no noise; name a run of system synthesis")
    rows = {"recordings": Draws.of(takes_of(given.recordings, given.speaker)(words, given.count)).row()}
    for dropout in given.rates:
        draws = Draws.of(voice.speak([given.text] * given.count, prenet_dropout=dropout))
        rows[f"dropout {dropout:g}"] = draws.row()
    plot(draws, given.text, given.output.with_suffix(".png"))
    report(given.output, {"about": machine(), "text": given.text, "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
