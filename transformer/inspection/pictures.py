"""Pictures as functions: arrays, a `Hypothesis` or a run's own files in, a matplotlib figure out.

A notebook shows what they return; `figure.savefig("name.png")` writes it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.config import OptimizerConfig
from transformer.data.corpora import read_lines
from transformer.decoding.translator import Hypothesis
from transformer.errors import UserError
from transformer.files import parse_object
from transformer.inspection.attention import Attention, Kind
from transformer.inspection.tree import SearchTree
from transformer.model.layers import sinusoids
from transformer.training.schedule import learning_rate

COLOURS = "Blues"
ACCENT, FINISHED, FAINT = "#1d56ad", "#17724a", "#8a8f98"


def draw_attention(
    weights: Float[np.ndarray, "*heads looking looked_at"], looking: Sequence[str], looked_at: Sequence[str]
) -> Any:
    """Attention weights as a map, or as a map for every head.

    Args:
      weights: of one head, or of several, a panel for each.
      looking: the words of the rows.
      looked_at: the words of the columns.

    Raises:
      UserError: there are not as many words as weights, or matplotlib is missing.
    """
    shape = (len(looking), len(looked_at))
    if weights.ndim not in (2, 3) or weights.shape[-2:] != shape:
        raise UserError(f"weights of shape {weights.shape} for {shape[0]} words that look at {shape[1]}")
    panels = weights.reshape(-1, *shape)
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    # an inch and a bit around each map, and room for the longest word on either side
    width, height = (
        1.2 + 0.3 * len(cells) + 0.07 * max(map(len, names), default=0)
        for cells, names in ((looked_at, looking), (looking, looked_at))
    )
    figure, axes = _figure(down, across, (across * width, down * height), layout="compressed")
    for index, axis in enumerate(axes.flat):
        if index >= len(panels):
            axis.set_axis_off()
            continue
        image = axis.imshow(panels[index], cmap=COLOURS, vmin=0, vmax=1)
        axis.set_xticks(range(shape[1]), _names(looked_at), rotation=60, ha="right", rotation_mode="anchor")
        axis.set_yticks(range(shape[0]), _names(looking))
        if len(panels) > 1:
            axis.set_title(f"head {index + 1}")
    for axis in axes[-1]:
        axis.set_xlabel("looked at")
    for axis in axes[:, 0]:
        axis.set_ylabel("looking")
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    return figure


def draw_layer(attention: Attention, kind: Kind, layer: int) -> Any:
    """All heads of one layer (counted from 0), a panel each.

    Raises:
      UserError: as `Attention.weights` and `draw_attention`.
    """
    heads = range(getattr(attention, kind, np.zeros((0, 0))).shape[1])
    attention.weights(kind, layer)  # says so if there is none
    several = np.stack([attention.weights(kind, layer, head) for head in heads])
    return draw_attention(several, *attention.words(kind))


def draw_alignment(hypothesis: Hypothesis, source: Sequence[str]) -> Any:
    """What each token of a translation looked at, the mean over layers and heads.

    Args:
      hypothesis: found with `alignments=True`.
      source: the source as the model sees it, `Translator.subwords`.

    Raises:
      UserError: the hypothesis has no alignment, or one with another source; or as `draw_attention`.
    """
    if hypothesis.alignment is None:
        raise UserError("this hypothesis has no alignment: search with alignments=True")
    looking, looked_at = (*hypothesis.tokens, "</s>"), (*source, "</s>")
    return draw_attention(hypothesis.alignment, looking, looked_at)


def draw_positions(length: int = 64, d_model: int = 128) -> Any:
    """The sinusoidal positional encodings (section 3.5): a row for each position.

    Raises:
      UserError: matplotlib is missing.
    """
    figure, axes = _figure(1, 1, (8, 4.5))
    encodings = np.asarray(sinusoids(jnp.arange(length), d_model))
    image = axes[0, 0].imshow(encodings, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    axes[0, 0].set(xlabel="dimension, sines and cosines in turn", ylabel="position")
    figure.colorbar(image, ax=axes, label="value")
    return figure


def draw_schedule(schedules: Mapping[str, OptimizerConfig], d_model: int, steps: int) -> Any:
    """The learning rate of each step, from 1 on (Eq. 3 and others).

    Args:
      schedules: the options of each curve, by its name.
      d_model: the width of the model, which the paper's schedule depends on.
      steps: how many updates.

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


