"""The paper's Table 1, measured: the cost of one layer, and the longest path between two positions.

`python -m benchmarks.studies.table1` times the forward pass of one layer of each kind for growing lengths n
and widths d, takes its memory from the compiler, counts its sequential operations in the traced program, and
finds the longest path between two positions with gradients. It writes a table and plots.
"""

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.command import drawing_options, run
from benchmarks.measure import compiled, keep, machine, medians, picture
from transformer.config.transformer import TransformerConfig
from transformer.model.attention import self_attention
from transformer.model.masks import Mask
from transformer.systems.convolutional.options import ConvolutionalConfig
from transformer.systems.convolutional.system import GatedConvolution, reach
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.recurrent.system import make_cell

LENGTHS, WIDTHS = (16, 32, 64, 128, 256, 512, 1024), (64, 128, 256, 512)
LENGTH, WIDTH, ROWS = 128, 128, 4  # fixed while the other grows; batch size
CUTS = (("length", "width", WIDTH), ("width", "length", LENGTH))  # what grows, and what is fixed at what
WINDOW, KERNEL = 8, 3
ORDER = ("self-attention", "restricted", "linear", "recurrent", "convolutional", "dilated")
TIMED = ORDER[:-1]  # dilated layers cost the same as convolutional ones
FORMULAS = {
    "self-attention": ("n² d", "1", "1"),
    "restricted": ("r n d", "1", "n / r"),
    "linear": ("n d d_k", "1", "1"),
    "recurrent": ("n d²", "n", "n"),
    "convolutional": ("k n d²", "1", "n / k"),
    "dilated": ("k n d²", "1", "log_k n"),
}
"""Table 1: complexity of a layer, sequential operations, longest path (section 4). Linear attention came
later (Katharopoulos et al. 2020)."""


