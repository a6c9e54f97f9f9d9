"""The table of `python -m benchmarks.speed.pretrained_gpu`, in Markdown."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.speed.gpu_table import place_of
from benchmarks.speed.pretrained import RANK
from transformer.runtime.errors import UserError

HEAD = (
    *("model", "", "here", "transformers", "time, x ours", "tokens/s here", "tokens/s there"),
    *("memory here", "memory there", "`--plan`"),
)
WHAT = {
    "update": "an update",
    "adapter": f"an update, adapters of rank {RANK}",
    "search": "a step of the search",
    "search-float32": "a step of the search, float32 parameters",
}
PLANNED = {"update": "step", "adapter": "adapter", "search": "search", "search-float32": "search"}
"""What `benchmarks.speed.pretrained` calls it."""
CLOSE = 0.001
"""Share by which numbers of parameters may differ."""
Line = dict[str, Any]
"""A program, as `benchmarks.speed.pretrained_gpu` writes it."""


def markdown(lines: Iterable[Line], plan: Path | None = None) -> str:
    """The tables of all cards, and below each what failed or is not comparable.

    Args:
      lines: of `benchmarks.speed.pretrained_gpu`. Of several for the same program, the last one counts.
      plan: OUTPUT of `benchmarks.speed.pretrained`.
    """
    cards: dict[str, dict[tuple[str, str], dict[str, Line]]] = {}
    for line in lines:
        cases = cards.setdefault(line["card"], {})
        cases.setdefault((line["case"], line["part"]), {})[line["program"]] = line
    if not cards:
        return "nothing is measured yet"
    planned = estimates(plan) if plan else {}
    return "\n\n".join(_of_card(card, cases, planned) for card, cases in cards.items())


def estimates(plan: Path) -> dict[tuple[str, str, str], Any]:
    """The estimates of a file, by model, machine and "step" or "search".

    Raises:
      UserError: it is another file.
    """
    try:
        rows = json.loads(plan.read_text(encoding="utf-8"))["rows"]
        return {(row["model"], row["machine"], row["what"]): row["found"] for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{plan}: not the output of benchmarks.speed.pretrained ({error!r})") from None


def _of_card(card: str, cases: dict[tuple[str, str], dict[str, Line]], planned: dict[Any, Any]) -> str:
    abouts = {
        ", ".join(f"{key} {value}" for key, value in line["about"].items())
        for programs in cases.values()
        for line in programs.values()
    }
    place = place_of(card)
    rows = [
        _row(model, part, programs, planned.get((model, place, PLANNED[part])))
        for (model, part), programs in cases.items()
    ]
    notes = [note for (model, part), programs in cases.items() for note in _notes(model, part, programs)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ("---",) * len(HEAD), *rows))
    listed = "\n".join(f"- {note}" for note in notes)
    return "\n\n".join(filter(None, (f"**{card}** ({'; '.join(sorted(abouts))})", table, listed)))


def _row(model: str, part: str, programs: dict[str, Line], estimate: Any) -> tuple[str, ...]:
    here, there = programs.get("transformer", {}), programs.get("transformers", {})
    ratio = f"{_step(there) / _step(here):.2f}" if "median" in here and "median" in there else ""
    return (
        *(model, WHAT[part], _milliseconds(here), _milliseconds(there), ratio),
        *(f"{line['tokens'] * _per_run(line):,.0f}" if "median" in line else "" for line in (here, there)),
        *(f"{line['memory'] / 1e9:.1f} GB" if "median" in line else "" for line in (here, there)),
        _estimated(estimate),
    )


def _step(line: Line) -> float:
    """Seconds of an update, or of a step of the search."""
    return float(line["median"] / line["steps"])


def _per_run(line: Line) -> float:
    """How often in a second a batch is trained on, or searched."""
    return float((line["steps"] if line["part"] in ("update", "adapter") else 1) / line["median"])


def _milliseconds(line: Line) -> str:
    if "failed" in line:
        return "failed"
    return f"{1e3 * _step(line):.1f} ms" if line else ""


def _estimated(estimate: Any) -> str:
    if not estimate or "failed" in estimate:
        return ""
    seconds = estimate.get("seconds", {})
    time = f"{1e3 * seconds['slowest']:.1f} ms, " if "slowest" in seconds else ""
    return f"{time}{estimate['memory']['total'] / 1e9:.1f} GB"


def _notes(model: str, part: str, programs: dict[str, Line]) -> Iterable[str]:
    """What failed, and differences in the work."""
    for line in programs.values():
        if "failed" in line:
            yield f"{model}, {part}, {line['failed']}"
    finished = [line for line in programs.values() if "median" in line]
    for what, close in (("parameters", CLOSE), ("tokens", 0.0)):
        numbers = [line[what] for line in finished]
        if numbers and max(numbers) - min(numbers) > close * max(numbers):
            yield f"{model}, {part}: not comparable, {what}: {' and '.join(f'{n:,}' for n in numbers)}"
