"""The paper's models on accelerators, by layout: memory, time and transfers of an update, from the compilers.

`python -m benchmarks.speed.grid` runs the compiler of `train.py --plan` for each combination. Nothing runs on
these machines: all times are estimates (`transformer.plan.costs`). Each compilation takes minutes;
OUTPUT keeps what is done, and the same command continues. `--search` asks for a step of beam search on one
device instead, beside the time to read the decoder's weights and the cache once.
"""

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import new_file, positive, run
from transformer.config.options import Config, MeshConfig
from transformer.systems.presets import PRESETS

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


def search_row(name: str, place: str, sentences: int) -> dict[str, Any]:
    """A step of beam search for so many sentences."""
    from transformer.plan.machines import machine
    from transformer.plan.plan import Limits, compiled

    where, config = machine(place), config_of(name, ROWS * LENGTH, MeshConfig())
    config = replace(config, decoding=replace(config.decoding, rows=sentences))
    search, m = compiled("search", config, where, Limits(minutes=60)), config.model
    lane, d, half = search["lane"], m.d_model, 2  # bytes of a bfloat16
    weights = m.decoder_depth * (6 * d * d + 2 * d * m.d_ff) + m.vocab_size * d
    columns = lane["slots"] * (lane["columns"] * config.decoding.beam_size + lane["inputs"])
    cache = 2 * m.decoder_depth * d * columns
    floor = half * (weights + cache) / where.chip.bandwidth
    return {"model": name, "machine": place, "sentences": sentences, "floor": floor, "search": search}


def print_search(found: dict[str, Any]) -> None:
    """The step beside its floor."""
    search = found["search"]
    lane, took, copied = search["lane"], *(search["seconds"][key] for key in ("computation", "copying"))
    print(
        f"{found['model']}, {found['machine']}, {found['sentences']} sentences, sources to {lane['inputs']}, "
        f"{lane['columns']} columns: a step {took * 1e3:.2f} ms, {took / found['floor']:.1f} times the floor "
        f"of {found['floor'] * 1e3:.2f} ms; background copies {copied * 1e3:.2f} ms; "
        f"{search['memory']['total'] / 1e9:.2f} GB (estimates)",
        flush=True,
    )


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
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--output", type=new_file, default=Path("grid.json"))
    parser.add_argument("--models", nargs="+", choices=("base", "big"), default=("base", "big"))
    parser.add_argument("--machines", nargs="+", default=MACHINES, help="as for train.py --plan")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--rows", type=positive, default=ROWS, help=f"rows of {LENGTH} tokens on each device")
    parser.add_argument("--search", action="store_true", help="beam search for 32 and 256 sentences")
    given = parser.parse_args(arguments)

    from rich.console import Console
    from rich.table import Table

    from benchmarks.measure import machine as here
    from benchmarks.measure import save
    from transformer.plan.machines import machine

    for place in given.machines:
        machine(place)
    if given.search:
        rows = []
        for name, place, count in itertools.product(given.models, given.machines, (32, 256)):
            rows.append(search_row(name, place, count))
            print_search(rows[-1])
        save(str(given.output), {"about": here(), "rows": rows})
        print(f"written to {given.output}")
        return
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
    raise SystemExit(run(__spec__.name, main))
