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
import multiprocessing
import os
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import new_file, positive, run
from benchmarks.measure import Contestant, gpu, machine, side_by_side
from benchmarks.speed import pretrained_peer, pretrained_programs
from benchmarks.speed.gpu import append, lines_of, time_limit
from benchmarks.speed.pretrained import SHAPES
from benchmarks.speed.pretrained_gpu_table import markdown
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
    of = pretrained_peer if program == "transformers" else pretrained_programs
    return Contestant(program, getattr(of, what), options, environment(quick))


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
