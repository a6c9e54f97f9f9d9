"""Why batch normalisation falls behind: how far the statistics of a batch are from their running means.

`python -m benchmarks.normalizations` trains the preset `quickstart` with layer, batch and power
normalisation. It draws the loss of each update, and the distance of the statistics of its batch from their
running means, which evaluation and decoding read: | batch - running | / | running |, the mean over all
normalisations of the network.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.progress import track

from benchmarks.command import drawing_options, run
from benchmarks.measure import keep, machine
from benchmarks.updates import updates
from transformer import PRESETS, Config
from transformer.config import text_data
from transformer.model.normalization import MOMENTUM
from transformer.model.parameters import Variables

KINDS = ("layer", "batch", "power")
UPDATES, QUICK = 600, 4
SMOOTH = 20  # updates in a moving average, for the picture
Curves = dict[str, dict[str, list[float]]]
"""By the kind of normalisation: the loss, and the distance of each statistic, of every update."""


def config_of(kind: str, count: int, small: bool) -> Config:
    """The preset with this normalisation, in batches of one sentence a row."""
    base = PRESETS["quickstart"]
    sizes = {"d_model": 16, "d_ff": 16} if small else {}
    data = replace(text_data(base), batching="buckets", buckets=(40,))
    return replace(
        base,
        data=replace(data, built_in_size=500, vocab_size=350) if small else data,
        model=replace(base.model, norm="pre", normalization=kind, **sizes),  # type: ignore[call-arg]
        training=replace(base.training, steps=count),
    )


def statistics_of(variables: Variables) -> dict[str, np.ndarray]:
    """The running statistics of all normalisations, by their path."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(variables.get("statistics", {}))
    return {jax.tree_util.keystr(path): np.array(leaf, np.float64) for path, leaf in leaves}


def distances(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, float]:
    """How far the statistics of a batch are from the running means before it, by the kind of statistic. They
    follow from the running means before and after. Means are compared with the running deviation: their own
    size may be zero."""
    found: dict[str, list[float]] = {}
    for path, old in before.items():
        batch = (after[path] - MOMENTUM * old) / (1 - MOMENTUM)
        name = path.split("'")[-2]
        size = np.sqrt(before[path.replace("'mean'", "'variance'")]) if name == "mean" else old
        found.setdefault(name, []).append(float(np.linalg.norm(batch - old) / np.linalg.norm(size)))
    return {name: float(np.mean(each)) for name, each in found.items()}


def curve(kind: str, count: int, small: bool) -> dict[str, list[float]]:
    """The loss and the distances of each update."""
    found: dict[str, list[float]] = {}
    before: dict[str, np.ndarray] = {}
    steps = zip(range(count), updates(config_of(kind, count, small)), strict=False)
    for _, (state, metrics) in track(steps, f"{kind} normalisation", count):
        after = statistics_of(state.statistics)
        for name, value in {"loss": metrics["loss"], **(distances(before, after) if before else {})}.items():
            found.setdefault(name, []).append(value)
        before = after
    return found


def plot(curves: Curves, path: Path) -> None:
    """Loss, and distances."""
    from matplotlib import pyplot

    figure, (losses, apart) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    names = {"mean": "batch: mean", "variance": "batch: variance", "quadratic": "power: quadratic mean"}
    for kind, found in curves.items():
        for name, values in found.items():
            window = min(SMOOTH, len(values))
            smooth = np.convolve(values, np.ones(window) / window, "valid")
            axis, label = (losses, kind) if name == "loss" else (apart, names[name])
            axis.plot(range(window, window + len(smooth)), smooth, label=label)
    losses.set(xlabel="update", ylabel="loss, nats a token", yscale="log")
    apart.set(xlabel="update", ylabel="distance from the running mean", yscale="log")
    for axis in (losses, apart):
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def table(curves: Curves) -> str:
    """Markdown: means over the last tenth of the updates."""
    lines = ["| normalisation | loss | distance from the running means |", "|---|---|---|"]
    for kind, found in curves.items():
        last = {name: np.mean(values[-max(1, len(values) // 10) :]) for name, values in found.items()}
        apart = ", ".join(f"{name} {value:.2f}" for name, value in last.items() if name != "loss")
        lines.append(f"| {kind} | {last['loss']:.3f} | {apart or '-'} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Trains, draws and prints the table."""
    given = drawing_options("normalizations", __doc__, UPDATES, arguments, "updates", "of each training")
    count = QUICK if given.quick else given.updates
    curves = {kind: curve(kind, count, given.quick) for kind in KINDS}
    written = keep(given.output, {"about": machine(), "curves": curves}, lambda path: plot(curves, path))
    print(f"{table(curves)}\n{written}")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.normalizations", main))
