"""How far back recurrent networks learn: gradients over distance, and recall.

`python -m benchmarks.distance` compares the tanh RNN, GRU and LSTM of `transformer.systems.recurrent`, with
initial parameters and after training. It draws the size of the gradient of the last state with respect to
inputs at each distance, relative to that of the last input. It also draws how often a trained network recalls
the first of eight symbols after 10 to 160 random ones.
"""

import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from rich.progress import track

from benchmarks.command import drawing_options, run
from benchmarks.measure import keep, machine
from transformer.systems.recurrent.model import CELLS, make_cell

WIDTH, SYMBOLS, ROWS = 64, 8, 64
FARTHEST, LENGTHS, UPDATES = 100, (10, 20, 40, 80, 160), 600
RATE = 3e-3
Params = Any


class Reader(nn.Module):
    """Reads symbols `[b, t]` one by one; the last state predicts one of them: logits `[b, symbols]`."""

    kind: str

    def setup(self) -> None:
        self.embedding = nn.Embed(SYMBOLS, WIDTH)
        self.network = nn.RNN(make_cell(self.kind, WIDTH))
        self.output = nn.Dense(SYMBOLS)

    def __call__(self, symbols: Array) -> Array:
        return self.output(self.last(self.embedding(symbols)))

    def last(self, x: Array) -> Array:
        """The last state."""
        states: Array = self.network(x)
        return states[:, -1]


def start(kind: str, seed: int) -> Params:
    """Initial parameters."""
    return nn.unbox(Reader(kind).init(jax.random.key(seed), jnp.zeros((1, 2), jnp.int32)))


def gradients(kind: str, params: Params, farthest: int) -> list[float]:
    """The norm of the gradient of the last state's sum, along random directions, with respect to the input at
    each distance, relative to the last input's."""
    symbols = jax.random.randint(jax.random.key(1), (ROWS, farthest + 1), 0, SYMBOLS)
    embedded = params["params"]["embedding"]["embedding"][symbols]
    direction = jax.random.normal(jax.random.key(2), (ROWS, WIDTH))

    def along(x: Array) -> Array:
        last = Reader(kind).apply(params, x, method="last")
        return jnp.sum(last * direction)

    sizes = np.asarray(jnp.linalg.norm(jax.jit(jax.grad(along))(embedded), axis=-1).mean(axis=0))
    return (sizes[::-1] / sizes[-1]).tolist()


def recall(kind: str, length: int, count: int) -> tuple[float, Params]:
    """How often the first of `length` + 1 symbols is recalled after training, and the parameters. Chance is
    one of eight."""
    model, optimizer = Reader(kind), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE))
    params = start(kind, 0)

    def symbols(key: Array, rows: int) -> Array:
        return jax.random.randint(key, (rows, length + 1), 0, SYMBOLS)

    def loss(params: Params, given: Array) -> Array:
        found: Any = model.apply(params, given)
        return optax.softmax_cross_entropy_with_integer_labels(found, given[:, 0]).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, key: Array) -> Any:
        params, inner = state
        changes, inner = optimizer.update(jax.grad(loss)(params, symbols(key, ROWS)), inner, params)
        return optax.apply_updates(params, changes), inner

    state = params, optimizer.init(params)
    for key in jax.random.split(jax.random.key(3), count):
        state = update(state, key)
    test = symbols(jax.random.key(4), 1000)
    found: Any = jax.jit(model.apply)(state[0], test)
    return float((found.argmax(axis=-1) == test[:, 0]).mean()), state[0]


def plot(found: dict[str, Any], path: Path) -> None:
    """Gradients and recall."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for kind, values in found["initial"].items():
        (line,) = left.plot(values, label=f"{kind}, initial")
        left.plot(found["trained"][kind], linestyle="--", color=line.get_color(), label=f"{kind}, trained")
        lengths, shares = zip(*found["recall"][kind], strict=True)
        right.plot(lengths, shares, marker="o", label=kind)
    left.set(xlabel="distance of an input from the last", ylabel="size of its gradient", yscale="log")
    right.set(xlabel="symbols since the first", ylabel="recalled", xscale="log", ylim=(0, 1.05))
    right.set_xticks(lengths, [str(length) for length in lengths])
    right.minorticks_off()
    right.axhline(1 / SYMBOLS, color="grey", linewidth=0.8)
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    lengths = [length for length, _ in next(iter(found["recall"].values()))]
    far = [distance for distance in (10, 50, 100) if distance < len(next(iter(found["initial"].values())))]
    header = ["", *(f"gradient at {d}" for d in far), *(f"recalled after {length}" for length in lengths)]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for kind, values in found["initial"].items():
        cells = [f"{values[d]:.1e}" for d in far] + [f"{share:.0%}" for _, share in found["recall"][kind]]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measures, draws and prints the table."""
    given = drawing_options("distance", __doc__, UPDATES, arguments, "updates", "of each training")
    lengths, count, farthest = (LENGTHS, given.updates, FARTHEST) if not given.quick else ((3, 5), 3, 12)
    found: dict[str, Any] = {"initial": {}, "trained": {}, "recall": {kind: [] for kind in CELLS}}
    for kind in track(CELLS, "cells"):
        found["initial"][kind] = gradients(kind, start(kind, 0), farthest)
        for length in lengths:
            share, params = recall(kind, length, count)
            found["recall"][kind].append((length, share))
            if length == lengths[len(lengths) // 2]:
                found["trained"][kind] = gradients(kind, params, farthest)
    written = keep(given.output, {"about": machine(), **found}, lambda path: plot(found, path))
    print(f"{table(found)}\n{written}")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.distance", main))
