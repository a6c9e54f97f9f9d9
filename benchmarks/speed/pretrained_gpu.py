"""Pretrained shapes on one NVIDIA GPU: an update and a search, here and in transformers, beside `--plan`.

`python -m benchmarks.speed.pretrained_gpu` measures what OUTPUT lacks, the most interesting models first, and
begins nothing after `--minutes`. Each program of a case is a process of its own; when it ends, a line of
OUTPUT (JSON) is written. Repeat the call until it says that nothing is left. A program that fails, or takes
longer than `--limit`, leaves its reason there, and the others follow; the next call tries it again, last.

Weights are random, of the shapes in `benchmarks.speed.pretrained`, whose sizes of updates and searches these
are too. Both programs have the same number of parameters, and read the same data without padding.

update: `train.py` in bfloat16 with float32 parameters, --model.remat and Adam; a row has one sentence.
transformers: PyTorch with autocast to bfloat16, float32 parameters, gradient checkpointing and fused AdamW,
without torch.compile. Its T5 has dropout in two more places. A timed run is three updates.

adapter: the same with adapters (--adapter.rank) of all matrices but the embeddings; in transformers by peft.

search: the search of `decode.py` with 4 beams; all outputs have 128 tokens. Parameters are in bfloat16, as
those of transformers, whose `generate` has its default cache. search-float32: the same with float32
parameters, as a run has them. A step includes its share of the encoder. The estimates of `--plan` are for
float32 parameters and longer outputs, without the encoder.

Memory is the most that the allocator of JAX or PyTorch had in use, without the CUDA context.

`--prepare 8` first compiles the programs of JAX, eight at once, into the folder of compiled programs
(`transformer.runtime.compilation`): the call is shorter, but XLA chooses kernels while others use the card.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import new_file, positive, run
from benchmarks.measure import Contestant, gpu, machine, side_by_side
from benchmarks.speed import pretrained_programs
from benchmarks.speed.gpu import append, lines_of, time_limit
from benchmarks.speed.gpu_table import place_of
from benchmarks.speed.pretrained import RANK, SHAPES
from transformer.runtime.errors import UserError

PARTS = ("update", "adapter", "search", "search-float32")
PROGRAMS = ("transformer", "transformers")
ORDER = (
    ("NLLB-600M", "update"),
    ("NLLB-600M", "search"),
    ("NLLB-600M", "adapter"),
    ("Whisper-small", "update"),
    ("Whisper-small", "search"),
    ("T5-base", "update"),
    ("T5-base", "search"),
    ("NLLB-3.3B", "search"),
    ("Whisper-large-v3", "search"),
    ("Whisper-large-v3", "update"),
    ("NLLB-1.3B", "update"),
    ("NLLB-1.3B", "search"),
    ("NLLB-3.3B", "update"),
    *((model, "adapter") for model in SHAPES if model != "NLLB-600M"),
    *((model, "search-float32") for model in SHAPES),
)
"""All cases, the most interesting first."""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cuda",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
"""Of the programs. Each has the card alone."""
REASON = 300
"""Letters of the reason of a failure."""
Case = tuple[str, str, str]
"""Model, part, program."""


def contestant(case: Case, quick: bool) -> Contestant:
    """The program that measures a case."""
    model, part, program = case
    what = "search" if part.startswith("search") else "update"
    options: dict[str, Any] = {"name": model, "quick": quick}
    if part == "adapter":
        options["adapter"] = True
    if program == "transformers":
        options["device"] = "cpu" if quick else "cuda"
    elif what == "search":
        options["matrices"] = "float32" if part.endswith("float32") else "bfloat16"
    make = pretrained_programs.PROGRAMS[program, what]
    return Contestant(program, make, options, environment(quick))


def environment(quick: bool) -> dict[str, str]:
    """Of the programs."""
    return {"JAX_PLATFORMS": "cpu"} if quick else ENVIRONMENT


def measured(case: Case, given: Namespace) -> dict[str, Any]:
    """Seconds of each timed run, peak memory in bytes, and what the program says of its work; or why it
    failed."""
    try:
        (found,) = side_by_side([contestant(case, given.quick)], given.rounds, warm_up=1)
    except RuntimeError as error:
        return {"failed": " ".join(str(error).split())[:REASON]}
    return {"seconds": found.seconds, "median": found.median, "memory": found.memory, **found.output}


def prepare(cases: Sequence[Case], given: Namespace) -> None:
    """Compiles the programs of these cases, several at once, for at most `--limit` seconds. One that fails
    will say why when it is measured."""
    end = time.monotonic() + given.limit
    before = dict(os.environ)
    os.environ |= environment(given.quick) | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        with multiprocessing.get_context("spawn").Pool(given.prepare, maxtasksperchild=1) as pool:
            results = [pool.apply_async(run_once, (contestant(case, given.quick),)) for case in cases]
            for result in results:
                with contextlib.suppress(Exception):
                    result.get(max(0.0, end - time.monotonic()))
    finally:
        os.environ.clear()
        os.environ |= before


def run_once(each: Contestant) -> None:
    """Runs a program, in this process."""
    each.make(**each.options)()


def todo(given: Namespace) -> list[Case]:
    """The chosen cases that OUTPUT lacks, and after them those that failed."""
    lines = [line for line in lines_of(given.output) if line["card"] == given.card]
    tried = {(line["case"], line["part"], line["program"]): "failed" not in line for line in lines}
    cases = [
        (model, part, program)
        for model, part in ORDER
        for program in PROGRAMS
        if model in given.models and part in given.part and program in given.programs
        if (part, program) != ("search-float32", "transformers")
    ]
    return [case for case in cases if case not in tried] + [
        case for case in cases if tried.get(case) is False
    ]


def measure(given: Namespace) -> list[Case]:
    """Measures and writes cases as long as there is time. Returns those that are left."""
    deadline = time.monotonic() + 60 * given.minutes
    cases = todo(given)
    if given.prepare:
        print(f"compiling, {given.prepare} at once ...", end=" ", flush=True)
        prepare([case for case in cases if case[2] == "transformer"], given)
        print(f"{time.monotonic() - deadline + 60 * given.minutes:.0f} s", flush=True)
    for number, case in enumerate(cases):
        start = time.monotonic()
        left = deadline - start
        if left <= 0:
            return cases[number:]
        print(f"{' '.join(case)} ...", end=" ", flush=True)
        try:
            with time_limit(min(left, given.limit)):
                found = measured(case, given)
        except TimeoutError:
            if left < given.limit:
                print("no time is left", flush=True)
                return cases[number:]
            found = {"failed": f"{case[2]}: it takes longer than --limit {given.limit} seconds"}
        took = time.monotonic() - start
        model, part, program = case
        names = {"part": part, "case": model, "program": program, "card": given.card, "took": took}
        append(given.output, {**names, "about": machine(), **found})
        said = found.get("failed") or f"{1e3 * found['median'] / found['steps']:.1f} ms a step"
        print(f"{said} ({took:.0f} s in all)", flush=True)
    return []


# The table

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
"""A program, as a line of OUTPUT has it."""


def markdown(lines: Iterable[Line], plan: Path | None = None) -> str:
    """The tables of all cards, and below each what failed or is not comparable.

    Args:
      lines: of OUTPUT. Of several for the same program, the last one counts.
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


