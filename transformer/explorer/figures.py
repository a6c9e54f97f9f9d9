"""Pictures of attention, positions, schedules, learning curves and beam searches, as matplotlib figures.

A notebook displays the returned figure; `figure.savefig("name.png")` saves it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.config.training import OptimizerConfig
from transformer.data.sources.text_files import read_lines
from transformer.explorer.attention import Attention, Kind
from transformer.explorer.tree import Candidate, SearchTree
from transformer.model.positions import sinusoids
from transformer.runtime.errors import UserError
from transformer.runtime.files import parse_object
from transformer.runtime.machine import library
from transformer.training.schedule import learning_rate
from transformer.translator.translator import Hypothesis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "Blues"
WIDEST = 9.0  # inches: a notebook shows it as it is
SMALLEST = 8.0  # points of labels, where they have room in two columns of panels
COLUMNS = 5  # steps of a beam search in one row of the picture, after its first column
ACCENT, FINISHED, FAINT = "#1d56ad", "#17724a", "#8a8f98"


def draw_attention(
    weights: Float[np.ndarray, "*heads queries keys"],
    queries: Sequence[str],
    keys: Sequence[str],
    title: str = "",
) -> "Figure":
    """Attention weights as a heatmap, or as one heatmap per head.

    Args:
      weights: of one head, or of several: one panel per head, up to four panels per row.
      queries: tokens of the rows.
      keys: tokens of the columns.
      title: title of the figure.

    Raises:
      UserError: the weights do not have the shape of the tokens, or matplotlib is missing.
    """
    shape = (len(queries), len(keys))
    if weights.ndim not in (2, 3) or weights.shape[-2:] != shape:
        raise UserError(f"weights of shape {weights.shape} for {shape[0]} queries and {shape[1]} keys")
    panels = weights.reshape(-1, *shape)
    # the panels share their labels: rows on the left, columns at the bottom
    margins = [0.07 * max(map(len, names), default=0) for names in (queries, keys)]
    width, height = (0.3 * len(names) + 0.4 for names in (keys, queries))
    for across in range(min(len(panels), 4), min(len(panels), 2) - 1, -1):
        scale = min(1.0, (WIDEST - 1.5) / (margins[0] + across * width))
        if 18 * scale >= SMALLEST:
            break
    font = max(4.0, min(10.0, 18 * scale))
    down = -(-len(panels) // across)
    figure, axes = _figure(
        down,
        across,
        (
            1.5 + scale * (margins[0] + across * width),
            1.0 + scale * (margins[1] + down * height) + 0.3 * down,
        ),
        layout="compressed",
    )
    for index, axis in enumerate(axes.flat):
        if index >= len(panels):
            axis.set_axis_off()
            continue
        image = axis.imshow(panels[index], cmap=COLOURS, vmin=0, vmax=1)
        slanted = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
        axis.set_xticks(range(shape[1]), _names(keys), fontsize=font, **slanted)
        axis.set_yticks(range(shape[0]), _names(queries), fontsize=font)
        axis.tick_params(labelleft=index % across == 0, labelbottom=index + across >= len(panels))
        if len(panels) > 1:
            axis.set_title(f"head {index + 1}", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("keys")
    for axis in axes[:, 0]:
        axis.set_ylabel("queries")
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    if title:
        figure.suptitle(title)
    return figure


def draw_layer(attention: Attention, kind: Kind, layer: int) -> "Figure":
    """All heads of a layer (counted from 0), one panel per head.

    Raises:
      UserError: as `Attention.weights` and `draw_attention`.
    """
    attention.weights(kind, layer)  # raises if the kind or the layer does not exist
    heads = getattr(attention, kind)[layer]
    names = {
        "cross": "cross-attention",
        "encoder": "encoder self-attention",
        "decoder": "decoder self-attention",
    }
    return draw_attention(heads, *attention.words(kind), title=f"Layer {layer + 1}, {names[kind]}")


def draw_alignment(hypothesis: Hypothesis, source: Sequence[str]) -> "Figure":
    """The cross-attention of each token of a translation, averaged over layers and heads.

    Args:
      hypothesis: a hypothesis of a search with `alignments=True`.
      source: the subwords of the source, from `Translator.subwords`.

    Raises:
      UserError: the hypothesis has no alignment, or that of another source; or as `draw_attention`.
    """
    if hypothesis.alignment is None:
        raise UserError("this hypothesis has no alignment: search with alignments=True")
    queries, keys = (*hypothesis.tokens, "</s>"), (*source, "</s>")
    title = "Cross-attention, mean over layers and heads"
    return draw_attention(hypothesis.alignment, queries, keys, title=title)


def draw_positions(length: int = 64, d_model: int = 128) -> "Figure":
    """The sinusoidal positional encodings (section 3.5), one row per position.

    Raises:
      UserError: matplotlib is missing.
    """
    figure, axes = _figure(1, 1, (8, 4.5))
    encodings = np.asarray(sinusoids(jnp.arange(length), d_model))
    image = axes[0, 0].imshow(encodings, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    axes[0, 0].set(xlabel="dimension (sines and cosines alternate)", ylabel="position")
    figure.colorbar(image, ax=axes, label="value")
    return figure


def draw_schedule(schedules: Mapping[str, OptimizerConfig], d_model: int, steps: int) -> "Figure":
    """The learning rate of each step, from step 1 (Eq. 3 and others).

    Args:
      schedules: the options of each curve, by its label.
      d_model: width of the model, on which the paper's schedule depends.
      steps: number of updates.

    Raises:
      UserError: matplotlib is missing.
    """
    figure, axes = _figure(1, 1, (8, 4.5))
    counts = np.arange(steps)
    for name, config in schedules.items():
        axes[0, 0].plot(counts + 1, learning_rate(config, d_model, steps)(counts), label=name)
    axes[0, 0].set(xlabel="step", ylabel="learning rate")
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].grid(alpha=0.3)
    axes[0, 0].legend()
    return figure


def draw_learning_curve(run_dir: Path | str) -> "Figure":
    """Training loss, validation loss and validation BLEU by step.

    Args:
      run_dir: run directory with a `metrics.jsonl`.

    Raises:
      UserError: that file is missing, malformed or empty, or matplotlib is missing.
    """
    path = Path(run_dir) / "metrics.jsonl"
    points: dict[str, list[tuple[float, ...]]] = {"training": [], "evaluation": []}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = parse_object(line)
            if record["kind"] not in points:  # other records, such as device and versions
                continue
            keys = ("step", "nll", "bleu") if record["kind"] == "evaluation" else ("step", "nll")
            points[record["kind"]].append(tuple(float(record[key]) for key in keys))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}, line {number}: not a line of metrics that training wrote") from error
    if not any(points.values()):
        raise UserError(f"{path} has no step yet: continue training")
    figure, axes = _figure(2, 1, (8, 6.5), sharex=True)
    for kind, name, marker in (("training", "training", ""), ("evaluation", "validation", "o")):
        axes[0, 0].plot(*_columns(points[kind], 0, 1), label=name, marker=marker)
    axes[1, 0].plot(*_columns(points["evaluation"], 0, 2), marker="o", color=FINISHED)
    axes[0, 0].set(ylabel="loss (nats per token)")
    axes[1, 0].set(xlabel="step", ylabel="validation BLEU")
    axes[1, 0].set_ylim(bottom=0)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    axes[0, 0].legend()
    return figure


def draw_tree(tree: SearchTree, *, pruned: bool = True) -> "Figure":
    """A beam search, with one column per step. Candidates are sorted by log-probability, which is shown.
    Pruned ones are grey and dashed; hypotheses are numbered. Long searches continue in further rows.

    Args:
      tree: from `search_tree`.
      pruned: whether to show pruned candidates.

    Raises:
      UserError: the tree is empty, or matplotlib is missing.
    """
    if not tree.candidates:
        raise UserError("cannot draw a search tree without candidates")
    rows = _rows(tree, pruned)
    steps = max(candidate.step for candidate in tree.candidates)
    depth = max(rows.values()) + 1
    across = min(steps, COLUMNS)
    bands = range(1, steps + 1, COLUMNS)
    size = (1.2 + 1.25 * (across + 1), len(bands) * (0.9 + 0.5 * depth))
    figure, axes = _figure(len(bands), 1, size)
    best = {id(candidate) for candidate in tree.path(tree.hypotheses()[0])}
    for axis, start in zip(axes[:, 0], bands, strict=True):
        columns = range(start - 1, start + across)  # the first repeats the last of the row above
        for index, row in rows.items():
            candidate = tree.candidates[index]
            if candidate.step in columns:
                if candidate.step in columns[1:]:
                    _draw_edge(axis, tree, rows, index, id(candidate) in best)
                _draw_candidate(axis, candidate, row)
        if start == 1:
            box = {"boxstyle": "round", "facecolor": "white"}
            axis.text(0, 0, "<s>", ha="center", va="center", fontsize=8, bbox=box)
        axis.set(xlim=(columns[0] - 0.5, columns[-1] + 0.6), ylim=(depth - 0.4, -0.6), ylabel="rank")
        axis.set_xticks([step for step in columns if step <= steps])
        axis.set_yticks(range(depth), [str(row + 1) for row in range(depth)])
        axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("step; the number below a token is log P in nats")
    return figure


def _rows(tree: SearchTree, pruned: bool) -> dict[int, int]:
    """The row of each drawn candidate, by its index. Without pruned candidates the others move up."""
    rows: dict[int, int] = {}
    below: dict[int, int] = {}
    for index, candidate in enumerate(tree.candidates):
        if pruned or candidate.fate != "pruned":
            rows[index] = below.get(candidate.step, 0)
            below[candidate.step] = rows[index] + 1
    return rows


def _draw_edge(axis: "Axes", tree: SearchTree, rows: Mapping[int, int], index: int, best: bool) -> None:
    candidate = tree.candidates[index]
    start = (0, 0) if candidate.parent is None else (candidate.step - 1, rows[candidate.parent])
    colour, width = (ACCENT, 2.0) if best else (FAINT, 0.8)
    style = "--" if candidate.fate == "pruned" else "-"
    axis.plot(
        *zip(start, (candidate.step, rows[index]), strict=True),
        linestyle=style,
        zorder=1,
        color=colour,
        lw=width,
    )


def _draw_candidate(axis: "Axes", candidate: Candidate, row: int) -> None:
    edge = {"live": ACCENT, "finished": FINISHED, "pruned": FAINT}[candidate.fate]
    style = "--" if candidate.fate == "pruned" else "-"
    number = "" if candidate.place is None else f"  [{candidate.place + 1}]"
    axis.text(
        candidate.step,
        row,
        f"{_name(candidate.token)}{number}\n{candidate.log_p:.2f}",
        color=FAINT if candidate.fate == "pruned" else "black",
        fontsize=8,
        ha="center",
        va="center",
        bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": edge, "linestyle": style},
    )


def _columns(points: list[tuple[float, ...]], *columns: int) -> list[list[float]]:
    return [[point[column] for point in points] for column in columns]


def _name(piece: str) -> str:
    """A subword as a label: matplotlib would typeset text between two dollar signs as a formula."""
    return piece.replace("$", r"\$")


def _names(pieces: Sequence[str]) -> list[str]:
    return [_name(piece) for piece in pieces]


def _figure(
    down: int, across: int, size: tuple[float, float], layout: str = "constrained", **options: Any
) -> tuple["Figure", Any]:
    """A figure and its axes, [down, across]. It is closed in pyplot, so a notebook displays it only once,
    as the value of the cell."""
    pyplot = library("matplotlib.pyplot")
    figure, axes = pyplot.subplots(down, across, figsize=size, layout=layout, squeeze=False, **options)
    pyplot.close(figure)
    return figure, axes
