"""`transformer doctor`: what is installed, what this machine has, and whether training and search work there.

Only the standard library is imported here, so that the answer comes also where nothing is installed, or where
JAX cannot be imported. What needs JAX runs in a process of its own (`transformer.commands.trial`).
"""

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformer.cli.guard import run_command
from transformer.runtime import machine
from transformer.runtime.compilation import programs_folder
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, cache_root, module_path, parse_object
from transformer.runtime.invocation import program
from transformer.runtime.machine import PURPOSES
from transformer.runtime.text import printable

FAILED = 1
PATIENCE = 300  # seconds for the test of all devices
LEAST_DISK = 2**30  # bytes that are free, below which a checkpoint may not fit
GIB = 2**30
SHOWN = re.compile(
    r"(JAX|XLA|TRANSFORMER|CUDA|NVIDIA|NCCL|TPU|LIBTPU|TF_CPP|TFDS|ROCR|OMP|MKL|HF_HOME|HF_HUB|HF_ENDPOINT)(_|$)"
    r"|(LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|CONDA_PREFIX|SLURM_(NTASKS|PROCID)|OMPI_COMM_WORLD_(SIZE|RANK))$"
)
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


REMEDIES = {
    "prepared text": "set TRANSFORMER_CACHE to a folder that you can write to",
    "compiled programs": "set TRANSFORMER_COMPILED to a folder that you can write to, or to off",
}
"""What to do if a folder cannot be written to."""


@dataclass(frozen=True)
class DoctorArguments:
    """Find out what is installed, what this machine has, and whether a tiny training step and a tiny beam
    search work on each device. Exit status 1: a check failed; the last lines say what to do."""

    format: Literal["text", "json"] = "text"
    """Format of the output: text for people, or one JSON object for tools."""


def doctor_main() -> int:
    """`transformer doctor [--format json]`."""
    problems: list[str] = []
    status = run_command(program("doctor"), lambda line: problems.extend(_doctor(line)))
    return status or (FAILED if problems else 0)


def _doctor(command_line: list[str]) -> list[str]:
    """Prints the report, and returns the problems."""
    try:
        from transformer.cli.parser import parse

        output_format = parse(DoctorArguments, command_line, "doctor").format
    except ImportError:  # which the report says
        output_format = "json" if "json" in " ".join(command_line) else "text"
    report = examined()
    if output_format == "json":
        print(json.dumps(report, indent=2))
    else:
        print(printable(_as_text(report)))
    return list(report["problems"])


def examined() -> Json:
    """All that is found out, as JSON: facts by subject, and `problems`, a sentence each."""
    problems: list[str] = []
    report = _installed(problems) | {"machine": _this_machine(), "folders": _folders(problems)}
    report["environment"] = dict(_variables())
    report |= _devices(report["versions"], problems)
    problems = list(dict.fromkeys(problems))
    return {"ok": not problems, **report, "problems": problems}


def _installed(problems: list[str]) -> Json:
    """The versions, and the extras that are missing. What is wrong is added to the problems."""
    try:
        from transformer.commands import installation
    except ImportError as error:
        problems.append(
            f"{error.name} is missing, and perhaps more: install the package again (pip install .)"
        )
        return {"versions": {"Python": platform.python_version()}}
    needs, installed = installation.declared(), installation.versions()
    extras = installation.missing_extras(needs.requirements)
    missing = {name: {"for": PURPOSES[name], "missing": list(lacks)} for name, lacks in extras.items()}
    problems += installation.problems_of_versions(needs, installed)
    return {"versions": installed, "missing extras": missing}


def _this_machine() -> Json:
    total, free = machine.memory()
    return {
        "system": platform.platform(),
        "processor": machine.processor_model(),
        "cores": machine.cores(),
        "memory": total,
        "free memory": free,
        "NVIDIA GPUs": machine.nvidia_gpus(),
        "TPUs": machine.tpus(),
    }


def _folders(problems: list[str]) -> Json:
    """The folders of prepared text and compiled programs, and the current one, which runs are written to."""
    folders: dict[str, Json | None] = {}
    try:
        chosen = {"prepared text": cache_root(None), "compiled programs": programs_folder()}
    except UserError as error:
        problems.append(str(error))
        chosen = {}
    for name, folder in {**chosen, "current folder": Path.cwd()}.items():
        if folder is None:
            folders[name] = None
            continue
        above = machine.existing(folder)
        is_writable = not machine.unwritable(above)
        facts: Json = {"path": str(folder), "exists": folder.is_dir(), "writable": is_writable}
        if not is_writable and name in REMEDIES:
            problems.append(f"{above} cannot be written to ({name}): {REMEDIES[name]}")
        with contextlib.suppress(OSError):
            facts["free"] = shutil.disk_usage(above).free
            if is_writable and facts["free"] < LEAST_DISK:
                problems.append(f"{above} has only {_gigabytes(facts['free'])} left on its disk: make room")
        if folder.is_dir() and name != "current folder":
            facts["size"], facts["size is complete"] = machine.folder_size(folder)
        folders[name] = facts
    return folders


def _variables() -> Iterator[tuple[str, str]]:
    """Environment variables that change what happens here, without what may be secret."""
    for name, value in sorted(os.environ.items()):
        if SHOWN.match(name) and not SECRET.search(name):
            yield name, re.sub(r"//[^/@\s]+@", "//...@", value)[:500]


