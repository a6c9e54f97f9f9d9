"""How well runs on the corpora `sorting` and `convex-hull` do at lengths beyond those of training.

`python -m benchmarks.lengths RUN [RUN ...]` prints a Markdown table: for each number of words in a line, how
many of so many lines each run answers exactly, by greedy search. The lines are of the test split.
"""

import argparse
import itertools
from pathlib import Path

from benchmarks.command import positive, run
from benchmarks.measure import machine
from transformer.data.sources.pointing import TASKS, pairs
from transformer.errors import UserError
from transformer.translator.translator import Translator

LENGTHS = [4, 8, 12, 16, 24, 32]


def exact(translator: Translator, length: int, count: int) -> float:
    """The share of lines of so many words with the right answer.

    Raises:
      UserError: the run is of another corpus.
    """
    task = getattr(translator.config.data, "dataset", "")
    if task not in TASKS:
        raise UserError(f"a run on {' or '.join(TASKS)} is needed, not on {task or 'another corpus'}")
    lines = list(itertools.islice(pairs(task, "test", lengths=[length]), count))
    room = {"method": "greedy", "buckets": (length + 1,), "rows": 50}
    found = translator.translate([source for source, _ in lines], **room)
    right = sum(text == target for text, (_, target) in zip(found, lines, strict=True))
    return right / len(lines)


def main(arguments: list[str] | None = None) -> None:
    """Prints a row for each run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lengths", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    parser.add_argument("--lengths", type=positive, nargs="+", default=LENGTHS, help="words of a line")
    parser.add_argument("--count", type=positive, default=200, help="lines of each length")
    given = parser.parse_args(arguments)
    print("| words |", " | ".join(map(str, given.lengths)), "|")
    print("|---" * (len(given.lengths) + 1) + "|")
    for path in given.runs:
        translator = Translator.load(path)
        shares = (f"{exact(translator, length, given.count):.1%}" for length in given.lengths)
        print(f"| {path.name} |", " | ".join(shares), "|", flush=True)
    print(machine())


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.lengths", main))
