"""Plans a job: compiles its step and its search for a machine that is not here, and reports what it needs.

Each program is compiled in its own process (`transformer.plan.compiler`), with limits of time
and memory.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer.config.options import Config, MeshConfig
from transformer.plan.machines import Machine
from transformer.runs.config_json import to_json
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, module_path
from transformer.runtime.machine import memory

Show = Callable[[str], contextlib.AbstractContextManager[None]]
"""Shows what is being compiled, in a context."""
NODE = 8  # devices over which fsdp is tried
_JAX_NOTE = (
    "For simplicity, JAX has removed its internal frames from the traceback of the following exception. "
    "Set JAX_TRACEBACK_FILTERING=off to include these."
)
"""What follows the message of an exception in JAX."""
GAIN = 1.02  # an option that makes a job faster by less is not named: estimates are not that good


@dataclass(frozen=True)
class Limits:
    """What a compilation may take."""

    minutes: float = 30.0
    gigabytes: float | None = None
    """Memory in GB that compiling may take. None: 80 % of this machine's memory."""

    @property
    def bytes(self) -> float:
        """The limit of memory."""
        if self.gigabytes is not None:
            return self.gigabytes * 1e9
        total, _ = memory()
        return 0.8 * total if total else math.inf


def plan(config: Config, machine: Machine, limits: Limits, show: Show) -> Json:
    """What training the config needs on that machine. Times and shares are estimates
    (`transformer.plan.costs`).

    Raises:
      UserError: the compiler is missing, fails, or exceeds a limit; the options do not fit the devices; the
        length of training is given in epochs.
    """
    config.training.check_in_steps()
    layout, step = _step(config, machine, limits, show)
    config = replace(config, mesh=layout)
    from transformer.systems.registry import system_of  # its systems need JAX

    search = None
    if system_of(config).search:
        with show("search"):
            search = compiled("search", config, machine, limits)
    tokens, other_step = _another_batch(config, step, machine, limits, show)
    report: Json = {
        "machine": str(machine),
        "devices": step["devices"],
        "layout": {"fsdp": layout.fsdp, "tensor": layout.tensor},
        "step": step,
        "search": search,
        "largest_batch": other_step and _largest_batch(config, step, tokens, other_step),
        "batch_tokens": config.data.batch_tokens,
        "updates": config.training.steps,
        "training_flops": step["flops"] * step["devices"] * config.training.steps,
    }
    if "seconds" in step:
        slowest, fastest = step["seconds"]["slowest"], step["seconds"]["fastest"]
        per_second = [config.data.batch_tokens / slowest, config.data.batch_tokens / fastest]
        report[f"{config.data.counted}_per_second"] = per_second
        report["share_of_peak"] = [step["flops"] / machine.chip.peak / t for t in (slowest, fastest)]
        from transformer.plan.jobs import input_rate  # which needs JAX

        decided = replace(config, data=replace(config.data, batching=step["batching"]))
        with show("batches on this host"):
            report["input_per_second"] = input_rate(decided)
        report["hours"] = [t * config.training.steps / 3600 for t in (fastest, slowest)]
    if step["fits"] and other_step and "seconds" in step:
        variants = {f"--data.batch-tokens {tokens}": (tokens, other_step)}
        variants |= _variants(config, step, machine, limits, show)
        report["faster"] = _faster(config, step, variants)
    return report


def _step(config: Config, machine: Machine, limits: Limits, show: Show) -> tuple[MeshConfig, Json]:
    """The layout to use, and the step on it. If replicas do not fit and no other layout was asked for, the
    state is sharded."""
    with show(f"step, {layout_in_words(config.mesh)}"):
        step = compiled("step", config, machine, limits)
    devices = step["devices"]
    if step["fits"] or not config.mesh.is_replicated or devices == 1:
        return config.mesh, step
    sharded = replace(config, mesh=MeshConfig(fsdp=min(devices, NODE)))
    with show(f"step, {layout_in_words(sharded.mesh)}, since replicas do not fit"):
        sharded_step = compiled("step", sharded, machine, limits)
    return (sharded.mesh, sharded_step) if sharded_step["fits"] else (config.mesh, step)


