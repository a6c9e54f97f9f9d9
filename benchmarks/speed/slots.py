"""Slots over time: which sentence each slot of a search holds at each step.

`python -m benchmarks.speed.slots RUN` translates test sentences of a run in one lane and draws it. Where a
bar is pale, the sentence is done and the host has not put another in its place yet.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import needs, new_file, positive, run
from benchmarks.measure import keep, machine
from benchmarks.plotting import picture
from benchmarks.runs import sentences
from transformer.decoding.scores import SearchResult
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.service.lanes import Lane, LaneSnapshot, ProgramKey, sizes
from transformer.decoding.service.queue import Queue, Request
from transformer.runtime.errors import UserError
from transformer.translator.translator import Translator


@dataclass(frozen=True)
class Part:
    """Some steps of a slot, from one look of the host to the next."""

    slot: int
    sentence: int
    start: int
    end: int
    used: int
    """Steps until the sentence was done."""


class WatchedLane(Lane):
    """A lane that records what its slots hold."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.parts: list[Part] = []
        self.steps = 0
        self._lengths_before: dict[int, int] = {}

    def _done(self, snapshot: LaneSnapshot) -> Iterator[tuple[Request, SearchResult]]:
        assert self.slots is not None
        end = self.steps + (int(self.slots.column) - self.steps) % self.size.columns
        for slot, request in enumerate(self.owners):
            if request:
                length = int(self.slots.length[slot])
                used = length - self._lengths_before.get(request.line, 0)
                self._lengths_before[request.line] = length
                self.parts.append(Part(slot, request.line, self.steps, end, used))
        self.steps = end
        return super()._done(snapshot)


def watched(run_dir: Path, count: int, rows: int) -> list[Part]:
    """What the slots of the first lane hold while it translates. Sentences that are too long for it are left
    out."""
    translator = Translator.load(run_dir)
    settings = translator.settings(None, {})
    fields = translator.task.input_fields
    search = translator.system.search
    if not isinstance(search, AutoregressiveSearch):
        raise UserError(f"{run_dir}: {translator.config.system} has its own search, without slots")
    job = ProgramKey(search, translator.model, settings.static(), tuple(fields.items()))
    size, queue = sizes(job, rows)[0], Queue(2)
    records = [(source, "") for source in sentences(run_dir, count)]
    examples = translator.task.input_examples(records, settings.buckets[-1], ())
    queue.put(
        Request(example, len(example["source"]), line, settings, None, lambda result, _: result)
        for line, example in enumerate(examples)
        if len(example["source"]) <= size.inputs
    )
    lane = WatchedLane(0, job, size, translator.variables, queue)
    while lane.busy or queue.waiting(0):
        for _ in lane.turn():
            pass
    return lane.parts


def plot(parts: list[Part], path: Path) -> None:
    """A row for each slot, a colour for each sentence."""
    from matplotlib import colormaps

    slots = 1 + max(part.slot for part in parts)
    colours = colormaps["tab20"].colors  # type: ignore[attr-defined]
    with picture(path, size=(9, 1.2 + 0.22 * slots)) as (_, [axes]):
        for part in parts:
            colour = colours[part.sentence % len(colours)]
            axes.barh(part.slot, part.end - part.start, left=part.start, color=colour, alpha=0.25)
            axes.barh(part.slot, part.used, left=part.start, color=colour)
        axes.set(xlabel="step", ylabel="slot", xlim=(0, max(part.end for part in parts)))
        axes.set_yticks(range(slots), [str(slot + 1) for slot in range(slots)])
        axes.invert_yaxis()


def main(arguments: list[str] | None = None) -> None:
    """Translates, prints how much of the slots was used, writes OUTPUT.json and OUTPUT.png."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--count", type=positive, default=100, help="sentences of its test set")
    parser.add_argument("--rows", type=positive, default=16, help="slots")
    parser.add_argument("--output", type=new_file, default=Path("slots"), help="writes OUTPUT.json, .png")
    given = parser.parse_args(arguments)
    needs("matplotlib")
    parts = watched(given.run, given.count, given.rows)
    used, held = sum(part.used for part in parts), sum(part.end - part.start for part in parts)
    results = {"about": machine(), "parts": [asdict(part) for part in parts]}
    written = keep(given.output, results, lambda path: plot(parts, path))
    steps = max(part.end for part in parts)
    count = len({part.sentence for part in parts})
    print(f"{count} sentences in {steps} steps; {used / held:.0%} of the steps of filled slots were used")
    print(written)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