def draw_learning_curve(run_dir: Path | str) -> Any:
    """Losses, and BLEU on the validation text, against the steps of a run.

    Args:
      run_dir: what training wrote, with its `metrics.jsonl`.

    Raises:
      UserError: there is no such file, it is not what training writes, it is empty, or matplotlib is
        missing.
    """
    path = Path(run_dir) / "metrics.jsonl"
    points: dict[str, list[tuple[float, ...]]] = {"training": [], "evaluation": []}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = parse_object(line)
            if record["kind"] not in points:  # where and on what it was trained
                continue
            kept = ("step", "nll", "bleu") if record["kind"] == "evaluation" else ("step", "nll")
            points[record["kind"]].append(tuple(float(record[key]) for key in kept))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}, line {number}: not a line that training writes") from error
    if not any(points.values()):
        raise UserError(f"{path} tells of no step yet: train on")
    figure, axes = _figure(2, 1, (8, 6.5), sharex=True)
    for kind, name, marker in (("training", "training", ""), ("evaluation", "validation", "o")):
        axes[0, 0].plot(*_columns(points[kind], 0, 1), label=name, marker=marker)
    axes[1, 0].plot(*_columns(points["evaluation"], 0, 2), marker="o", color=FINISHED)
    axes[0, 0].set(ylabel="nats a token")
    axes[1, 0].set(xlabel="step", ylabel="validation BLEU")
    axes[1, 0].set_ylim(bottom=0)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    axes[0, 0].legend()
    return figure


def draw_tree(tree: SearchTree, *, pruned: bool = True) -> Any:
    """A beam search: a column for each step, its candidates from the likeliest down, each with its
    log-probability; pruned ones are faint and dashed, those that became hypotheses are numbered.

    Args:
      tree: from `search_tree`.
      pruned: whether to show what the search threw away.

    Raises:
      UserError: matplotlib is missing.
    """
    shown = [candidate for candidate in tree.candidates if pruned or candidate.fate != "pruned"]
    steps, ranks = max(each.step for each in shown), max(each.rank for each in shown)
    figure, axes = _figure(1, 1, (1.2 + 1.25 * steps, 1.2 + 0.5 * (ranks + 1)))
    axis = axes[0, 0]
    best = tree.path(tree.hypotheses()[0])
    for each in shown:
        start = (0, 0) if each.parent is None else _place(tree, each.parent)
        line = {"color": ACCENT, "linewidth": 2} if each in best else {"color": FAINT, "linewidth": 0.8}
        style = "--" if each.fate == "pruned" else "-"
        axis.plot(*zip(start, (each.step, each.rank), strict=True), linestyle=style, zorder=1, **line)
        edge = {"live": ACCENT, "finished": FINISHED, "pruned": FAINT}[each.fate]
        number = "" if each.place is None else f"  [{each.place + 1}]"
        axis.text(
            each.step,
            each.rank,
            f"{_name(each.token)}{number}\n{each.log_p:.2f}",
            color=FAINT if each.fate == "pruned" else "black",
            fontsize=8,
            ha="center",
            va="center",
            bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": edge, "linestyle": style},
        )
    axis.text(
        0, 0, "<s>", ha="center", va="center", fontsize=8, bbox={"boxstyle": "round", "facecolor": "white"}
    )
    axis.set(xlim=(-0.5, steps + 0.6), ylim=(ranks + 0.6, -0.6), xlabel="step", ylabel="place in its step")
    axis.set_xticks(range(steps + 1))
    axis.set_yticks(range(ranks + 1), [str(rank + 1) for rank in range(ranks + 1)])
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _columns(points: list[tuple[float, ...]], *which: int) -> list[list[float]]:
    return [[point[column] for point in points] for column in which]


def _place(tree: SearchTree, index: int) -> tuple[int, int]:
    return tree.candidates[index].step, tree.candidates[index].rank


def _name(piece: str) -> str:
    """A subword as a label: matplotlib would read what stands between two dollars as a formula."""
    return piece.replace("$", r"\$")


def _names(pieces: Sequence[str]) -> list[str]:
    return [_name(piece) for piece in pieces]


def _figure(
    down: int, across: int, size: tuple[float, float], layout: str = "constrained", **options: Any
) -> tuple[Any, Any]:
    """A figure and its axes, [down, across]. It is closed: pyplot keeps no hold of it, and a notebook
    shows it once, as the value of its cell."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UserError("pictures need matplotlib: pip install '.[notebooks]'") from error
    figure, axes = pyplot.subplots(down, across, figsize=size, layout=layout, squeeze=False, **options)
    pyplot.close(figure)
    return figure, axes
