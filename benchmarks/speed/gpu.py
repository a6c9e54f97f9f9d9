"""Training and decoding on one NVIDIA GPU, against PyTorch, CTranslate2 and Hugging Face.

`python -m benchmarks.speed.gpu` measures the cases that OUTPUT lacks, one after another, and begins none that
would not end within `--minutes`. A case is a line of OUTPUT (JSON), written when it is done: repeat the call
until it says that nothing is left. An interrupted call loses one case at most, and lines of several calls may
be joined. The programs of a case are processes of their own and take turns on the card; medians are compared.

plan: the compiler's estimate of an update (`train.py --plan`). It needs jax-cuda13-plugin, but no GPU.

train: updates of the presets base and big as `train.py` makes them on a GPU (bfloat16 products, float32
parameters and Adam's state, packed rows), with 25,000 tokens in rows of 128 and with 96 rows of 256. PyTorch
has the same network, weights and batch, with autocast to bfloat16, float32 parameters, torch.compile,
scaled_dot_product_attention and fused Adam; and once more without the masks between the sentences of a row,
since its fastest attention takes none (the same products, another result). A timed run is ten updates.

decode: beam search (beam 4) with 1, 64 and 256 sentences at once, ours in bfloat16, CTranslate2 and Hugging
Face in float16. The base model is trained for this, with 2,000 updates on the built-in corpus; most of its
32,000 subwords never occur there.

A share of the peak is the FLOPs of the matrix products over the time and the chip's peak. As in `--plan`,
masked products count, and recomputation does not.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.command import needs, new_file, positive, run, work_folder
from benchmarks.measure import Contestant, Measurement, gpu, machine, side_by_side
from benchmarks.speed import decoding
from benchmarks.speed.gpu_table import CARDS, markdown, place_of
from transformer.runtime.errors import UserError
from transformer.runtime.files import write_whole

if TYPE_CHECKING:
    from transformer import Config

Result = dict[str, Any]
Measure = Callable[[Namespace], Result]
"""options -> what a line of OUTPUT has."""

PRESETS = ("base", "big")
BATCHES: dict[str, dict[str, int]] = {
    "25,000 tokens": {},
    "96 x 256 tokens": {"max_length": 256, "batch_tokens": 96 * 256},
}
UPDATES = 10
SENTENCES = {1: 32, 64: 256, 256: 1000}
"""By how many are searched at once: how many a timed run translates."""
VOCABULARY = (32_000, 2_200)
"""Of the model to decode with, and of the quick one."""
ON_CARD = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""The environment of the programs. Without CUDA they fail, and do not run on the CPU."""
SIMULATED = "cpu:1"
"""What stands for the card in quick calls."""
PEERS = {
    "torch": ("train", ("torch",)),
    "torch-unmasked": ("train", ("torch",)),
    "ctranslate2": ("decode", ("ctranslate2", "torch", "transformers")),  # which convert the model
    "transformers": ("decode", ("torch", "transformers")),
}
"""Of each other program the part that it is in, and the libraries that it needs."""


def config_of(preset: str, batch: str, quick: bool = False) -> "Config":
    """A preset with such a batch, as it is trained on a GPU."""
    from transformer.systems.presets import PRESETS
    from transformer.systems.registry import find_system
    from transformer.systems.system import decided_for

    config = PRESETS[preset]
    data, network = replace(config.data, **BATCHES[batch]), config.model
    if quick:
        data = replace(data, vocab_size=300, batch_tokens=4 * data.max_length)
        network = replace(network, **decoding.QUICK)
    config = replace(config, data=data, model=network)
    return decided_for(find_system(config.system), config, "gpu")


def planned(preset: str, batch: str, given: Namespace) -> Result:
    """The compiler's estimate of an update: its seconds, if nothing overlaps, and its bytes."""
    from transformer.plan.machines import machine
    from transformer.plan.plan import Limits, compiled

    place = machine(given.place)
    config = config_of(preset, batch, given.quick)
    step = compiled("step", config, place, Limits(minutes=given.minutes))
    seconds = step["seconds"]["slowest"] if "seconds" in step else None
    return {"seconds": seconds, "memory": step["memory"]["total"]}


