"""The bytes that an update sends between devices, read from the compiled program, and its computation.

`python -m benchmarks.scaling` compiles the training step for 8 to 512 devices, which the CPU simulates, and
never runs it. The compiled program has every collective with its shape and groups of devices. The ring
algorithm gives the bytes that each device sends, and the peaks below give the time for these and for the
matrix products. The batch grows with the devices. There are two bounds: no overlap, and full overlap.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.command import new_file, positive, run
from benchmarks.training import ON_GPU, Case

LAYOUTS = {"replicas": (1, 1), "fsdp 8": (8, 1), "tensor 8": (1, 8), "fsdp 4, tensor 2": (4, 2)}
DEVICES = (8, 32, 128, 512)
NODE = 8  # devices joined by the faster links
SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}
UTILISATION = 0.5  # share of the peak that matrix products of this size reach


@dataclass(frozen=True)
class Hardware:
    """One device: dense bfloat16 peak in FLOP/s, and bytes/s within its node (near) and beyond (far)."""

    name: str
    peak: float
    near: float
    far: float


HARDWARE = (
    # data sheets: NVLink 4 with 900 GB/s in both directions together; one 400 Gb/s InfiniBand port per GPU
    Hardware("H200, NVLink and InfiniBand", 989e12, 450e9, 50e9),
    # 4,800 Gb/s of links between chips in all directions together; a slice has no far links
    Hardware("TPU v5p", 459e12, 300e9, 300e9),
)


@dataclass(frozen=True)
class Collective:
    """One kind of transfer: `size` bytes on each device (of the larger side), `times` per update."""

    kind: str
    group: int
    across: bool
    """Whether its groups reach beyond a node."""
    size: int
    times: int

    @property
    def sent(self) -> float:
        """Bytes that each device sends in an update, by the ring algorithm."""
        share = (self.group - 1) / self.group
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)
        return factor * self.size * self.times

    def seconds(self, hardware: Hardware) -> float:
        """Its duration. Groups of several whole nodes are hierarchical: only an eighth goes far."""
        if not self.across:
            return self.sent / hardware.near
        if self.group % NODE or self.kind == "collective-permute":
            return self.sent / hardware.far
        near = replace(self, group=NODE, across=False)
        far = replace(self, group=self.group // NODE, size=self.size // NODE)
        return near.sent / hardware.near + far.sent / hardware.far


def collectives(program: str) -> list[Collective]:
    """The collectives of a compiled program, from XLA's text. Those in a loop count once per iteration."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    operation = re.compile(rf"= (.*?) ({kinds})(?:-start)?\((.*)")
    times = _times_run(program)
    found: dict[tuple[str, int, bool], list[tuple[int, int]]] = {}
    computation = ""
    for line in program.splitlines():
        if line.endswith("{") and (start := re.match(r"(?:ENTRY )?%?([\w.\-]+)", line)):
            computation = start[1]
        if match := operation.search(line):
            groups = _groups(match[3])
            if groups is None or len(groups[0]) == 1:
                continue
            across = any(device // NODE != group[0] // NODE for group in groups for device in group)
            size = _size(match[1]) * (len(groups[0]) if match[2] == "reduce-scatter" else 1)
            if line.count("-start("):  # its result includes the operand
                size = max(map(_size, re.findall(r"\w+\[[\d,]*\]", match[1])))
            found.setdefault((match[2], len(groups[0]), across), []).append((size, times.get(computation, 1)))
    return [
        Collective(*key, sum(size * count for size, count in several), 1)
        for key, several in sorted(found.items())
    ]


def _times_run(program: str) -> dict[str, int]:
    """How often the body of each loop runs, including nested loops, by the name of its computation."""
    inside: dict[str, list[tuple[str, int]]] = {}
    computation = ""
    for line in program.splitlines():
        if line.endswith("{") and (start := re.match(r"(?:ENTRY )?%?([\w.\-]+)", line)):
            computation = start[1]
        for body in re.findall(r"body=%?([\w.\-]+)", line):
            count = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            inside.setdefault(computation, []).append((body, int(count[1]) if count else 1))
        for called in re.findall(r"(?:calls|to_apply|branch_computations=\{)=?%?([\w.\-]+)", line):
            inside.setdefault(computation, []).append((called, 1))
    times: dict[str, int] = {}

    def walk(name: str, count: int) -> None:
        times[name] = max(times.get(name, 0), count)
        for inner, each in inside.get(name, ()):
            if count * each > times.get(inner, 0):
                walk(inner, count * each)

    entry = re.search(r"^ENTRY %?([\w.\-]+)", program, re.MULTILINE)
    if entry:
        walk(entry[1], 1)
    return times


def _size(shapes: str) -> int:
    """Bytes of an operation's result, such as `(f32[512,16]{1,0}, bf16[8]{0})`."""
    arrays = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    return sum(SIZES[kind] * math.prod(map(int, filter(None, sizes.split(",")))) for kind, sizes in arrays)


def _groups(operands: str) -> list[list[int]] | None:
    """The groups of devices that communicate."""
    import numpy as np

    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", operands):
        shape = [int(size) for size in iota[3].split(",")]
        order = [int(axis) for axis in iota[4].split(",")] if iota[4] else range(len(shape))
        devices = np.arange(math.prod(shape)).reshape(shape).transpose(order)
        return devices.reshape(int(iota[1]), int(iota[2])).tolist()  # type: ignore[no-any-return]
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", operands):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        shape, taking_part = [int(size) for size in axes.values()], re.findall(r"'(\w+)'(?!:)", mesh[2])
        if len(taking_part) != mesh[2].count("'") // 2:
            raise RuntimeError(f"groups along a part of an axis are not supported: {mesh[0]}")
        places = [list(axes).index(name) for name in taking_part]
        devices = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), places, range(-len(places), 0))
        size = math.prod(shape[place] for place in places)
        return devices.reshape(-1, size).tolist()  # type: ignore[no-any-return]
    if listed := re.search(r"replica_groups=\{(\{.*?\})\}", operands):
        return [[int(each) for each in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    if pairs := re.search(r"source_target_pairs=\{(\{.*?\})\}", operands):
        return [[int(each) for each in pair.split(",")] for pair in re.findall(r"\{([\d,]+)\}", pairs[1])]
    return None


def compiled(case: Case, layout: tuple[int, int]) -> dict[str, Any]:
    """The collectives of the step on the devices of this process, and the bytes of state on each device."""
    import jax

    from benchmarks.training import batch_of, network
    from transformer import Config, OptimizerConfig, Transformer
    from transformer.config import MeshConfig
    from transformer.model.parameters import declarations
    from transformer.runtime.sharding import Shards, layout_of
    from transformer.tasks.translation import Translation
    from transformer.training import cross_entropy
    from transformer.training.objective import translation_objective
    from transformer.training.schedule import make_optimizer
    from transformer.training.step import init_state, make_train_step

    cross_entropy.SLICE.clear()  # the slices of an accelerator, not of the CPU that simulates it
    devices = jax.device_count()
    model = Transformer(network(case))
    optimizer = make_optimizer(Config(model=network(case), optimizer=OptimizerConfig()))
    state = jax.eval_shape(lambda: init_state(model, optimizer, 0, Translation.example()))
    on = layout_of(MeshConfig(*layout), declarations(model, Translation.example()))
    step = make_train_step(model, translation_objective(0.1), optimizer, seed=0, gather=on.gather)
    step = on.spread(step, donate_state=True)
    places = devices // (layout[1] if isinstance(on, Shards) else 1)
    batch = {}
    for name, ids in batch_of(replace(case, rows=1)).items():
        shape = (places * case.rows, case.time)
        if isinstance(on, Shards):
            spec = jax.sharding.PartitionSpec(("data", "fsdp"))
            sharding = jax.sharding.NamedSharding(on.mesh, spec)
            batch[name] = jax.ShapeDtypeStruct(shape, ids.dtype, sharding=sharding)
        else:
            batch[name] = jax.ShapeDtypeStruct((devices, case.rows, case.time), ids.dtype)
    share = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    if isinstance(on, Shards):
        shardings = on.shardings(state)
        state = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings
        )
        share = sum(
            math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(state)
        )
    program = step.lower(state, batch).compile().as_text()
    return {"state": share, "collectives": [asdict(each) for each in collectives(program)]}


def elsewhere(case: Case, devices: int, layout: tuple[int, int]) -> dict[str, Any]:
    """`compiled` in a process with this number of devices."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    given = json.dumps({"case": asdict(case), "layout": layout})
    command = [sys.executable, "-m", "benchmarks.scaling", "--compile", given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(cases: dict[str, Case], numbers: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """A row for each model, number of devices and layout."""
    for name, case in cases.items():
        for devices in numbers:
            for layout, (fsdp, tensor) in LAYOUTS.items():
                # every device of a tensor group processes the rows of the whole group
                mine = replace(case, device="cpu", rows=case.rows * tensor)
                found = elsewhere(mine, devices, (fsdp, tensor))
                moved = [Collective(**each) for each in found["collectives"]]
                row = {"model": name, "devices": devices, "layout": layout, "state": found["state"]}
                row |= {"sent": sum(each.sent for each in moved), "collectives": found["collectives"]}
                for hardware in HARDWARE:
                    compute = case.flops / (UTILISATION * hardware.peak)
                    talk = sum(each.seconds(hardware) for each in moved)
                    row[hardware.name] = (compute / (compute + talk), compute / max(compute, talk))
                yield row


def main(arguments: list[str] | None = None) -> None:
    """Compiles, prints the table, writes OUTPUT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--output", type=new_file, default=Path("scaling.json"))
    parser.add_argument("--devices", type=positive, nargs="+", default=DEVICES)
    parser.add_argument("--rows", type=positive, help="rows of 256 tokens on each device (96)")
    parser.add_argument("--quick", action="store_true", help="only a small model, to test that it runs")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.compile:
        asked = json.loads(given.compile)
        print(json.dumps(compiled(Case(**asked["case"]), tuple(asked["layout"]))))
        return

    from rich.console import Console
    from rich.table import Table

    from benchmarks.measure import machine, save

    if uneven := [str(number) for number in given.devices if number % NODE]:
        parser.error(f"--devices {' '.join(uneven)}: the layouts need multiples of {NODE}")
    cases = {name: replace(case, rows=given.rows or case.rows) for name, case in ON_GPU.items()}
    if given.quick:
        small: dict[str, Any] = {"num_layers": 1, "d_model": 64, "d_ff": 128, "vocab_size": 128}
        cases = {"small": replace(ON_GPU["base"], rows=8, time=32, **small)}
    columns = [f"{hardware.name}: efficiency" for hardware in HARDWARE]
    table = Table("model", "devices", "layout", "state, MB", "sent, MB", *columns)
    rows = []
    for row in measure(cases, tuple(given.devices)):
        rows.append(row)
        bounds = [f"{row[h.name][0]:.0%} to {row[h.name][1]:.0%}" for h in HARDWARE]
        cells = [row["model"], str(row["devices"]), row["layout"]]
        table.add_row(*cells, f"{row['state'] / 1e6:,.0f}", f"{row['sent'] / 1e6:,.0f}", *bounds)
        print(" | ".join([*cells, f"{row['state'] / 1e6:,.0f} MB", f"{row['sent'] / 1e6:,.0f} MB", *bounds]))
    Console(width=120).print(table)
    save(str(given.output), {"about": machine(), "rows": rows})
    print(f"written to {given.output}")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.scaling", main))
