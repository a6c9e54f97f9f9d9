"""Compiles one program for a machine that is not here, in its own process, and describes the result.

`python -m transformer.plan.compiler` reads what to compile from standard input and writes one line
of JSON. A process of its own, because the compilers read their environment when they start, and so that one
that takes too long or too much memory can be ended.
"""

import json
import math
import os
import re
import sys
import time
from dataclasses import asdict
from typing import Any

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # even where there is a TPU: it may be in use
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMER_COMPILED": "off",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}
OVER = re.compile(
    r"(?:Used |\()([\d.]+)([KMGT]?)(?: of |\) exceeds available HBM \()([\d.]+)([KMGT]?)(?: hbm|\))"
)
"""What compilers of TPUs say of a program that does not fit: how much it needs, and how much there is."""
SECONDS = ("computation", "communication", "copying", "fastest", "slowest")
"""The figures of an estimate that are times."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def program_costs(request: dict[str, Any]) -> dict[str, Any]:
    """What a program needs: its memory in bytes by kind, its time in seconds, its transfers.

    Args:
      request: the machine as `machine`, the config as JSON in `config`, and "step" or "search" as `what`.
    """
    from transformer.plan.jobs import Job, lowered_search, lowered_step, training_flops
    from transformer.plan.machines import machine
    from transformer.runs.config_json import from_json
    from transformer.systems.registry import system_of
    from transformer.systems.system import decided_for, packs
    from transformer.trainer.checks import OF_CONFIG
    from transformer.trainer.resolved import Resolved
    from transformer.translator.decoder import Decoder

    target = machine(request["machine"])
    config = from_json(request["config"])
    system = system_of(config)
    resolved = Resolved(decided_for(system, config, target.chip.platform), system)
    for check in OF_CONFIG:
        check(resolved)
    job = Job.of(system, resolved.config)
    config = job.config
    devices = target.devices()
    report: dict[str, Any] = {
        "devices": len(devices),
        "device": devices[0].device_kind,
        "dtype": config.model.dtype,
        "batching": config.data.batching,
        "packs": packs(system, config),
    }
    start = time.monotonic()
    if request["what"] == "step":
        objective = job.objective(Decoder.load)
        report["flops"] = training_flops(job, objective) / len(devices)
        lowered = lowered_step(job, objective, devices, target.chip.platform)
    else:
        lowered, size = lowered_search(job, devices[0], target.chip.platform)
        report["lane"] = size and {"slots": size.slots[-1], "inputs": size.inputs, "columns": size.columns}
    report["lowering_seconds"] = time.monotonic() - start
    start = time.monotonic()
    try:
        compiled = lowered.compile(request.get("options") or None)
    except Exception as error:
        if sizes := too_much(str(error)):
            return report | {"fits": False, "memory": {"total": sizes[0]}, "limit": sizes[1]}
        raise
    report["compiling_seconds"] = time.monotonic() - start
    text = compiled.as_text()
    if request.get("text"):
        with open(request["text"], "w", encoding="utf-8") as file:
            file.write(text)
    return (
        report | _memory(compiled, target.chip.memory) | _time(text, target.chip, request["what"] == "search")
    )


def too_much(message: str) -> tuple[float, float] | None:
    """The bytes that a program needs and those that there are, by a compiler's message. None: the message is
    about something else."""
    match = OVER.search(message)
    if not match:
        return None
    return float(match[1]) * UNITS[match[2]], float(match[3]) * UNITS[match[4]]


def _memory(compiled: Any, limit: int) -> dict[str, Any]:
    sizes = compiled.memory_analysis()
    memory = {
        "state and batch": sizes.argument_size_in_bytes,
        "results beside them": sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
        "activations and other temporary arrays": sizes.temp_size_in_bytes,
        "program": sizes.generated_code_size_in_bytes,
    }
    total = sum(memory.values())
    return {"fits": not limit or total <= limit, "memory": {"total": total, **memory}, "limit": limit}


def _time(text: str, chip: Any, search: bool) -> dict[str, Any]:
    from transformer.plan.costs import Program, estimate

    program = Program(text)
    program_time = estimate(program.step() if search else program, chip)
    collectives = [{**asdict(collective), "sent": collective.sent} for collective in program_time.collectives]
    if math.isnan(chip.peak):
        return {"collectives": collectives}
    costliest = sorted(program_time.costs, key=lambda cost: -cost.seconds)[:40]
    return {
        "seconds": {name: getattr(program_time, name) for name in SECONDS},
        "estimated": program_time.estimated,
        "collectives": collectives,
        "costliest": [
            {
                "seconds": cost.seconds,
                "times": cost.times,
                "name": cost.instruction.name,
                "operation": cost.instruction.operation,
                "shape": cost.instruction.shape[:120],
                "source": cost.instruction.source[-160:],
                "estimated": cost.estimated,
            }
            for cost in costliest
        ],
    }


def main() -> int:
    """Reads, compiles, writes."""
    request = json.load(sys.stdin)
    from transformer.plan.machines import machine
    from transformer.runtime.errors import UserError
    from transformer.runtime.supervision import end_with_parent

    end_with_parent()  # which enforces the limits
    os.environ.update(ENVIRONMENT | machine(request["machine"]).environment)
    try:
        print(json.dumps(program_costs(request)))
    except UserError as error:
        print(json.dumps({"error": str(error)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
