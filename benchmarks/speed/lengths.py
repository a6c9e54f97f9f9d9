"""Long inputs: attention of some queries at a time (`blocks.by_queries`), beside arrays of all pairs.

`python -m benchmarks.speed.lengths` computes, of one input of so many tokens and an output of a quarter of
them, the gradients of an untrained model (2+2 layers, width 256, 8 heads, float32), and encodes the input.
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.command import new_file, positive, run
from benchmarks.measure import Contestant, machine, save, side_by_side


def work(whole: bool, scheme: Any, length: int, width: int, what: str) -> Callable[[], float]:
    """What a process repeats: it returns a sum of the results."""
    import jax
    import numpy as np

    from transformer import TransformerConfig
    from transformer.model import masks
    from transformer.model.transformer import Transformer

    masks.MOST_PAIRS["cpu"] = 2**62 if whole else length**2 // 32
    sizes = {"num_layers": 2, "d_model": width, "d_ff": 4 * width, "num_heads": 8, "vocab_size": 1000}
    config = TransformerConfig(**sizes, dropout=0.0, positions=scheme)
    model, drawn = Transformer(config), np.random.default_rng(0)
    source, target = (drawn.integers(4, 1000, (1, size)) for size in (length, length // 4))
    variables = jax.jit(model.init)(jax.random.key(0), source[:, :8], target[:, :8])
    loss = jax.grad(lambda variables: (model.apply(variables, source, target) ** 2).mean())
    encode = lambda variables: model.apply(variables, source, method="encode").states  # noqa: E731
    compute = jax.jit(loss if what == "gradients" else encode)
    return lambda: float(sum(abs(x).sum() for x in jax.tree.leaves(compute(variables))))


def main(arguments: list[str] | None = None) -> None:
    """Prints a table, writes OUTPUT."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--output", type=new_file, default=Path("lengths.json"))
    parser.add_argument("--lengths", type=positive, nargs="+", default=[2048, 4096], help="in tokens")
    parser.add_argument("--rounds", type=positive, default=5, help="timed runs of each")
    parser.add_argument("--width", type=positive, default=256, help="of the model")
    given = parser.parse_args(arguments)
    table, rows = Table("positions", "tokens", "", "CPU s: in parts", "whole", "MiB: in parts", "whole"), []
    cases = itertools.product(("sinusoidal", "buckets"), given.lengths, ("gradients", "encode"))
    for scheme, length, what in cases:
        options = {"scheme": scheme, "length": length, "width": given.width, "what": what}
        kinds = [Contestant(str(whole), work, {"whole": whole, **options}) for whole in (False, True)]
        found = side_by_side(kinds, given.rounds)
        assert abs(found[0].output / found[1].output - 1) < 1e-3
        seconds, memory = [each.cpu_median for each in found], [each.memory >> 20 for each in found]
        rows.append({**options, "cpu": seconds, "memory": memory})
        table.add_row(scheme, str(length), what, *(f"{x:.2f}" for x in seconds), *map(str, memory))
    Console(width=100).print(table)
    save(str(given.output), {"about": machine(), "rows": rows})


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
