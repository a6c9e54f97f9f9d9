"""`train.py --plan`: prints what a job needs on accelerators that are not here."""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence

from transformer.cli.output_file import check_replaced
from transformer.commands.train_arguments import TrainArguments
from transformer.config.options import Config, MeshConfig, locations
from transformer.plan.machines import machine
from transformer.plan.plan import Limits, layout_in_words, plan
from transformer.runs.report.logged import duration
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, is_device, write_output
from transformer.runtime.machine import unwritable

NO_BATCH = "none: not even one row on each device"
PAPER = "Table 2: base 3.3e18, big 2.3e19"


def print_plan(arguments: TrainArguments, note: str) -> None:
    """Compiles, and prints the plan; writes it as JSON if asked to."""
    watch, config, output = ProgressReporter(), arguments.config, arguments.plan_json
    assert arguments.plan is not None
    target = machine(arguments.plan)
    limits = Limits(arguments.plan_minutes, arguments.plan_gigabytes)
    for name, limit in vars(limits).items():
        if limit is not None and not limit > 0:
            raise UserError(f"--plan-{name} {limit:g}: must be positive")
    if output and not is_device(output):
        if unwritable(output.absolute().parent) or output.is_dir():
            raise UserError(f"--plan-json {output}: cannot be written: name a file in a folder that exists")
        options = {f"--{name}".replace("_", "-"): path for name, path in locations(config).items()}
        check_replaced("--plan-json", output, options.items())
    watch.message(note)
    watch.message(f"Compiling for {target}. This takes minutes; nothing runs there.")

    @contextlib.contextmanager
    def show(what: str) -> Iterator[None]:
        start = time.monotonic()
        with watch.console.status(f"compiling: {what}"):
            yield
        watch.message(f"  {what}: {time.monotonic() - start:.0f} s")

    estimate = plan(config, target, limits, show)
    watch.result(f"Plan for {target}", rows(config, estimate))
    if output:
        write_output(output, json.dumps(estimate, indent=2) + "\n")
        watch.message(f"written to {output}")


def rows(config: Config, estimate: Json) -> list[tuple[str, str]]:
    """The plan as a table."""
    step = estimate["step"]
    mesh = MeshConfig(**estimate["layout"])
    chosen = " (chosen: replicas do not fit)" if mesh != config.mesh else ""
    devices = f"{estimate['devices']} x {step['device']}"
    counted = config.data.counted
    row_unit = "packed rows" if step["batching"] == "packed" else "rows"
    table = [
        ("devices", devices),
        ("layout", layout_in_words(mesh) + chosen),
        ("products", step["dtype"]),
        ("batch", f"{estimate['batch_tokens']:,} {counted} a side, {row_unit} of {config.data.lengths[-1]}"),
        ("memory of a device", memory(step)),
    ]
    if step["limit"]:
        largest = estimate["largest_batch"]
        size = f"about {largest:,} {counted} (from two sizes)" if largest else NO_BATCH
        table.append(("largest batch that fits", size))
    if "collectives" in step:
        sent = sum(transfer["sent"] for transfer in step["collectives"])
        table.append(("sent by each device", f"{sent / 1e6:,.0f} MB an update{transfers_by_kind(step)}"))
        if far := sum(transfer["sent"] for transfer in step["collectives"] if transfer["across"]):
            table.append(("over slow links", f"{far / 1e6:,.0f} MB of it, between hosts or slices"))
    if "seconds" in step:
        seconds = step["seconds"]
        title = f"an update (estimate{', a lower bound' * (step['estimated'] > 0.5)})"
        lasting = [duration(3600 * hours) for hours in estimate["hours"]]
        table += [
            (title, span([seconds[bound] * 1e3 for bound in ("fastest", "slowest")], "ms")),
            (f"{counted}/s (estimate)", span(estimate[f"{counted}_per_second"])),
            ("batches, by one thread here", f"{estimate['input_per_second']:,.0f} {counted}/s (measured)"),
            ("share of the peak (estimate)", span([100 * x for x in estimate["share_of_peak"]], "%")),
            ("not the compiler's figure", f"{step['estimated']:.0%} of the computation"),
            (
                "training (estimate)",
                f"{estimate['updates']:,} updates in {' to '.join(dict.fromkeys(lasting))}",
            ),
        ]
    if faster := estimate.get("faster"):
        gains = [f"{change['option']} ({change['times']:.2f} times the {counted}/s)" for change in faster]
        table.append(("faster (estimate)", ", ".join(gains)))
    if step["batching"] == "buckets" and step["packs"] and "seconds" in step:
        table.append(("without padding", "--data.batching packed (the figures above count padding as work)"))
    table.append(("training, FLOPs", f"{estimate['training_flops']:.2g} ({PAPER})"))
    if estimate["search"]:
        table.append(("search of one device", searching(config, estimate["search"])))
    return table


def memory(program: Json) -> str:
    """Whether a program fits, and what takes the memory."""
    used, limit = program["memory"]["total"], program["limit"]
    purposes = [
        f"{gigabytes(size)} {purpose}"
        for purpose, size in program["memory"].items()
        if purpose != "total" and size >= 0.005 * used
    ]
    inside = f" ({', '.join(purposes)})" if purposes else ""
    if not limit:
        return gigabytes(used) + inside
    difference = gigabytes(abs(limit - used))
    verdict = f"fits, {difference} left" if program["fits"] else f"{difference} too much"
    return f"{gigabytes(used)} of {gigabytes(limit)}: {verdict}{inside}"


def transfers_by_kind(step: Json) -> str:
    """The transfers by kind."""
    sums: dict[str, float] = {}
    for transfer in step["collectives"]:
        sums[transfer["kind"]] = sums.get(transfer["kind"], 0) + transfer["sent"]
    amounts = [f"{operation} {sent / 1e6:,.0f}" for operation, sent in sums.items()]
    return f" ({', '.join(amounts)})" if len(amounts) > 1 else ""


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