class Attention(nn.Module):
    """Self-attention, unrestricted, with a window or linear."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layer = self_attention(self.config)
        keys_values = layer.keys_values(x, jnp.arange(x.shape[1]))
        return layer(x, keys_values, Mask(window=self.config.window))[0]


class Recurrence(nn.Module):
    """A GRU over the positions."""

    config: RecurrentConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.RNN(make_cell(self.config.cell, self.config.d_model))(x)


class Step(nn.Module):
    """One step of that GRU at all positions in parallel, from the state of the previous position: the
    sequential operation that a recurrent layer repeats."""

    config: RecurrentConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return make_cell(self.config.cell, self.config.d_model)(before, x)[1]


class Convolution(nn.Module):
    """A gated convolution with a symmetric kernel; `layer` determines its dilation."""

    config: ConvolutionalConfig
    layer: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        side = reach(self.config, self.layer) // 2
        return GatedConvolution(self.config, self.layer)(jnp.pad(x, ((0, 0), (side, side), (0, 0))), True)


def layer(kind: str, width: int) -> nn.Module:
    """One layer of the kind."""
    sizes: dict[str, Any] = {"vocab_size": 1, "d_model": width, "dropout": 0.0}
    match kind:
        case "self-attention":
            return Attention(TransformerConfig(**sizes, num_heads=width // 32))
        case "restricted":
            return Attention(TransformerConfig(**sizes, num_heads=width // 32, window=WINDOW))
        case "linear":
            return Attention(TransformerConfig(**sizes, num_heads=width // 32, mechanism="linear"))
        case "recurrent":
            return Recurrence(RecurrentConfig(**sizes))
        case _:
            return Convolution(ConvolutionalConfig(**sizes, kernel_width=KERNEL))


@dataclass
class Cost:
    """The cost of one layer at one size."""

    kind: str
    length: int
    width: int
    milliseconds: float
    megabytes: float
    sequential: int


def cost(kind: str, length: int, width: int, repeats: int) -> Cost:
    """Median time of a forward pass, memory without arguments and result, sequential operations."""
    model = layer(kind, width)
    x = jax.random.normal(jax.random.key(0), (ROWS, length, width))
    variables = model.init(jax.random.key(1), x)
    program = compiled(model.apply, variables, x)
    (seconds,) = medians([program], repeats)
    sequential = sequential_operations(jax.make_jaxpr(model.apply)(variables, x).jaxpr)
    return Cost(kind, length, width, 1e3 * seconds, program.bytes / 2**20, sequential)


def sequential_operations(program: Any) -> int:
    """How often the longest loop of a traced program runs its body; 1 without loops."""
    longest = 1
    for equation in program.eqns:
        turns = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        inner = [sequential_operations(body) for body in jaxprs_in_params(equation.params)]
        longest = max([longest, turns * max(inner, default=1)])
    return longest


@functools.cache
def touched(model: nn.Module, length: int, width: int) -> np.ndarray:
    """[i, j]: whether the output at position i has a gradient to the input at position j."""
    x = jax.random.normal(jax.random.key(0), (1, length, width))
    variables = model.init(jax.random.key(1), x)

    def outputs(x: jax.Array) -> jax.Array:
        return model.apply(variables, x)[0].sum(axis=-1)  # type: ignore[index]

    return np.asarray(jnp.abs(jax.jit(jax.jacrev(outputs))(x)[:, 0]).sum(axis=-1) > 0)


def longest_path(kind: str, length: int, width: int = 32) -> int:
    """The number of successive operations until the last position depends on the first."""
    depends = np.eye(length, dtype=bool)
    for path, model in enumerate(operations(kind, length, width), start=1):
        depends = touched(model, length, width) @ depends
        if depends[-1, 0]:
            return path
    raise AssertionError("operations never end")


def operations(kind: str, length: int, width: int) -> Iterator[nn.Module]:
    """Yields successive operations: layers, or the steps in a recurrent layer."""
    sizes: dict[str, Any] = {"vocab_size": 1, "d_model": width, "dropout": 0.0}
    depth = 0
    while True:
        if kind == "recurrent":
            yield Step(RecurrentConfig(**sizes))
        elif kind == "dilated":
            rest = length - 1 - (KERNEL**depth - 1) // 2  # the distance that earlier layers do not bridge
            distance = min(KERNEL**depth, max(rest, 1))
            yield Convolution(ConvolutionalConfig(**sizes, kernel_width=KERNEL, dilation=(distance,)))
        else:
            yield layer(kind, width)
        depth += 1


def measure(lengths: tuple[int, ...], widths: tuple[int, ...], repeats: int) -> list[Cost]:
    """Every kind of layer at every length, and at every width; kinds take turns."""
    sizes = [(length, WIDTH) for length in lengths] + [(LENGTH, width) for width in widths]
    work = [(kind, *size) for size in dict.fromkeys(sizes) for kind in TIMED]
    return [cost(*one, repeats) for one in track(work, "layers", console=Console(stderr=True))]


def growth(costs: list[Cost], kind: str, along: str) -> float:
    """The exponent with which time grows, over the upper half of the sizes: log-log slope."""
    other, fixed = next((other, fixed) for name, other, fixed in CUTS if name == along)
    mine = [c for c in costs if c.kind == kind and getattr(c, other) == fixed]
    mine = sorted(mine, key=lambda c: getattr(c, along))[-3:]
    x, y = (np.log([getattr(c, name) for c in mine]) for name in (along, "milliseconds"))
    return float(np.polyfit(x, y, 1)[0])


def plot(costs: list[Cost], paths: dict[str, dict[int, int]], path: Path) -> None:
    """Time and memory against n and d, sequential operations and longest path against n."""
    from matplotlib import ticker

    def draw(axis: Any, kind: str, x: list[int], y: list[float]) -> None:
        style = {"marker": "o", "color": f"C{ORDER.index(kind)}", "label": kind}
        # dashes, so that both of two coinciding lines are visible
        axis.plot(x, y, linestyle="--" if kind in ("restricted", "linear", "convolutional") else "-", **style)

    titles = ("time of one layer, ms", "sequential operations"), ("memory of one layer, MiB", "longest path")
    names = (f"length n (d = {WIDTH})", f"width d (n = {LENGTH})", "length n")
    with picture(path, 2, 3, size=(12, 7)) as (figure, panels):
        axes = np.reshape(panels, (2, 3))
        for kind in ORDER:
            for column, (along, other, fixed) in enumerate(CUTS):
                mine = sorted(
                    (c for c in costs if c.kind == kind and getattr(c, other) == fixed),
                    key=lambda c: getattr(c, along),
                )
                if not mine:
                    continue
                sizes = [getattr(c, along) for c in mine]
                draw(axes[0, column], kind, sizes, [c.milliseconds for c in mine])
                draw(axes[1, column], kind, sizes, [c.megabytes for c in mine])
                if along == "length":
                    draw(axes[0, 2], kind, sizes, [c.sequential for c in mine])
            draw(axes[1, 2], kind, list(paths[kind]), list(paths[kind].values()))
        for row, column in np.ndindex(2, 3):
            axis: Any = axes[row, column]
            axis.set(xscale="log", yscale="log", title=titles[row][column == 2], xlabel=names[column])
            sizes = sorted({int(x) for line in axis.lines for x in line.get_xdata()})
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.xaxis.set_minor_locator(ticker.NullLocator())
            axis.yaxis.set_minor_locator(ticker.NullLocator())
            axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}"))
            axis.grid(alpha=0.3)
        figure.legend(*axes[1, 2].get_legend_handles_labels(), loc="outside lower center", ncols=len(ORDER))


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints the table, writes OUTPUT.json and OUTPUT.png."""
    given = drawing_options(__spec__.name, __doc__, 15, arguments)
    lengths, widths = (LENGTHS, WIDTHS) if not given.quick else ((16, 32, 64), (64, 96, 128))
    costs = measure(lengths, widths, given.repeats)
    reached = [length for length in lengths if length <= 128]
    paths = {kind: {length: longest_path(kind, length) for length in reached} for kind in ORDER}

    table = Table("layer", "work", "time ~ n^", "time ~ d^", "steps (n)", "steps", "path (n)", "path")
    for kind in ORDER:
        complexity, sequential, path = FORMULAS[kind]
        mine = [c for c in costs if c.kind == kind and c.width == WIDTH]
        largest = max(mine, key=lambda c: c.length) if mine else None
        table.add_row(
            kind,
            complexity,
            f"{growth(costs, kind, 'length'):.2f}" if mine else "",
            f"{growth(costs, kind, 'width'):.2f}" if mine else "",
            f"{largest.sequential} ({largest.length})" if largest else "",
            sequential,
            f"{paths[kind][reached[-1]]} ({reached[-1]})",
            path,
        )
    Console(width=100).print(table)
    about = machine() | {"rows": str(ROWS), "window r": str(WINDOW), "kernel k": str(KERNEL)}
    results = {"about": about, "costs": [asdict(c) for c in costs], "paths": paths}
    print(keep(given.output, results, lambda path: plot(costs, paths, path)))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
