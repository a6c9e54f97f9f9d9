"""A training step on this machine's CPU under options of XLA's compiler, each side by side with none.

`python -m benchmarks.options`. An option takes turns with a process without any, so a ratio compares the same
moments. What this version of XLA does not know is left out.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.command import new_file, positive, run
from benchmarks.measure import Contestant, machine, save, side_by_side
from benchmarks.training import CASES, jax_step

OPTIONS = (
    "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_RUNTIME",
    "--xla_cpu_prefer_vector_width=512",
    "--xla_cpu_enable_fast_math=true",
    "--xla_cpu_enable_fast_min_max=true",
    "--xla_cpu_enable_concurrency_optimized_scheduler=true",
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=",
)


def known(option: str) -> bool:
    """Whether this XLA has the option: it ends a process that it cannot start."""
    environment = os.environ | {"XLA_FLAGS": option, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints a line for each option, writes OUTPUT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.options", description=__doc__)
    parser.add_argument("--output", type=new_file, default=Path("options.json"))
    parser.add_argument("--sizes", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--rounds", type=positive, default=7)
    given = parser.parse_args(arguments)
    rows = []
    for name in given.sizes:
        for option in filter(known, OPTIONS):
            case = {"case": CASES[name]}
            without, with_it = side_by_side(
                [
                    Contestant("none", jax_step, case, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}),
                    Contestant(option, jax_step, case, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": option}),
                ],
                given.rounds,
            )
            row = {
                "size": name,
                "option": option,
                "seconds": [without.median, with_it.median],
                "speed": without.median / with_it.median,
                "same loss": without.output == with_it.output,
                "memory": [without.memory, with_it.memory],
            }
            rows.append(row)
            same = "same loss" if row["same loss"] else f"loss {without.output:.6f} and {with_it.output:.6f}"
            print(
                f"{name} {option}: {row['speed']:.2f} times as fast ({without.median:.2f} s and "
                f"{with_it.median:.2f} s), {same}",
                flush=True,
            )
            save(str(given.output), {"about": machine(), "rows": rows})
    print(f"written to {given.output}")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.options", main))
