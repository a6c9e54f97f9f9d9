"""What a training spends before its first update, by stage: from nothing, and when it is resumed.

`python -m benchmarks.speed.start quickstart`. Each start is its own process, stopped after its first
update. The first one has an empty cache; the second one resumes the run. `--config runs/mine/config.json`
measures another training, such as one in shards, with the cache that it names.

`python -m benchmarks.speed.start --serve RUN` is about a server: until it is ready, and until all programs
are compiled, also its memory.

With `--save`, how long it waits for a checkpoint instead, of random numbers in the shapes of a preset, or of
`nllb-600m`, with the two averages of Adam.
"""

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.command import run
from transformer.config.options import Config
from transformer.runs.config_json import from_json
from transformer.systems.presets import preset

NAMES = "imports", "corpus", "vocabulary", "examples", "plan", "state", "first update"
"""The stages. The rest is the time between them."""


def main(arguments: list[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("preset", nargs="?", default="quickstart", help="see train.py --list-presets")
    parser.add_argument("--config", type=Path, help="config.json of a run, instead of a preset")
    parser.add_argument("--serve", type=Path, metavar="RUN", help="a run to serve, instead of a training")
    parser.add_argument("--stages", type=Path, help=argparse.SUPPRESS)  # in its own process
    parser.add_argument("--save", action="store_true", help="measure checkpoints")
    given = parser.parse_args(arguments)
    if given.serve:
        with tempfile.TemporaryDirectory() as folder:
            for start in "empty store of programs", "second start":
                print(start)
                serve(given.serve, Path(folder))
        return
    if given.save:
        print_saves(given.preset)
        return
    preset(given.preset)
    if given.stages:
        started(_config(given.preset, given.config), given.stages)
        return

    from rich.console import Console
    from rich.table import Table

    from benchmarks.measure import machine

    with tempfile.TemporaryDirectory() as folder:
        config = ["--config", os.fspath(given.config)] if given.config else []
        starts = [measured([given.preset, *config], Path(folder)) for _ in range(2)]
    table = Table("stage", "from nothing, CPU s", "wall s", "resumed, CPU s", "wall s")
    for name in (*NAMES, "rest", "all"):
        cells = (starts[i].get(name, (0.0, 0.0))[j] for i in range(2) for j in range(2))
        table.add_row(name, *(f"{seconds:.1f}" for seconds in cells))
    Console().print(table)
    print(machine())


NLLB = {"num_layers": 12, "d_model": 1024, "d_ff": 4096, "num_heads": 16, "vocab_size": 256_206}


def print_saves(name: str) -> None:
    """Prints how long training waits for each of two checkpoints, and until they are complete."""
    import jax
    import numpy as np

    from benchmarks.measure import machine
    from transformer.runs import checkpoints as module
    from transformer.runs.checkpoints import Checkpoints
    from transformer.runs.sealed import MANIFEST
    from transformer.runs.stores import RunStore
    from transformer.systems.parameters import model_shapes
    from transformer.systems.registry import find_system

    config = preset("big" if name == "nllb-600m" else name)
    system = find_system(config.system)
    config = system.task.without_corpus(config).config
    if name == "nllb-600m":
        config = replace(config, model=replace(config.model, **NLLB))
    shapes = model_shapes(system, config)["params"]
    rng = np.random.default_rng(0)
    params, first, second = (
        jax.tree.map(lambda leaf: jax.numpy.asarray(rng.random(leaf.shape, np.float32)), shapes)
        for _ in range(3)
    )
    items = {"model": {"params": params}, "training": {"optimizer": {"mu": first, "nu": second}}}
    module.items_of = lambda state: items  # type: ignore[assignment]
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(jax.block_until_ready(items)))
    with tempfile.TemporaryDirectory() as folder:
        saved = Checkpoints(RunStore(folder), keep_last=1)
        for step in 1, 2:
            begun = time.monotonic()
            saved.save(SimpleNamespace(step=step))  # type: ignore[arg-type]
            waited = time.monotonic() - begun
            while not (Path(folder) / "checkpoints" / str(step) / MANIFEST).exists():
                time.sleep(0.01)
            whole = time.monotonic() - begun
            print(f"{size / 1e9:.1f} GB: training waits {waited:.2f} s; complete after {whole:.1f} s")
    print(machine())


def _config(name: str, path: Path | None) -> Config:
    return from_json(path.read_text(encoding="utf-8")) if path else preset(name)


def measured(options: list[str], folder: Path) -> dict[str, tuple[float, float]]:
    """The CPU and wall seconds of each stage of a start, or of a resumption if the folder has a run."""
    environment = os.environ | {"TRANSFORMER_CACHE": os.fspath(folder / "cache")}
    command = [sys.executable, "-m", "benchmarks.speed.start", "--stages", os.fspath(folder), *options]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, tuple[float, float]] = json.loads((folder / "stages.json").read_text())
    return found


