"""Checks that memory does not grow: trains for 5,000 updates, then translates a million lines.

`python -m benchmarks.quality.endurance WORK` runs `train.py` with a small model on the built-in corpus, with
an evaluation and a checkpoint every 250 updates, then translates a million lines with `decode.py`. Once a
second it reads the memory of the process. The result is the growth from the second fifth of the time, when
all is compiled, to the last.
"""

import argparse
import itertools
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import keep, machine, picture, script
from transformer.data.built_in import pairs

MIB = 2**20
PARTS = 5
SMALL = {
    "--model.d-model": 64,
    "--model.d-ff": 128,
    "--model.num-heads": 2,
    "--data.built-in-size": 20_000,
    "--data.batch-tokens": 512,
    "--optimizer.warmup-steps": 100,
    "--training.log-every": 100,
}


@dataclass(frozen=True)
class Watched:
    """A process that has ended, and its memory in bytes, second by second."""

    name: str
    memory: list[int]

    def part(self, index: int) -> float:
        """Median memory in that part of the time, in MiB."""
        size = max(1, len(self.memory) // PARTS)
        return statistics.median(self.memory[index * size : (index + 1) * size]) / MIB

    @property
    def growth(self) -> float:
        """Growth from the second part to the last, in MiB."""
        return self.part(PARTS - 1) - self.part(1)


def resident(process: int) -> int:
    """Bytes of main memory of a process; 0 after it has ended (Linux)."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def watch(name: str, command: list[str], log: Path, every: float = 1.0) -> Watched:
    """Runs a command to its end.

    Raises:
      RuntimeError: it failed; its output is in `log`.
    """
    memory: list[int] = []
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            while process.poll() is None:
                if held := resident(process.pid):
                    memory.append(held)
                time.sleep(every)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise RuntimeError(f"{name} ended with status {process.returncode}: see {log}")
    return Watched(name, memory)


def write_lines(path: Path, lines: int, distinct: int = 50_000) -> None:
    """Writes English sentences of the built-in corpus, repeatedly."""
    some = [english for english, _ in itertools.islice(pairs(7, "train"), min(lines, distinct))]
    with open(path, "w", encoding="utf-8") as file:
        for line in track(itertools.islice(itertools.cycle(some), lines), f"writing {path}", lines):
            file.write(line + "\n")


def endure(work: Path, steps: int, lines: int, every: float = 1.0) -> list[Watched]:
    """Runs both processes, one after the other, with their files in `work`.

    Raises:
      RuntimeError: one of them failed, or not every line was translated.
    """
    work.mkdir(parents=True, exist_ok=True)
    run_dir, source, output = work / "run", work / "lines.en", work / "lines.de"
    often = {"--training.steps": steps, "--training.evaluate-every": max(1, steps // 20)}
    options = [word for option in (SMALL | often | {"--run-dir": run_dir}).items() for word in option]
    trained = watch(
        f"{steps:,} updates", script("train.py", "quickstart", *options), work / "train.log", every
    )
    write_lines(source, lines)
    search = ["--method", "greedy", "--rows", "256", "--output", str(output)]
    decode = script("decode.py", run_dir, "--input", source, *search)
    decoded = watch(f"{lines:,} lines", decode, work / "decode.log", every)
    with open(output, "rb") as file:
        if (written := sum(1 for _ in file)) != lines:
            raise RuntimeError(f"{output} has {written:,} lines of {lines:,}")
    return [trained, decoded]


def plot(found: list[Watched], path: Path) -> None:
    """Memory against time, a panel for each process."""
    with picture(path, columns=len(found), size=(9, 3.2)) as (_, axes):
        for axis, each in zip(axes, found, strict=True):
            axis.plot([held / MIB for held in each.memory])
            axis.set(xlabel="seconds", ylabel="MiB", title=each.name)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)


def main(arguments: list[str] | None = None) -> None:
    """Runs both, prints their memory, writes WORK/endurance.json and WORK/endurance.png."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for the run, the lines and the results")
    parser.add_argument("--steps", type=positive, default=5000, help="updates")
    parser.add_argument("--lines", type=positive, default=1_000_000, help="lines to translate")
    given = parser.parse_args(arguments)
    needs("matplotlib")
    found = endure(given.work, given.steps, given.lines)
    for each in found:
        held = ", ".join(f"{each.part(part):,.0f}" for part in range(PARTS))
        print(f"{each.name}: {len(each.memory):,} s; MiB by fifths of the time {held}: {each.growth:+,.0f}")
    memory = {each.name: each.memory for each in found}
    print(
        keep(given.work / "endurance", {"about": machine(), "memory": memory}, lambda path: plot(found, path))
    )


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