def _devices(versions: dict[str, str | None], problems: list[str]) -> Json:
    """What JAX finds, and the test on each device."""
    if not (versions.get("jax") and versions.get("jaxlib")):
        return {"devices": [], "tests": []}  # which is a problem already
    findings, stderr, ended = _tried()
    devices: list[Json] = next((item["devices"] for item in findings if "devices" in item), [])
    results = [item for item in findings if "device" in item]
    problems += [
        f"JAX cannot start: {item['error']}: {_remedy(stderr)}" for item in findings[:1] if "error" in item
    ]
    if ended:
        where = f"after {counted(len(results), 'device')}" if devices else "before JAX named a device"
        problems.append(f"the test of the devices {ended} {where}: {_remedy(stderr)}")
    facts: Json = {"devices": devices, "tests": results}
    if devices:
        from transformer.commands.trial import disagreements, failures

        disagreeing = list(disagreements(results))
        problems += [*failures(results), *disagreeing, *_unused(devices[0]["platform"], versions)]
        if len(results) > 1:
            facts["devices agree"] = not disagreeing
    return facts


def _tried() -> tuple[list[Json], str, str]:
    """What the test printed, its standard error, and how it ended if not well."""
    command = [sys.executable, "-m", "transformer.commands.trial"]
    environment = {**os.environ, "PYTHONPATH": module_path()}
    ended = ""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
    ):
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, timeout=PATIENCE
            ).returncode
            if status:
                ended = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
        except subprocess.TimeoutExpired:
            ended = f"did not end in {PATIENCE} s"
        out.seek(0)
        err.seek(0)
        printed, stderr = out.read(), err.read()
    findings = []
    for line in printed.splitlines():
        with contextlib.suppress(ValueError):  # of a library that prints
            findings.append(parse_object(line))
    return findings, stderr, ended


def _remedy(stderr: str) -> str:
    """What to do if JAX does not work, with the line of what it wrote that says most."""
    lines = stderr.strip().splitlines()
    errors = [line for line in lines if re.match(r"[EF]\d{4} |\w*Error\b", line)]
    last = ([*lines[-1:], *errors] or [""])[-1][:200]
    hint = "try JAX_PLATFORMS=cpu, and if that works, install the driver and the extra of the device anew"
    if "XLA_FLAGS" in last:
        hint = "correct XLA_FLAGS, or unset it"
    return f"{hint}. It wrote: {last}" if last else hint


def _unused(platform_in_use: str, versions: dict[str, Any]) -> Iterator[str]:
    """A sentence for each kind of accelerator that the system shows and JAX does not use."""
    gpus, tpus = machine.nvidia_gpus(), machine.tpus()
    setting = os.environ.get("JAX_PLATFORMS", "")
    if platform_in_use != "cpu" or setting == "cpu":  # chosen
        return
    if gpus and not any(name.startswith("jax-cuda") for name in versions):
        yield f"there is an NVIDIA GPU ({gpus[0]}), but JAX has no plugin for it: pip install '.[cuda]'"
    elif gpus:
        yield (
            f"there is an NVIDIA GPU ({gpus[0]}), but JAX does not use it: nvidia-smi must name it, and a "
            "CUDA version that is at least that of the plugin; otherwise update the driver"
        )
    if tpus and "libtpu" not in versions:
        yield f"there is a TPU ({tpus[0]}), but JAX has no library for it: pip install '.[tpu]'"
    elif tpus:
        yield f"there is a TPU ({tpus[0]}), but JAX does not use it: does another process hold it?"


# The report as text


def _as_text(report: Json) -> str:
    here = report["machine"]
    parts = [
        ("versions", {name: number or "not installed" for name, number in report["versions"].items()}),
        (
            "machine",
            {
                "system": here["system"],
                "processor": here["processor"],
                "cores": "unknown" if here["cores"] is None else f"{here['cores']:g}",
                "memory": f"{_gigabytes(here['memory'])}, {_gigabytes(here['free memory'])} free",
                **{name: ", ".join(here[name]) for name in ("NVIDIA GPUs", "TPUs") if here[name]},
            },
        ),
        ("folders", {name: _folder(facts) for name, facts in report["folders"].items()}),
        ("environment", report["environment"]),
        (
            "extras that are not installed",
            {
                name: f"{extra['for']} (needs {', '.join(extra['missing'])})"
                for name, extra in report.get("missing extras", {}).items()
            },
        ),
        ("devices", {str(device["id"]): _device(device) for device in report["devices"]}),
        (
            "a tiny training step and beam search, with compilation",
            {
                **{str(result["device"]): _result(result) for result in report["tests"]},
                **({"agree": "yes"} if report.get("devices agree") else {}),
            },
        ),
    ]
    lines = []
    for title, rows in parts:
        lines.append(f"{title}:" if rows else f"{title}: none")
        widest = max(map(len, rows), default=0)
        lines += [f"  {name:{widest}}  {value}" for name, value in rows.items()]
    problems = report["problems"]
    lines.append(f"{counted(len(problems), 'problem')}:" if problems else "Everything works.")
    return "\n".join([*lines, *(f"  - {problem}" for problem in problems)])


def _folder(facts: Json | None) -> str:
    if facts is None:
        return "off"
    words = [facts["path"], "" if facts["exists"] else "does not exist yet"]
    words.append("writable" if facts["writable"] else "not writable")
    if "size" in facts:
        words.append(f"holds {'' if facts['size is complete'] else 'at least '}{_gigabytes(facts['size'])}")
    if "free" in facts:
        words.append(f"{_gigabytes(facts['free'])} free")
    return ", ".join(filter(None, words))


def _device(device: Json) -> str:
    memory = f", {_gigabytes(device['memory'])} for programs" if "memory" in device else ""
    return f"{device['platform']}, {device['kind']}{memory}"


def _result(result: Json) -> str:
    if "error" in result:
        return f"failed: {result['error']}"
    losses = " then ".join("not finite" if loss is None else f"{loss:.4f}" for loss in result["losses"])
    return f"loss {losses}, {result['seconds']:.1f} s"


def _gigabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:,.1f} GiB"