def trained(preset: str, batch: str, given: Namespace) -> Result:
    """Updates, timed; first the networks must agree on the loss of the batch."""
    from benchmarks.speed.training import case_of, check_losses, packed_contestants
    from transformer.plan.jobs import Job, training_flops
    from transformer.systems.registry import find_system

    config = config_of(preset, batch, given.quick)
    where = {"device": "cpu" if given.quick else "gpu", "updates": 2 if given.quick else UPDATES}
    case = case_of(preset, config, **where)
    contestants = packed_contestants(case, given.without)
    if len(contestants) > 1:
        check_losses(case)
    found = side_by_side(contestants, given.rounds)
    programs = [program(each) | {"memory": each.memory} for each in found]
    job = Job.of(find_system(config.system), config)
    flops = training_flops(job, job.objective(lambda path: None))
    return {"updates": case.updates, "tokens": case.tokens, "flops": flops, "programs": programs}


def decoded(batch: int, given: Namespace) -> Result:
    """Beam search with so many sentences at once."""
    from benchmarks.runs import sentences

    options = {"folder": given.work, "run_dir": given.model, "steps": given.steps, "quick": given.quick}
    options["vocab_size"] = VOCABULARY[given.quick]
    # in its own process, since it trains on the card
    (prepared,) = side_by_side([Contestant("the model", model, options)], 1, warm_up=0)
    run_dir = prepared.output
    sources = sentences(run_dir, 4 if given.quick else SENTENCES[batch])
    device = "cpu" if given.quick else "cuda"
    contestants = decoding.contestants_in_batches(run_dir, given.work, sources, batch, device, given.without)
    found = side_by_side(contestants, given.rounds)
    programs = [
        program(each)
        | {"tokens": sum(1 + len(pieces) for pieces in each.output)}  # with <eos>
        | {"identical": decoding.agreement(found[0].output, each.output)}
        for each in found
    ]
    return {"sentences": len(sources), "programs": programs}


def model(**options: Any) -> Callable[[], Path]:
    """Trains the model of `benchmarks.speed.decoding` unless it is there. Returns a function for its run."""
    run_dir = decoding.model(**options)
    return lambda: run_dir


def program(measured: Measurement) -> Result:
    """What every case has of a program."""
    return {"name": measured.name, "median": measured.median, "seconds": measured.seconds}


PARTS: dict[str, dict[str, Measure]] = {
    part: {f"{preset}, {batch}": partial(measure, preset, batch) for preset in PRESETS for batch in BATCHES}
    for part, measure in (("plan", planned), ("train", trained))
} | {"decode": {f"{count} at once": partial(decoded, count) for count in SENTENCES}}


