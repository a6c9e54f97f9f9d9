"""`train.py --plan`: prints what a job needs on accelerators that are not here."""

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer.config import Config, MeshConfig
from transformer.errors import UserError
from transformer.files import Json, write_whole
from transformer.plan.machines import machine
from transformer.plan.plan import Limits, described, plan
from transformer.runs.report.logged import duration
from transformer.runtime.console import ProgressReporter

PAPER = "Table 2: base 3.3e18, big 2.3e19"


@dataclass(frozen=True)
class PlanArguments:
    """What `--plan` was given."""

    machine: str
    json: Path | None
    limits: Limits


def print_plan(config: Config, given: PlanArguments, about: str) -> None:
    """Compiles, and prints the plan; writes it as JSON if asked to."""
    watch, place = ProgressReporter(), machine(given.machine)
    for name, limit in (("minutes", given.limits.minutes), ("gigabytes", given.limits.gigabytes)):
        if limit is not None and not limit > 0:
            raise UserError(f"--plan-{name} {limit:g}: must be positive")
    if given.json:
        try:  # permission bits are not enough on every file system
            tempfile.TemporaryFile(dir=given.json.absolute().parent).close()
        except OSError:
            raise _unwritable(given.json) from None
        if given.json.is_dir():
            raise _unwritable(given.json)
    watch.message(about)
    watch.message(f"Compiling for {place}. This takes minutes; nothing runs there.")

    @contextlib.contextmanager
    def show(what: str) -> Iterator[None]:
        start = time.monotonic()
        with watch.console.status(f"compiling: {what}"):
            yield
        watch.message(f"  {what}: {time.monotonic() - start:.0f} s")

    found = plan(config, place, given.limits, show)
    watch.result(f"Plan for {place}", rows(config, found))
    if given.json:
        write_whole(given.json, json.dumps(found, indent=2) + "\n")
        watch.message(f"written to {given.json}")


def _unwritable(path: Path) -> UserError:
    return UserError(f"--plan-json {path}: cannot be written: name a file in a folder that is there")


def rows(config: Config, found: Json) -> list[tuple[str, str]]:
    """The plan as a table."""
    step, search, mesh = found["step"], found["search"], MeshConfig(**found["layout"])
    chosen = " (chosen: replicas do not fit)" if mesh != config.mesh else ""
    devices = f"{found['devices']} x {step['device']}"
    counted = config.data.counted
    kind = "packed rows" if step["batching"] == "packed" else "rows"
    told = [
        ("devices", devices),
        ("layout", described(mesh) + chosen),
        ("products", step["dtype"]),
        ("batch", f"{found['batch_tokens']:,} {counted} a side, {kind} of {config.data.lengths[-1]}"),
        ("memory of a device", memory(step)),
    ]
    if not step["limit"]:
        pass
    elif found["largest_batch"]:
        told.append(
            ("largest batch that fits", f"about {found['largest_batch']:,} {counted} (from two sizes)")
        )
    else:
        told.append(("largest batch that fits", "none: not even one row on each device"))
    if "collectives" in step:
        sent = sum(each["sent"] for each in step["collectives"])
        told.append(("sent by each device", f"{sent / 1e6:,.0f} MB an update{kinds(step)}"))
    if "seconds" in step:
        seconds = step["seconds"]
        title = f"an update (estimate{', a lower bound' * (step['estimated'] > 0.5)})"
        lasting = [duration(3600 * hours) for hours in found["hours"]]
        told += [
            (title, span([seconds[each] * 1e3 for each in ("fastest", "slowest")], "ms")),
            (f"{counted}/s (estimate)", span(found[f"{counted}_per_second"])),
            ("batches, by one thread here", f"{found['input_per_second']:,.0f} {counted}/s (measured)"),
            ("share of the peak (estimate)", span([100 * x for x in found["share_of_peak"]], "%")),
            ("not the compiler's figure", f"{step['estimated']:.0%} of the computation"),
            ("training (estimate)", f"{found['updates']:,} updates in {' to '.join(dict.fromkeys(lasting))}"),
        ]
    if faster := found.get("faster"):
        gains = [f"{each['option']} ({each['times']:.2f} times the {counted}/s)" for each in faster]
        told.append(("faster (estimate)", ", ".join(gains)))
    if step["batching"] == "buckets" and step["packs"] and "seconds" in step:
        told.append(("without padding", "--data.batching packed (the figures above count padding as work)"))
    told.append(("training, FLOPs", f"{found['training_flops']:.2g} ({PAPER})"))
    told.append(("search of one device", searching(config, search)))
    return told


def memory(program: Json) -> str:
    """Whether a program fits, and what takes the memory."""
    used, limit = program["memory"]["total"], program["limit"]
    parts = [
        f"{gigabytes(size)} {kind}"
        for kind, size in program["memory"].items()
        if kind != "total" and size >= 0.005 * used
    ]
    inside = f" ({', '.join(parts)})" if parts else ""
    if not limit:
        return gigabytes(used) + inside
    left = gigabytes(abs(limit - used))
    verdict = f"fits, {left} left" if program["fits"] else f"{left} too much"
    return f"{gigabytes(used)} of {gigabytes(limit)}: {verdict}{inside}"


def kinds(step: Json) -> str:
    """The transfers by kind."""
    sums: dict[str, float] = {}
    for each in step["collectives"]:
        sums[each["kind"]] = sums.get(each["kind"], 0) + each["sent"]
    parts = [f"{kind} {sent / 1e6:,.0f}" for kind, sent in sums.items()]
    return f" ({', '.join(parts)})" if len(parts) > 1 else ""


def searching(config: Config, search: Json) -> str:
    """A step of the search."""
    lane = search["lane"]
    if "seconds" not in search:
        return memory(search)
    took = f"{search['seconds']['slowest'] * 1e3:.2g} ms (estimate), {gigabytes(search['memory']['total'])}"
    if not lane:
        return f"{config.decoding.rows} sentences at once: {took}"
    beams = f"{lane['slots']} sentences x beam {config.decoding.num_hypotheses}"
    return f"{beams}, sources to {lane['inputs']}: a step {took}"


def gigabytes(size: float) -> str:
    """Bytes for people."""
    if size < 1e9:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e9:.2f} GB" if size < 1e10 else f"{size / 1e9:.1f} GB"


def span(ends: Sequence[float], unit: str = "") -> str:
    """A range; one number if both look the same."""
    texts = [f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in ends]
    return (texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}") + (f" {unit}" if unit else "")
