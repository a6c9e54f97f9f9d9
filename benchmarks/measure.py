"""What benchmarks share: programs that take turns, in processes or compiled in this one, and results that are
written and drawn. (JAX and matplotlib are imported where they are used: peers have neither.)"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
REST = 0.3  # seconds before every turn: threads of the previous contestant may still be busy-waiting


@dataclass(frozen=True)
class Contestant:
    """A program to time. `make(**options)` runs in the contestant's own process and returns the function to
    time, whose output the caller compares."""

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
    cpu_seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def cpu_median(self) -> float:
        """Seconds of all its process's threads: steadier than `median` on a machine that has other work."""
        return statistics.median(self.cpu_seconds)


def side_by_side(contestants: Sequence[Contestant], rounds: int, warm_up: int = 2) -> list[Measurement]:
    """Runs contestants in turns, so that a disturbance of the machine affects all of them.

    Args:
      contestants: the programs to time.
      rounds: timed runs of each.
      warm_up: untimed runs of each before.

    Raises:
      RuntimeError: a contestant failed, with its message.
    """
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for contestant in contestants:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, contestant), daemon=True)
            before = {name: os.environ.get(name) for name in contestant.environment}
            os.environ.update(contestant.environment)  # a spawned process inherits it
            process.start()
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            processes.append(process)
            pipes.append(ours)
            for _ in range(1 + warm_up):
                _ask(ours, contestant)
        seconds: list[list[float]] = [[] for _ in contestants]
        cpu_seconds: list[list[float]] = [[] for _ in contestants]
        last: list[tuple[Any, int]] = [(None, 0)] * len(contestants)
        order, shuffle = list(range(len(contestants))), random.Random(0).shuffle
        for _ in range(rounds):
            shuffle(order)
            for index in order:
                time.sleep(REST)
                elapsed, used, *last[index] = _ask(pipes[index], contestants[index])
                seconds[index].append(elapsed)
                cpu_seconds[index].append(used)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [
        Measurement(contestant.name, times, output, memory, used)
        for contestant, times, used, (output, memory) in zip(
            contestants, seconds, cpu_seconds, last, strict=True
        )
    ]


def _ask(pipe: Any, contestant: Contestant) -> tuple[float, float, Any, int]:
    pipe.send("go")
    try:
        answer = pipe.recv()
    except EOFError:
        answer = "its process ended"
    if isinstance(answer, str):
        raise RuntimeError(f"{contestant.name}: {answer}")
    return answer


def _serve(pipe: Any, contestant: Contestant) -> None:
    """The process of a contestant: the first "go" prepares, all others are timed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    run = None
    while True:
        pipe.recv()
        try:
            start, before, output = time.perf_counter(), time.process_time(), None
            if run is None:
                run = contestant.make(**contestant.options)
            else:
                output = run()
            elapsed, used = time.perf_counter() - start, time.process_time() - before
            pipe.send((elapsed, used, output, _peak_memory()))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
            return


@dataclass(frozen=True)
class Program:
    """A compiled program with its arguments."""

    call: Callable[[], Any]
    bytes: int
    """Memory for results in between, besides arguments and results."""


def compiled(function: Callable[..., Any], *arguments: Any) -> Program:
    """The program of a function for these arguments."""
    import jax

    program = jax.jit(function).lower(*arguments).compile()
    about = program.memory_analysis()
    return Program(lambda: program(*arguments), 0 if about is None else about.temp_size_in_bytes)


def medians(programs: Sequence[Program], rounds: int, what: str = "") -> list[float]:
    """Median seconds of each program. They take turns, so that a disturbance of the machine affects all of
    them. The first round, which warms up, does not count. `what` is the title of a progress bar; none: no
    bar."""
    import jax
    from rich.progress import track

    seconds: list[list[float]] = [[] for _ in programs]
    for _ in track(range(rounds + 1), what, disable=not what):
        for program, times in zip(programs, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(program.call())
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]


def _peak_memory() -> int:
    """Peak memory of this process in bytes: of the accelerator if it uses one, otherwise of the host."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch and torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    if jax and (stats := jax.devices()[0].memory_stats()):
        return int(stats["peak_bytes_in_use"])
    return peak_memory_of_host()


def peak_memory_of_host() -> int:
    """Bytes of memory that this process has held at most."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage includes the memory of the parent from before the exec
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def gpu(field: str = "name") -> str | None:
    """The name of the first GPU, or another field that nvidia-smi can query. None: there is no GPU. (Without
    JAX or PyTorch, which would take its memory.)"""
    try:
        command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.splitlines()[0].strip()


def script(name: str, *options: str | Path) -> list[str]:
    """The command line of a program of this repository, from any folder."""
    return [sys.executable, str(ROOT / name), *map(str, options)]


def seconds_of(command: list[str]) -> float:
    """The time of a whole process.

    Raises:
      RuntimeError: it failed; the message is its own.
    """
    start = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr[-1000:]}")
    return time.perf_counter() - start


def machine() -> dict[str, str]:
    """The machine and the versions that were measured."""
    names = ("jax", "jax-cuda13-plugin", "flax", "torch", "transformers", "ctranslate2")
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
        **({"gpu": name, "driver": gpu("driver_version") or ""} if (name := gpu()) else {}),
        "python": platform.python_version(),
        **versions,
    }


def save(path: str, results: dict[str, Any]) -> None:
    """Writes the results as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, ensure_ascii=False)
        file.write("\n")


def table(rows: dict[str, dict[str, float]]) -> str:
    """Markdown: a row for each name. What is named `± TITLE` is half the width of the interval of TITLE, and
    stands beside it."""
    titles = list(dict.fromkeys(title for values in rows.values() for title in values if title[0] != "±"))
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for name, values in rows.items():
        cells = [name]
        for title in titles:
            value = f"{values[title]:.1f}" if title in values else ""
            interval = values.get(f"± {title}")
            cells.append(value if interval is None else f"{value} ± {interval:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(stem: Path, results: dict[str, Any], table: str) -> None:
    """Prints a table in Markdown, and writes it to STEM.md and the results to STEM.json."""
    save(str(stem.with_suffix(".json")), results)
    stem.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    print(f"{table}\n{results['about']}\nwritten to {stem.with_suffix('.json')} and {stem.name}.md")


def keep(output: Path, results: dict[str, Any], draw: Callable[[Path], None]) -> str:
    """Writes results and their picture. Returns a line that names the files."""
    data, picture = output.with_suffix(".json"), output.with_suffix(".png")
    save(str(data), results)
    draw(picture)
    return f"{results['about']}\nwritten to {data} and {picture}"


@contextmanager
def picture(
    path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], sharey: bool = False
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure to draw on, which is saved at the end.

    Args:
      path: the file, PNG or SVG. An SVG of the same drawing has the same bytes.
      rows: of panels.
      columns: of panels.
      size: width and height of the figure, in inches.
      sharey: whether the panels have one vertical axis.

    Yields:
      The figure, and its panels row by row.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")  # not pyplot's, which may open a window
    axes = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    yield figure, list(axes.flat)
    if path.suffix == ".svg":
        with rc_context({"svg.hashsalt": path.stem}):
            figure.savefig(path, metadata={"Date": None})
    else:
        figure.savefig(path, dpi=110)