def lines_of(path: Path) -> list[Result]:
    """The cases that a file has. A line that was cut off counts as none."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    try:
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if all(isinstance(line, dict) and {"part", "case", "card", "about"} <= line.keys() for line in lines):
            return lines
        raise ValueError("a line is no case of this program")
    except ValueError as error:
        raise UserError(
            f"{path}: not the output of an earlier call ({error}): name another --output"
        ) from None


def append(path: Path, line: Result) -> None:
    """Adds a case to a file, whole or not at all."""
    lines = [*lines_of(path), line]
    write_whole(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines))


def check(given: Namespace) -> None:
    """Raises UserError for whatever is missing, before anything is measured."""
    parts = set(given.part) - {"plan"}
    if parts and not given.quick and gpu() is None:
        raise UserError(
            "nvidia-smi finds no GPU: --part plan needs none, and --quick tries everything on the CPU"
        )
    others = [each for name, each in PEERS.items() if name not in given.without]
    libraries = {library for part, several in others if part in parts for library in several}
    try:
        needs(*sorted(libraries))
    except UserError as error:
        raise UserError(f"{error}; --without {' '.join(PEERS)} leaves programs out") from None
    if given.quick:
        return
    if not any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        raise UserError("JAX has no CUDA here: pip install '.[cuda]'")
    if parts:
        # in its own process, since this one leaves the card to the programs
        command = [sys.executable, "-c", "import jax; jax.devices()"]
        answer = subprocess.run(command, env=os.environ | ON_CARD, capture_output=True, text=True)
        if answer.returncode:
            raise UserError(
                f"JAX finds no GPU that it can use; JAX_PLATFORMS=cuda {shlex.join(command)} says why"
            )
    if "torch" in libraries:
        import torch

        if not torch.cuda.is_available():
            raise UserError(f"PyTorch {torch.__version__} has no CUDA here: install a build with it")
    if "ctranslate2" in libraries:
        try:
            decoding.load_cublas()
        except OSError as error:
            raise UserError(
                f"CTranslate2 needs CUDA 12's cuBLAS ({error}): pip install nvidia-cublas-cu12, or "
                "--without ctranslate2"
            ) from None


def main(arguments: list[str] | None = None) -> None:
    """Measures what OUTPUT lacks, as long as there is time, and prints the table."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--part", nargs="+", choices=PARTS, default=tuple(PARTS), help="what to measure (all)"
    )
    cases = tuple(dict.fromkeys(case for several in PARTS.values() for case in several))
    parser.add_argument(
        "--case", nargs="+", choices=cases, default=cases, metavar="CASE", help=f"{'; '.join(cases)} (all)"
    )
    parser.add_argument("--output", type=new_file, default=Path("gpu.jsonl"), help="a line for each case")
    parser.add_argument(
        "--machine",
        choices=tuple(CARDS.values()),
        default="h100:1",
        help="of the estimates, where no GPU is (h100:1)",
    )
    parser.add_argument("--table", action="store_true", help="print the table of OUTPUT, measure nothing")
    parser.add_argument("--minutes", type=positive, default=9, help="of this call, at most (9)")
    parser.add_argument("--rounds", type=positive, help="timed runs of each program (9; quick: 2)")
    parser.add_argument(
        "--without",
        nargs="+",
        choices=tuple(PEERS),
        default=(),
        help="programs to leave out, such as those missing",
    )
    parser.add_argument(
        "--work",
        type=work_folder,
        default=Path("runs/benchmarks"),
        help="folder for the model to decode with",
    )
    parser.add_argument("--model", type=Path, help="a run to decode with, instead of that one")
    parser.add_argument("--steps", type=positive, default=2000, help="updates of that one (2000)")
    parser.add_argument("--quick", action="store_true", help="small sizes on the CPU, to test that it runs")
    given = parser.parse_args(arguments)
    if given.table:
        print(markdown(lines_of(given.output)))
        return
    given.rounds = given.rounds or (2 if given.quick else 9)
    if not any(case in given.case for part in given.part for case in PARTS[part]):
        raise UserError(f"--part {' '.join(given.part)} has no case {', '.join(given.case)}: see --help")
    check(given)
    given.card = SIMULATED if given.quick else gpu()
    given.place = SIMULATED if given.quick else place_of(given.card) if given.card else given.machine
    if given.place is None:
        print(f"--plan does not know this card, {given.card}: no estimates")
    given.work.mkdir(parents=True, exist_ok=True)
    # for the processes of the programs; this one leaves the card to them
    os.environ |= {"JAX_PLATFORMS": "cpu"} if given.quick else ON_CARD
    import jax

    jax.config.update("jax_platforms", "cpu")
    left = measure(given)
    print(markdown(lines_of(given.output)))
    print(f"\nwritten to {given.output}; ", end="")
    print(f"left: {', '.join(left)}. Repeat the call." if left else "nothing is left")


def measure(given: Namespace) -> list[str]:
    """Measures and writes cases until there is no time for another. Returns those that are left.

    Raises:
      UserError: the first one alone takes longer than there is time.
    """
    deadline = time.monotonic() + 60 * given.minutes
    cards = dict.fromkeys(PARTS, given.card) | {"plan": given.place}
    done = {(line["part"], line["case"], line["card"]) for line in lines_of(given.output)}
    todo = [
        (part, case)
        for part in given.part
        if cards[part]  # without an estimate for a card that `--plan` does not know
        for case in PARTS[part]
        if case in given.case
        and (part, case, cards[part]) not in done
        and not (given.quick and case.startswith("big"))  # which would be the same small sizes
    ]
    longest = 0.0
    for number, (part, case) in enumerate(todo):
        start = time.monotonic()
        left = [" ".join(each) for each in todo[number:]]
        if number and start + longest > deadline:
            return left
        print(f"{part} {case} ...", flush=True)
        try:
            with time_limit(deadline - start):
                found = PARTS[part][case](given)
        except TimeoutError:
            if number:
                return left
            raise UserError(
                f"{left[0]}: not done in {given.minutes} minutes. Compiled programs are kept: repeat the "
                "call, or raise --minutes"
            ) from None
        took = time.monotonic() - start
        names = {"part": part, "case": case, "card": cards[part], "about": machine(), "took": took}
        append(given.output, names | found)
        longest = max(longest, took)
    return []


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread if the context takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
