"""How late and how well words are recognised while their sound arrives.

`python -m benchmarks.quality.live RUN --output STEM` joins clips with known texts as
`benchmarks.quality.long_recordings` does, and transcribes the recording as it would arrive, with different
times between two transcripts (`--steps`), and once as a whole. It writes STEM.json and STEM.png, and prints
the word error rate, how much sound has come after the end of a word when it is final (mean, and what 95 % of
the words need at most), and the CPU time for a second of sound. Computing is not counted as delay.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from benchmarks.command import needs, positive, run
from benchmarks.measure import keep, machine, picture
from benchmarks.quality.long_recordings import Times, built_in, joined, recorded, words_of
from transformer import Transcriber
from transformer.data.signals.audio import RATE
from transformer.data.signals.waveforms import read_audio
from transformer.systems.speech.long import LiveText
from transformer.tasks.metrics.error_rates import word_errors

STEPS = (0.5, 1.0, 2.0, 4.0)
SHARE = 95  # percentile of the delays

Row = dict[str, float]


def delays(said: list[str], times: list[Times | None], heard: list[tuple[str, float]]) -> list[float]:
    """Seconds from the end of each right word until it is final."""
    matcher = SequenceMatcher(None, said, [word for word, _ in heard], autojunk=False)
    found = []
    for first, second, size in matcher.get_matching_blocks():
        for offset in range(size):
            known = times[first + offset]
            if known is not None:
                found.append(heard[second + offset][1] - known[1])
    return found


def measured(said: str, times: list[Times | None], texts: Iterable[LiveText]) -> Row:
    """The errors of what becomes final, and when it does, unless no word is right."""
    cpu, heard, seconds = time.process_time(), list[tuple[str, float]](), 0.0
    for text in texts:
        heard += [(word, text.seconds) for word in words_of(text.final)]
        seconds = text.seconds
    late = delays(said.split(), times, heard)
    found = {
        "word errors": word_errors([" ".join(word for word, _ in heard)], [said]).value,
        "CPU s": (time.process_time() - cpu) / seconds,
    }
    if late:
        found |= {"mean delay": float(np.mean(late)), "delay of 95 %": float(np.percentile(late, SHARE))}
    return found


def plot(rows: dict[str, Row], path: Path) -> None:
    """Errors by delay."""
    with picture(path, size=(5, 3.2)) as (_, [axis]):
        live = {name: row for name, row in rows.items() if "mean delay" in row}
        points = [(row["mean delay"], row["word errors"]) for row in live.values()]
        axis.plot([x for x, _ in points], [y for _, y in points], marker="o")
        for name, point in zip(live, points, strict=True):
            axis.annotate(f"{name} s", point, xytext=(4, 4), textcoords="offset points")
        axis.axhline(rows["whole"]["word errors"], linestyle="--", color="grey", label="whole recording")
        axis.set(xlabel="mean delay of a word (s)", ylabel="word error rate (%)")
        axis.set_xlim(0, 1.2 * max([x for x, _ in points], default=1))
        axis.set_ylim(0, 1.2 * max(row["word errors"] for row in rows.values()) + 1)
        axis.legend()
        axis.grid(alpha=0.3)


def main(arguments: list[str] | None = None) -> None:
    """Prints a table, and writes it and its picture."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of a recogniser")
    parser.add_argument("--output", type=Path, required=True, metavar="STEM", help="names of the files")
    parser.add_argument("--recordings", type=Path, help="folder of clips (the built-in digits)")
    parser.add_argument("--minutes", type=positive, default=3, help="length (3)")
    parser.add_argument("--steps", type=float, nargs="+", default=STEPS, help="seconds between transcripts")
    given = parser.parse_args(arguments)
    needs("jiwer", "soundfile", "matplotlib")
    transcriber = Transcriber.load(given.run)
    rows = dict[str, Row]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "talk.wav"
        clips, times = joined(
            recorded(given.recordings) if given.recordings else built_in(), 60 * given.minutes, path
        )
        said = " ".join(" ".join(words_of(clip.text)) for clip in clips)
        whole = " ".join(words_of(transcriber.transcribe(path)))
        rows["whole"] = {"word errors": word_errors([whole], [said]).value}
        wave = read_audio(path)
        for step in given.steps:
            for _ in transcriber.live([wave[: 20 * RATE]], step=step):  # compiles
                pass
            rows[f"{step:g}"] = measured(said, times, transcriber.live([wave], step=step))
            print(f"{step:g} s: {rows[f'{step:g}']}", flush=True)
    print("| seconds between transcripts | words wrong | mean delay | delay of 95 % | CPU s per second |")
    print("|---|---|---|---|---|")
    for name, row in rows.items():
        late = [f"{row[title]:.2f} s" if title in row else "" for title in ("mean delay", "delay of 95 %")]
        cpu = f"{row['CPU s']:.3f}" if "CPU s" in row else ""
        print(f"| {name} | {row['word errors']:.1f} % | {' | '.join(late)} | {cpu} |")
    print(keep(given.output, {"about": machine(), "rows": rows}, lambda path: plot(rows, path)))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
