"""The frame of a picture: matplotlib is imported when something is drawn, and no display is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@contextmanager
def picture(
    path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], sharey: bool = False
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure to draw on, which is saved at the end.

    Args:
      path: the file, PNG or SVG. An SVG of the same drawing has the same bytes.
      rows: of panels.
      columns: of panels.
      size: width and height of the figure, in inches.
      sharey: whether the panels have one vertical axis.

    Yields:
      The figure, and its panels row by row.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")  # not pyplot's, which may open a window
    axes = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    yield figure, list(axes.flat)
    if path.suffix == ".svg":
        with rc_context({"svg.hashsalt": path.stem}):
            figure.savefig(path, metadata={"Date": None})
    else:
        figure.savefig(path, dpi=110)