def main(arguments: list[str] | None = None) -> None:
    """Measures what OUTPUT lacks, as long as there is time, and prints the table."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--models", nargs="+", choices=SHAPES, default=tuple(SHAPES), help="all, if not given"
    )
    parser.add_argument(
        "--part", nargs="+", choices=PARTS, default=("update", "search"), help="of each model (update search)"
    )
    parser.add_argument(
        "--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS, help="both, if not given"
    )
    parser.add_argument(
        "--output", type=new_file, default=Path("pretrained_gpu.jsonl"), help="a line for each program"
    )
    parser.add_argument("--plan", type=Path, help="OUTPUT of benchmarks.speed.pretrained: its estimates")
    parser.add_argument("--table", action="store_true", help="print the table of OUTPUT, measure nothing")
    parser.add_argument("--minutes", type=positive, default=7, help="of this call, at most (7)")
    parser.add_argument("--limit", type=positive, default=180, help="seconds of one program, at most (180)")
    parser.add_argument("--rounds", type=positive, default=3, help="timed runs of each program (3)")
    parser.add_argument("--prepare", type=positive, metavar="N", help="compile N programs at once before")
    parser.add_argument("--quick", action="store_true", help="small sizes on the CPU, to test that it runs")
    given = parser.parse_args(arguments)
    if given.plan and not given.plan.is_file():
        raise UserError(f"--plan {given.plan}: no such file; python -m benchmarks.speed.pretrained writes it")
    given.card = "cpu" if given.quick else gpu()
    left: list[Case] = []
    if not given.table:
        if given.card is None:
            raise UserError("nvidia-smi finds no GPU: --quick tries everything on the CPU")
        os.environ["JAX_PLATFORMS"] = "cpu"  # this process leaves the card to the programs
        left = measure(given)
    print(markdown(lines_of(given.output), given.plan))
    print(f"\nwritten to {given.output}; ", end="")
    print(f"left: {', '.join(map(' '.join, left))}. Repeat the call." if left else "nothing is left")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
