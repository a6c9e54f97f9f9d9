"""The paper's models on accelerators, by layout: memory, time and transfers of an update, from the compilers.

`python -m benchmarks.grid` runs the compiler of `train.py --plan` for each combination. Nothing runs on these
machines: all times are estimates (`transformer.plan.costs`). Each compilation takes minutes; OUTPUT keeps
what is done, and the same command continues.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import new_file, positive, run
from transformer.config import Config, MeshConfig
from transformer.config.presets import PRESETS

MACHINES = ("v5e:2x4", "v5p:2x2x2", "h100:8", "v5e:16x16", "v5p:8x8x4")
LAYOUTS = ("replicas", "fsdp")
LENGTH, ROWS = 256, 96
NODE = 8  # devices over which fsdp shards


def config_of(name: str, tokens: int, mesh: MeshConfig, remat: bool = False) -> Config:
    """A preset of the paper in bfloat16, with packed rows of 256 tokens and so many tokens a batch."""
    preset = PRESETS[name]
    return replace(
        preset,
        model=replace(preset.model, dtype="bfloat16", vocab_size=37_000, remat=remat),
        data=replace(preset.data, batching="packed", max_length=LENGTH, batch_tokens=tokens),
        mesh=mesh,
    )


def row(name: str, place: str, layout: str, rows: int) -> dict[str, Any]:
    """One combination: what the compiler says, and the share of the peak."""
    from transformer.plan.machines import machine
    from transformer.plan.plan import Limits, compiled

    where = machine(place)
    mesh = MeshConfig(fsdp=NODE if layout == "fsdp" else 1)
    config = config_of(name, where.count * rows * LENGTH, mesh)
    step = compiled("step", config, where, Limits(minutes=60))
    found = {"model": name, "machine": place, "layout": layout, "rows": rows, "step": step}
    if "seconds" in step:
        seconds = step["seconds"]
        found["share"] = [step["flops"] / where.chip.peak / seconds[end] for end in ("slowest", "fastest")]
    return found


def cells(found: dict[str, Any]) -> list[str]:
    """The row of the table."""
    step = found["step"]
    used = f"{step['memory']['total'] / 1e9:.1f}" + ("" if step["fits"] else ", too much")
    told = [found["model"], found["machine"], found["layout"], used]
    if "seconds" not in step:
        return [*told, "", "", "", ""]
    seconds, sent = step["seconds"], sum(each["sent"] for each in step["collectives"])
    return [
        *told,
        f"{seconds['fastest'] * 1e3:.0f} to {seconds['slowest'] * 1e3:.0f}",
        " to ".join(f"{share:.0%}" for share in found["share"]),
        f"{sent / 1e6:,.0f}",
        f"{step['estimated']:.0%}",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Compiles what is missing, prints the table, writes OUTPUT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid", description=__doc__)
    parser.add_argument("--output", type=new_file, default=Path("grid.json"))
    parser.add_argument("--models", nargs="+", choices=("base", "big"), default=("base", "big"))
    parser.add_argument("--machines", nargs="+", default=MACHINES, help="as for train.py --plan")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--rows", type=positive, default=ROWS, help=f"rows of {LENGTH} tokens on each device")
    given = parser.parse_args(arguments)

    from rich.console import Console
    from rich.table import Table

    from benchmarks.measure import machine as here
    from benchmarks.measure import save
    from transformer.plan.machines import machine

    for place in given.machines:
        machine(place)
    done = json.loads(given.output.read_text())["rows"] if given.output.exists() else []
    names = ("model", "machine", "layout", "rows")
    known = {tuple(found[name] for name in names) for found in done}
    console = Console(width=120)
    for name in given.models:
        for place in given.machines:
            for layout in given.layouts:
                if (name, place, layout, given.rows) in known:
                    continue
                with console.status(f"compiling {name}, {place}, {layout}"):
                    done.append(row(name, place, layout, given.rows))
                save(str(given.output), {"about": here(), "rows": done})
                print(" | ".join(cells(done[-1])), flush=True)
    columns = ("memory, GB", "an update, ms", "of the peak", "sent, MB", "not the compiler's")
    table = Table("model", "machine", "layout", *columns)
    for found in done:
        table.add_row(*cells(found))
    console.print(table)
    print(f"written to {given.output}")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.grid", main))
