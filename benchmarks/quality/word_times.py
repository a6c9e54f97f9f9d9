"""How exact the times of words are.

`python -m benchmarks.quality.word_times RUN` lets a recogniser of the built-in spoken digits, such as that of
`train.py speech`, say when each word of new recordings begins and ends, and compares that with what the
built-in synthesiser did. Recordings with an error in a word are left out.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.command import positive, run
from transformer import Transcriber
from transformer.data.sources.recordings import digits
from transformer.tasks.media.timing import timed

TEST = 2  # number of the test split
NEAR = 0.1  # seconds


def errors(
    transcriber: Transcriber, count: int, most: int, by_attention: bool = False
) -> tuple[np.ndarray, int]:
    """The differences in seconds, with columns for starts and ends, of all words; and how many recordings
    were left out. `by_attention`: times by attention also if the run has CTC."""
    found, wrong = [], 0
    asked = {"alignments": True} if by_attention else {}
    for index in range(count):
        said = digits(TEST, index, most)
        best = transcriber.search([said.wave], n_best=1, times=True, **asked)[0][0]
        if best.text.split() != said.words:
            wrong += 1
            continue
        words = best.words
        if by_attention:
            words = timed(best.ids, best.alignment, transcriber.task.tokenizer, transcriber.frame)
        heard = [(word.start, word.end) for word in words]
        found += [np.subtract(times, true) for times, true in zip(heard, said.times, strict=True)]
    return np.array(found).reshape(-1, 2), wrong


def main(arguments: list[str] | None = None) -> None:
    """Prints the mean error of starts and ends, and how many words have both."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of a recogniser of the built-in digits")
    parser.add_argument("--count", type=positive, default=200, help="recordings (200)")
    parser.add_argument("--most", type=positive, default=5, help="most digits of a recording (5)")
    parser.add_argument("--attention", action="store_true", help="times by attention, also of a run with CTC")
    given = parser.parse_args(arguments)
    found, wrong = errors(Transcriber.load(given.run), given.count, given.most, given.attention)
    print(f"{len(found)} words of {given.count - wrong} recordings; {wrong} left out, with another word")
    for name, each in zip(("starts", "ends"), found.T, strict=True):
        late = f"{each.mean():+.3f} s on average" if len(each) else "none"
        print(f"{name}: {np.abs(each).mean():.3f} s off, {late}")
    near = f"{(np.abs(found).max(axis=1) <= NEAR).mean():.1%}" if len(found) else "none"
    print(f"words that begin and end within {NEAR:g} s of where they do: {near}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