def _another_batch(
    config: Config, step: Json, machine: Machine, limits: Limits, show: Show
) -> tuple[int, Json | None]:
    """Twice as many tokens, or half of them where the batch does not fit, and the step with them. None:
    memory has no limit."""
    tokens = config.data.batch_tokens
    other_tokens = 2 * tokens if step["fits"] else max(tokens // 2, config.data.lengths[-1])
    if not step["limit"]:
        return other_tokens, None
    with show(f"step, with {other_tokens:,} tokens"):
        changed = replace(config, data=replace(config.data, batch_tokens=other_tokens))
        return other_tokens, compiled("step", changed, machine, limits)


def _largest_batch(config: Config, step: Json, tokens: int, other_step: Json) -> int | None:
    """The largest batch in tokens that fits, extrapolated from two sizes. None: not even one row a device."""
    shortest = config.data.lengths[-1] * step["devices"] * config.training.accumulate
    sizes = config.data.batch_tokens, tokens
    used = step["memory"]["total"], other_step["memory"]["total"]
    slope = (used[1] - used[0]) / (sizes[1] - sizes[0])
    if slope <= 0:
        return None
    largest = sizes[0] + (step["limit"] - used[0]) / slope
    return int(largest // shortest * shortest) or None


Variants = dict[str, tuple[int, Json]]
"""The tokens of a batch, and the step, by the options that make them."""


def _variants(config: Config, step: Json, machine: Machine, limits: Limits, show: Show) -> Variants:
    """Steps of the same job that may be faster, two at most: with the precision that the system has on
    accelerators, if another one was asked for; with the state sharded, if it is replicated."""
    tried = {}
    if config.model.dtype == "float32" != config.model.DTYPES[-1]:
        tried["--model.dtype bfloat16"] = replace(config, model=replace(config.model, dtype="bfloat16"))
    if config.mesh.is_replicated and step["devices"] > 1:
        mesh = MeshConfig(fsdp=min(step["devices"], NODE))
        tried[f"--mesh.fsdp {mesh.fsdp}"] = replace(config, mesh=mesh)
    variants = {}
    for option, variant in tried.items():
        with show(f"step, {option}"):
            variants[option] = config.data.batch_tokens, compiled("step", variant, machine, limits)
    return variants


def _faster(config: Config, step: Json, variants: Variants) -> list[Json]:
    """The variants that fit and process more tokens in the same time, whether transfers overlap with the
    computation or not: how many times as many."""
    faster = []
    for option, (tokens, variant) in variants.items():
        if variant["fits"]:
            ratios = [step["seconds"][end] / variant["seconds"][end] for end in ("fastest", "slowest")]
            times = min(ratios) * tokens / config.data.batch_tokens
            if times >= GAIN:
                faster.append({"option": option, "times": times})
    return faster


def layout_in_words(mesh: MeshConfig) -> str:
    """A layout in words."""
    if mesh.is_replicated:
        return "replicas"
    sizes = {"fsdp": mesh.fsdp, "tensor": mesh.tensor}
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)


def compiled(what: str, config: Config, machine: Machine, limits: Limits, **more: Any) -> Json:
    """One program, compiled in its own process, as `program_costs` in `compiler.py` describes it.

    Args:
      what: "step" or "search".
      config: of the job.
      machine: to compile for.
      limits: of the process.
      more: further arguments of the compiler: `options` of XLA, and `text`, a file for the program.

    Raises:
      UserError: it failed, or exceeded a limit.
    """
    request = json.dumps({"what": what, "machine": str(machine), "config": to_json(config), **more})
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as output:
        with _process(request, machine, output, errors) as process:
            _wait(process, limits, machine)
        output.seek(0)
        errors.seek(0)
        lines = output.read().splitlines()
        complaints = errors.read().strip().splitlines()
    if process.returncode or not lines:
        why = reason(complaints)[:500].rstrip(".")
        failed = f"--plan {machine}: the compiler failed: {why}"
        raise UserError(". ".join(filter(None, [failed, machine.remedy(why)])))
    report: Json = json.loads(lines[-1])
    if "error" in report:
        raise UserError(report["error"])
    return report


def reason(complaints: list[str]) -> str:
    """Why a process has failed, by the lines of its standard error: the last one before JAX's note that is no
    address."""
    end = complaints.index(_JAX_NOTE) if _JAX_NOTE in complaints else None
    said = (line for line in complaints[:end] if line.strip("- ") and not line.startswith("See https://"))
    return next(iter(reversed([*said])), "it printed nothing")


@contextlib.contextmanager
def _process(request: str, machine: Machine, output: Any, errors: Any) -> Iterator[subprocess.Popen[str]]:
    """The compiler's process, which ends with this context."""
    process = subprocess.Popen(
        [sys.executable, "-m", "transformer.plan.compiler"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        text=True,
        env=os.environ | machine.libraries | {"PYTHONPATH": module_path()},
        start_new_session=True,  # Ctrl-C reaches this process only, which ends the other
    )
    try:
        assert process.stdin
        process.stdin.write(request)
        process.stdin.close()
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: "subprocess.Popen[str]", limits: Limits, machine: Machine) -> None:
    """Waits for the end. Raises UserError if a limit is exceeded."""
    start = time.monotonic()
    while process.poll() is None:
        if time.monotonic() - start > 60 * limits.minutes:
            raise UserError(
                f"--plan {machine}: compiling takes more than {limits.minutes:g} minutes: raise "
                "--plan-minutes"
            )
        if _memory(process.pid) > limits.bytes:
            raise UserError(
                f"--plan {machine}: compiling takes more than {limits.bytes / 1e9:.1f} GB of memory here: "
                "raise --plan-gigabytes"
            )
        time.sleep(0.2)


def _memory(process: int) -> int:
    """The bytes that a process uses; 0 where the system does not report it."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
