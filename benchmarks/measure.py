"""Timing side by side: every contestant in a process of its own, all of them warm, by turns."""

import json
import multiprocessing
import os
import platform
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REST = 0.3  # seconds, before every turn: threads of the one before may still be waiting for work, busily


@dataclass(frozen=True)
class Contestant:
    """Somebody who does the work: `make(**options)` prepares, in the contestant's own process, and gives
    the function that is timed. What that returns is compared by the caller."""

    name: str
    make: Callable[..., Callable[[], Any]]
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """A contestant's seconds for each round, its output, and its process's peak memory in bytes."""

    name: str
    seconds: list[float]
    output: Any
    memory: int

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)


def side_by_side(contestants: Sequence[Contestant], rounds: int, warm_up: int = 2) -> list[Measurement]:
    """Runs all contestants by turns, so that what disturbs the machine disturbs all of them.

    Args:
      contestants: who.
      rounds: how often each is timed.
      warm_up: how often each runs before that, untimed.

    Raises:
      RuntimeError: a contestant failed; the message is its own.
    """
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for contestant in contestants:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, contestant), daemon=True)
            before = {name: os.environ.get(name) for name in contestant.environment}
            os.environ.update(contestant.environment)  # a spawned process takes it from its parent
            process.start()
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            processes.append(process)
            pipes.append(ours)
            for _ in range(1 + warm_up):
                _ask(ours, contestant)
        seconds: list[list[float]] = [[] for _ in contestants]
        last: list[tuple[Any, int]] = [(None, 0)] * len(contestants)
        order, shuffle = list(range(len(contestants))), random.Random(0).shuffle
        for _ in range(rounds):
            shuffle(order)
            for index in order:
                time.sleep(REST)
                elapsed, *last[index] = _ask(pipes[index], contestants[index])
                seconds[index].append(elapsed)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [
        Measurement(contestant.name, times, output, memory)
        for contestant, times, (output, memory) in zip(contestants, seconds, last, strict=True)
    ]


def _ask(pipe: Any, contestant: Contestant) -> tuple[float, Any, int]:
    pipe.send("go")
    try:
        answer = pipe.recv()
    except EOFError:
        answer = "its process ended"
    if isinstance(answer, str):
        raise RuntimeError(f"{contestant.name}: {answer}")
    return answer


def _serve(pipe: Any, contestant: Contestant) -> None:
    """A contestant's process: the first "go" prepares, every other one is timed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    run = None
    while True:
        pipe.recv()
        try:
            start, output = time.perf_counter(), None
            if run is None:
                run = contestant.make(**contestant.options)
            else:
                output = run()
            elapsed = time.perf_counter() - start
            pipe.send((elapsed, output, _peak_memory()))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
            return


def _peak_memory() -> int:
    """Of this process: the accelerator's where it uses one, else the host's."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch and torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    if jax and (stats := jax.devices()[0].memory_stats()):
        return int(stats["peak_bytes_in_use"])
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says includes the parent's, from before this process was another
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


GPUS = {"H200": (989e12, 4.8e12), "H100": (989e12, 3.35e12), "A100": (312e12, 2.04e12)}
"""Dense bfloat16 operations and bytes of memory a second, from the makers' data sheets."""


def gpu() -> str | None:
    """The first GPU's name. (Asked without JAX or PyTorch, which would take its memory.)"""
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.splitlines()[0].strip()


def peaks(name: str | None) -> tuple[float, float] | None:
    """A GPU's operations and bytes a second, where they are known."""
    return next((figures for model, figures in GPUS.items() if model in (name or "")), None)


def script(name: str, *options: str | Path) -> list[str]:
    """The command line that runs a program of this repository, wherever the caller stands."""
    return [sys.executable, str(ROOT / name), *map(str, options)]


def seconds_of(command: list[str]) -> float:
    """How long a whole process takes.

    Raises:
      RuntimeError: it failed; the message is its own.
    """
    start = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr[-1000:]}")
    return time.perf_counter() - start


def machine() -> dict[str, str]:
    """What the figures were made on."""
    names = ("jax", "flax", "torch", "transformers", "ctranslate2")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": f"{len(models)} x {models[0] if models else platform.processor()}",
        **({"gpu": name} if (name := gpu()) else {}),
        "python": platform.python_version(),
        **versions,
    }


def save(path: str, results: dict[str, Any]) -> None:
    """Writes the results as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, ensure_ascii=False)
        file.write("\n")


def keep(output: Path, results: dict[str, Any], draw: Callable[[Path], None]) -> str:
    """Writes results and their picture; returns the line that says where."""
    data, picture = output.with_suffix(".json"), output.with_suffix(".png")
    save(str(data), results)
    draw(picture)
    return f"{results['about']}\nwritten to {data} and {picture}"