def serve(run: Path, folder: Path) -> None:
    """Prints each line of a server until all of its programs are compiled, and one when it is idle: the CPU
    seconds and those of the clock before it, and its memory and the peak of it (on Linux)."""
    command = [sys.executable, "-m", "transformer", "serve", os.fspath(run), "--port", "0"]
    environment, begun = os.environ | {"TRANSFORMER_COMPILED": os.fspath(folder)}, time.time()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:

        def note(line: str) -> None:
            user, system = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            spent = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
            status = Path(f"/proc/{server.pid}/status").read_text()
            now, peak = (int(status.split(name)[1].split()[0]) // 1024 for name in ("VmRSS:", "VmHWM:"))
            about = f"{spent:6.1f} CPU s {time.time() - begun:6.1f} s {now:5} MiB, peak {peak:5}"
            print(f"{about}  {line}", end="", flush=True)

        assert server.stdout
        for line in server.stdout:
            note(line)
            if line.startswith("All programs"):
                break
        time.sleep(10)
        note("idle\n")
        server.terminate()


def started(config: Config, folder: Path) -> None:
    """Trains one update of a config, and writes the stages to the folder."""
    begun = 0.0, time.time() - time.process_time()  # when the process began, about
    import jax

    from transformer.runtime.errors import Stopped
    from transformer.systems.registry import find_system
    from transformer.tasks import preparation
    from transformer.trainer import loop as module
    from transformer.trainer.loop import Loop
    from transformer.trainer.train import train

    task: Any = find_system(config.system).task
    stages = {"imports": _since(begun)}

    def timed(name: str, work: Callable[..., Any], last: bool = False) -> Callable[..., Any]:
        @functools.wraps(work)
        def call(*arguments: Any, **options: Any) -> Any:
            before = _now()
            found = (
                jax.block_until_ready(work(*arguments, **options)) if last else work(*arguments, **options)
            )
            if name not in stages:
                stages[name] = _since(before)
            if last and "all" not in stages:
                stages["all"] = _since(begun)
                os.kill(os.getpid(), signal.SIGINT)  # saves and stops
            return found

        return call

    task.open_corpus = timed("corpus", task.open_corpus)
    task.create, task.load = (timed("vocabulary", each) for each in (task.create, task.load))
    task.plan = timed("plan", task.plan)
    preparation.examples_of = timed("examples", preparation.examples_of)
    preparation._in_shards = timed("examples", preparation._in_shards)
    module.first_state = timed("state", module.first_state)
    take_steps = Loop._take_steps

    def one_step(loop: Loop, batches: Any) -> None:
        loop.train_step = timed("first update", loop.train_step, last=True)
        take_steps(loop, batches)

    Loop._take_steps = one_step  # type: ignore[method-assign]
    try:
        train(config, folder / "run")
    except Stopped:
        kept = [stages[name] for name in NAMES if name in stages]
        rest = tuple(stages["all"][j] - sum(each[j] for each in kept) for j in range(2))
        (folder / "stages.json").write_text(json.dumps(stages | {"rest": rest}))


def _now() -> tuple[float, float]:
    return time.process_time(), time.time()


def _since(before: tuple[float, float]) -> tuple[float, float]:
    now = _now()
    return now[0] - before[0], now[1] - before[1]


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
